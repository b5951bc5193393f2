"""Attacks on an unlearning gradient: which labels and which pictures made it.

Everything an observer needs is public in a federation: the model and the loss. The gradient may have any
positive scale, so displacements and differences of models serve as well. Models are an ``nn.Sequential``
whose first dense layer has a bias, such as LeNet-5.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linprog
from torch import Tensor, nn
from torch.nn import functional as F

from fedunlearn.core import vectors
from fedunlearn.core.seeds import generator
from fedunlearn.maths import unlearning_cross_entropy

Floats = NDArray[np.float64]

SLACKS = (1e-5, 1e-3, 1e-2)
"""By which features may be negative; the next one where the gradient is too noisy for the one before."""


def recover_labels(gradient: Tensor, model: nn.Module, count: int) -> list[int]:
    """The labels of ``count`` examples, from the gradient of the last layer's bias.

    The unlearning cross-entropy gives the logit of class k the slope w (1[k = y] − p_k) with w > 0: only the
    label's is positive, so one example has its label at the maximum. A batch sums such slopes. The class with
    the largest slope is counted, lowered by what one example adds on average, and so on.
    """
    slopes = vectors.views(gradient, model)[-1].double()
    slopes = slopes - slopes.mean()
    impact = float(slopes.clamp_min(0).sum()) / count
    found = []
    for _ in range(count):
        label = int(slopes.argmax())
        slopes[label] -= impact
        found.append(label)
    return sorted(found)


def match_gradient(
    gradient: Tensor,
    model: nn.Module,
    labels: Tensor,
    shape: tuple[int, ...],
    *,
    iterations: int = 200,
    smooth: float = 1e-3,
    rate: float = 0.05,
    seed: object = 0,
) -> Tensor:
    """Pictures whose gradient points the same way (Geiping et al., NeurIPS 2020).

    Adam on the signs of the slopes of 1 − cosine + ``smooth`` × total variation; pixels stay within 0 and 1.
    """
    draw = generator("dummy pictures", seed)
    x = torch.rand((len(labels), *shape), generator=draw).requires_grad_()
    optimiser = torch.optim.Adam([x], lr=rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, iterations)
    wanted = F.normalize(gradient.to(x.dtype), dim=0)
    parameters = vectors.trainable(model)
    for _ in range(iterations):
        loss = unlearning_cross_entropy(model(x), labels)
        slopes = torch.autograd.grad(loss, parameters, create_graph=True)
        made = torch.cat([slope.reshape(-1) for slope in slopes])
        distance = 1 - made @ wanted / made.norm().clamp_min(1e-20) + smooth * total_variation(x)
        (slope,) = torch.autograd.grad(distance, [x])
        x.grad = slope.sign()
        optimiser.step()
        schedule.step()
        with torch.no_grad():
            x.clamp_(0, 1)
    return x.detach()


def total_variation(x: Tensor) -> Tensor:
    """Mean absolute difference of neighbours, summed over pictures."""
    down, right = x.diff(dim=-2).abs().mean(), x.diff(dim=-1).abs().mean()
    return (down + right) * len(x)


def extractor(model: nn.Module) -> tuple[nn.Module, int]:
    """What lies before the first dense layer, and the number of trainable tensors in it."""
    assert isinstance(model, nn.Sequential)
    first = next(number for number, layer in enumerate(model) if isinstance(layer, nn.Linear))
    front = model[:first]
    return front, len(list(front.parameters()))


def dense_gradient(gradient: Tensor, model: nn.Module) -> Tensor:
    """Of the first dense layer: its weights, and its bias as the last column, in float64."""
    weight, bias = vectors.views(gradient, model)[extractor(model)[1] :][:2]
    return torch.cat([weight, bias.unsqueeze(1)], dim=1).double()


def recover_features(
    gradient: Tensor, model: nn.Module, count: int, known: Tensor, *, precision: float = 1e-4
) -> Tensor:
    """Features (inputs of the first dense layer) of up to ``count`` examples, one a row; often exact.

    The gradient of the layer is Σ δ_i (f_i, 1)ᵀ: with fewer examples than units, every (f_i, 1) lies in the
    span of its rows. Behind a ReLU, features are never negative and often zero, which makes each a corner of
    the polytope of all such vectors in that span. Linear programs find corners: for each picture in
    ``known``, which the observer has, the one that is smallest where the features of this picture are zero.
    A corner that belongs to an example has more zeros than others, so those with most zeros are returned.
    Saturated examples hardly contribute and are cut off with the singular values below ``precision``.
    """
    with torch.no_grad():
        typical = extractor(model)[0](known).double().numpy()
    _, sizes, right = torch.linalg.svd(dense_gradient(gradient, model), full_matrices=False)
    rank = min(count, int((sizes > precision * sizes[0]).sum()))
    span: Floats = right[:rank].T.numpy()
    weights = 1 / np.clip(typical.mean(0), 0.01, None)
    found: list[Floats] = []
    for slack in SLACKS:
        for features in typical:
            corner = _corner(span, (features == 0) * weights, slack)
            if corner is not None and not any(_alike(corner, other) for other in found):
                found.append(corner)
        if found:
            break
    found.sort(key=lambda corner: -int((corner < 1e-3 * corner.max()).sum()))
    return torch.from_numpy(np.array(found[:count]).reshape(-1, typical.shape[1])).float()


def _corner(span: Floats, cost: Floats, slack: float) -> Floats | None:
    """The vector (f, 1) in the span, f ≥ −slack, of least cost; None where there is none."""
    *_, one = span
    rows = span[:-1]
    solved = linprog(
        cost @ rows,
        A_ub=-rows,
        b_ub=np.full(len(rows), slack),
        A_eq=one[None],
        b_eq=[1.0],
        bounds=(None, None),
        method="highs",
    )
    if solved.status != 0:
        return None
    corner: Floats = (rows @ solved.x).clip(0)
    return corner if corner.max() > 0 else None


def _alike(one: Floats, other: Floats) -> bool:
    return bool(np.linalg.norm(one - other) < 0.05 * np.linalg.norm(other))


def invert_features(
    features: Tensor,
    model: nn.Module,
    shape: tuple[int, ...],
    *,
    iterations: int = 400,
    smooth: float = 0.1,
    rate: float = 0.05,
) -> Tensor:
    """Pictures with these features: Adam on the relative squared error + ``smooth`` × total variation."""
    front = extractor(model)[0]
    x = torch.full((len(features), *shape), 0.5).requires_grad_()
    optimiser = torch.optim.Adam([x], lr=rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, iterations)
    size = features.square().mean(1).clamp_min(1e-12)
    for _ in range(iterations):
        optimiser.zero_grad()
        error = ((front(x) - features).square().mean(1) / size).sum()
        (error + smooth * total_variation(x)).backward()
        optimiser.step()
        schedule.step()
        with torch.no_grad():
            x.clamp_(0, 1)
    return x.detach()


def undo_projection(step: Tensor, others: Tensor, model: nn.Module, *, iterations: int = 80) -> Tensor:
    """The target's gradient up to scale, from FedOSD's step and the updates of all retained clients.

    ``step`` is ω^t − ω^{t+1}. What the projection removed is Σ λ_i g_i with few unknown λ. Few examples give
    the dense layer a gradient M of low rank, so λ minimises log det (M Mᵀ + ε) as ε falls, by reweighted
    least squares.
    """
    rows = F.normalize(others, dim=1)
    step = F.normalize(step, dim=0)
    seen = dense_gradient(step, model)
    parts = torch.stack([dense_gradient(row, model) for row in rows])
    weights = torch.zeros(len(rows), dtype=torch.float64)
    identity = torch.eye(len(seen), dtype=torch.float64)
    for epsilon in torch.logspace(-2, -9, iterations, dtype=torch.float64):
        made = seen + torch.einsum("i,ijk->jk", weights, parts)
        gram = made @ made.T
        metric = torch.linalg.inv(gram + epsilon * gram.trace() * identity)
        weighted = (metric @ parts).flatten(1)
        weights = -torch.linalg.lstsq(weighted @ parts.flatten(1).T, weighted @ seen.flatten()).solution
    return step + weights.to(step.dtype) @ rows


def contributing(norms: Tensor) -> float:
    """How many examples a sum of vectors of these lengths amounts to: n if equal, 1 if one outweighs all."""
    total = float(norms.sum())
    return total**2 / float(norms.square().sum()) if total > 0 else math.nan
