"""Losses that forget when minimised: bounded, and accurate in float32 for all probabilities."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

REDUCTIONS = ("mean", "sum", "none")


def unlearning_cross_entropy(
    logits: Tensor,
    target: Tensor,
    *,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    constant: float = 2.0,
) -> Tensor:
    """Return −log(1 − p/constant) for the label's probability p; minimising it drives p to zero.

    FedOSD (Pan et al., "Federated Unlearning with Gradient Descent and Conflict Mitigation", AAAI 2025),
    Eq. 3, with constant 2; constant 1 is its ablation M6, which is unbounded. The gradient is
    −p/(constant − p) times that of cross-entropy. Shapes are those of ``torch.nn.functional.cross_entropy``:
    logits (C,), (N, C) or (N, C, d₁, …) with class labels of the same shape without C.

    Labels equal to ``ignore_index`` are excluded, also from the mean; if none remains, the loss and its
    gradient are 0. A class weight multiplies the loss of its samples, and the mean is divided by the sum of
    their weights, as in torch. Half-precision inputs are computed and returned in float32. Finite logits
    never give NaN. Labels that are out of range or not int64, a single class, and a constant below 1 raise an
    error.

    >>> logits = torch.tensor([[0.0, 0.0], [30.0, -30.0]], requires_grad=True)
    >>> loss = unlearning_cross_entropy(logits, torch.tensor([0, 1]))
    >>> round(loss.item(), 4)
    0.1438
    >>> loss.backward()
    >>> logits.grad[0]
    tensor([ 0.0833, -0.0833])
    """
    # Deviation: the authors' code overwrites ignored labels in place and divides by all samples.
    if reduction not in REDUCTIONS:
        raise ValueError(f"reduction must be one of {', '.join(REDUCTIONS)}, got {reduction!r}")
    _require_constant(constant)
    _require_labels(logits, target, weight, ignore_index)

    classes = logits.shape[0] if logits.ndim == 1 else logits.shape[1]
    samples = logits.movedim(min(1, logits.ndim - 1), -1).reshape(-1, classes)
    labels = target.reshape(-1)
    valid = labels != ignore_index
    if not bool(valid.all()):
        samples, labels = samples[valid], labels[valid]

    margin = _margin(_at_least_float32(samples), labels)
    losses: Tensor = _OfMargin.apply(margin, constant)  # type: ignore[no-untyped-call]  # Eq. 3
    weights = torch.ones_like(losses) if weight is None else weight.to(losses)[labels]
    losses = losses * weights
    if reduction == "none":
        return losses.new_zeros(target.numel()).masked_scatter(valid, losses).reshape(target.shape)
    if reduction == "sum":
        return losses.sum()
    return losses.sum() / weights.sum().clamp_min(torch.finfo(losses.dtype).tiny)


def unlearning_transform(nll: Tensor, *, constant: float = 2.0) -> Tensor:
    """Return U(L) = −log(1 − e^−L/constant), elementwise, for any negative log-likelihood L ≥ 0.

    This is Eq. 3 of FedOSD (Pan et al., AAAI 2025) for any task: p is e^−L, and the gradient is
    −1/(constant·e^L − 1) times that of L. Pass one L per sample and average the result. For class labels
    ``unlearning_cross_entropy`` is more accurate, because L itself rounds to 0 as p approaches 1.

    L = 0 gives −log(1 − 1/constant) with gradient −1/(constant − 1). With constant 1 both are infinite; the
    result is then the value at the smallest positive L, with zero gradient. An infinite L gives 0 with zero
    gradient. Half-precision inputs are computed and returned in float32. A negative L, beyond rounding,
    raises an error.

    >>> nll = torch.tensor([0.0, 1.0, 1000.0], requires_grad=True)
    >>> unlearning_transform(nll)
    tensor([0.6931, 0.2033, 0.0000], grad_fn=<_OfLikelihoodBackward>)
    """
    _require_constant(constant)
    if not nll.is_floating_point():
        raise ValueError(f"nll must be of a floating point type, got {nll.dtype}")
    if bool((nll < -1e-6).any()):
        raise ValueError(f"nll must not be negative, got {float(nll.min()):.3g}: subtract its least value")
    nll = _at_least_float32(nll)
    least = torch.finfo(nll.dtype).tiny if constant == 1 else 0.0
    nll = torch.where(nll < least, least, nll)  # clamp_min has no gradient at a tie in torch 2.15
    losses: Tensor = _OfLikelihood.apply(nll, constant)  # type: ignore[no-untyped-call]
    return losses


class _OfMargin(torch.autograd.Function):
    """Eq. 3 as a function of the margin log p − log(1 − p), which keeps p accurate near 0 and near 1."""

    @staticmethod
    def forward(ctx: Any, margin: Tensor, constant: float) -> Tensor:
        ctx.save_for_backward(margin)
        ctx.constant = constant
        return _unlikelihood(torch.sigmoid(margin), logsigmoid(-margin), constant)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (margin,) = ctx.saved_tensors
        # Where 1 − p underflows, q/q must be 1 and not NaN for the constant 1.
        p, q = torch.sigmoid(margin), torch.sigmoid(-margin).clamp_min(torch.finfo(margin.dtype).tiny)
        return gradient * p * (q / (ctx.constant - 1 + q)), None


class _OfLikelihood(torch.autograd.Function):
    """Eq. 3 as a function of L = −log p ≥ 0."""

    @staticmethod
    def forward(ctx: Any, nll: Tensor, constant: float) -> Tensor:
        ctx.save_for_backward(nll)
        ctx.constant = constant
        return _unlikelihood(torch.exp(-nll), torch.log(-torch.expm1(-nll)), constant)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (nll,) = ctx.saved_tensors
        return -gradient * torch.exp(-nll) / (ctx.constant - 1 - torch.expm1(-nll)), None


def _unlikelihood(p: Tensor, log_q: Tensor, constant: float) -> Tensor:
    """Return −log(1 − p/constant), computed from p or from log(1 − p), whichever is accurate."""
    rest = torch.full_like(log_q, math.log(constant - 1) if constant > 1 else -math.inf)
    unlikely = -torch.log1p(-p / constant)
    likely = math.log(constant) - torch.logaddexp(rest, log_q)
    return torch.where(p <= constant / 2, unlikely, likely)


def _margin(samples: Tensor, labels: Tensor) -> Tensor:
    """Return log p − log(1 − p) of each sample: the label's logit minus the logsumexp of the others.

    Summing the others instead of subtracting p from 1 keeps 1 − p accurate. The gradient is
    e_y − softmax(others), which sums to zero.
    """
    column = labels.unsqueeze(1)
    others = samples.scatter(1, column, -math.inf)
    return samples.gather(1, column).squeeze(1) - others.logsumexp(1)


def _at_least_float32(tensor: Tensor) -> Tensor:
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def _require_constant(constant: float) -> None:
    if not 1 <= constant < math.inf:
        raise ValueError(f"constant must be at least 1, or log(1 - p/constant) has no value, got {constant}")


def _require_labels(logits: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int) -> None:
    if not logits.is_floating_point() or logits.ndim == 0:
        raise ValueError(f"logits must be floating point, with classes, got {logits.dtype} {logits.ndim}-D")
    if target.dtype != torch.int64:
        raise ValueError(f"target must hold class labels as int64, got {target.dtype}")
    shape = tuple(logits.shape)
    expected, classes = (shape[:1] + shape[2:], shape[1]) if len(shape) > 1 else ((), shape[0])
    if tuple(target.shape) != expected:
        raise ValueError(f"logits {shape} need a target of shape {expected}, got {tuple(target.shape)}")
    if classes < 2:
        raise ValueError("logits must have at least two classes: a lone one always has probability 1")
    if weight is not None and tuple(weight.shape) != (classes,):
        raise ValueError(f"weight must have shape ({classes},), got {tuple(weight.shape)}")
    stray = target[(target != ignore_index) & ((target < 0) | (target >= classes))]
    if len(stray) > 0:
        raise ValueError(f"target must lie in 0..{classes - 1} or be {ignore_index}, got {int(stray[0])}")
