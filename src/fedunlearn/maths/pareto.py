"""Steps that descend several losses at once."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ._blocks import blocks
from ._quadratic import nonnegative
from .directions import Direction, DirectionStatus, orthogonal_direction

NEGLIGIBLE = 1e-12
"""Norm, relative to the longest row, below which a row counts as zero and imposes nothing."""

STATIONARY = 1e-8
"""Relative to the longest gradient, a common descent shorter than this counts as zero."""


@torch.no_grad()
def min_norm_weights(gram: Tensor) -> Tensor:
    """Return the convex weights λ that minimise λᵀ ``gram`` λ, the square of the shortest Σ λ_i g_i.

    These are the weights of MGDA (Désidéri, 2012; Fliege and Svaiter, 2000), found exactly. ``gram`` is the
    float64 Gram matrix of the g_i. If one of them is zero, it has all the weight.

    >>> min_norm_weights(torch.tensor([[4.0, 0.0], [0.0, 1.0]], dtype=torch.float64))
    tensor([0.2000, 0.8000], dtype=torch.float64)
    """
    norms = gram.diagonal().sqrt()
    if float(norms.min()) == 0:
        return torch.zeros_like(norms).index_fill(0, norms.argmin(), 1.0)
    # ‖Σ λ_i g_i‖² + (Σ λ_i − 1)² over λ ≥ 0 has the solution of the simplex up to its length. Coefficients
    # of unit gradients preserve the digits of a short gradient among long ones.
    shares = norms.min() / norms
    weights = nonnegative(gram / norms / norms.unsqueeze(1) + torch.outer(shares, shares), shares) * shares
    return weights / weights.sum()


@torch.no_grad()
def pareto_improvement(forget: Tensor, retain: Tensor, *, min_cosine: float = 0.0) -> Direction:
    """Return the step that descends the loss of every row, of ``forget`` and of ``retain``, if there is one.

    It is the negated shortest convex combination of the unit rows: no other step has a larger least cosine
    with all −g_i, so everybody gains at least the same share of their steepest descent. ``sine`` is that
    share. The step has the mean norm of the rows of ``forget``. A share of at most ``min_cosine`` gives the
    zero vector and ``in_span``. Zero rows impose nothing; if all of ``forget`` are zero, the status says so.

    >>> step = pareto_improvement(torch.tensor([[3.0, 0.0]]), torch.tensor([[0.0, 2.0]]))
    >>> step.vector, round(step.sine, 4)
    (tensor([-2.1213, -2.1213]), 0.7071)
    """
    _require_rows(forget, retain)
    gram = forget.new_zeros(len(retain) + len(forget), len(retain) + len(forget), dtype=torch.float64)
    for _, block in blocks(retain, forget):
        gram += block @ block.T
    _require_finite(gram)
    norms = gram.diagonal().sqrt()
    kept = norms > NEGLIGIBLE * norms.max()
    targets = kept[len(retain) :]
    dropped = int((~kept[: len(retain)]).sum())
    if not targets.any():
        return _none(forget, DirectionStatus.ZERO_FORGET, dropped=dropped)
    scale = torch.where(kept, norms, torch.ones_like(norms))
    cosines = gram / scale / scale.unsqueeze(1)
    weights = torch.zeros_like(norms)
    weights[kept] = min_norm_weights(cosines[kept][:, kept])
    share = math.sqrt(max(0.0, float(weights @ cosines @ weights)))
    if share <= max(min_cosine, STATIONARY):
        return _none(forget, DirectionStatus.IN_SPAN, share, dropped)
    length = float(norms[len(retain) :][targets].mean())
    vector = forget.new_empty(forget.shape[1])
    for part, block in blocks(retain, forget):
        vector[part] = -(weights / scale * (length / share)) @ block
    worst = float((cosines[: len(retain)] @ weights).abs().max()) / share if len(retain) else 0.0
    rank = int((weights > 0).sum())
    return Direction(vector, DirectionStatus.OK, share, 1 / share, rank, min(1.0, worst), dropped)


@torch.no_grad()
def null_space_descent(forget: Tensor, retain: Tensor, *, min_sine: float = 1e-3) -> Direction:
    """Return a step that is orthogonal to each row of ``retain`` and descends the loss of each of ``forget``.

    Each row of ``forget`` is projected onto the orthogonal complement of ``retain``, as in
    ``orthogonal_direction``; the step is the negated shortest convex combination of the unit projections
    (MGDA), as long as the rows of ``forget`` are on average. ``sine`` is a lower bound of its cosine with
    each −g_u.

    Rows of ``forget`` that are zero, or whose sine is below ``min_sine``, are left out. If none remains, or
    if the projections admit no common descent, the vector is zero. One row gives ``orthogonal_direction``.

    >>> rows = torch.tensor([[1.0, 1.0, 0.0], [5.0, 0.0, 1.0]])
    >>> null_space_descent(rows, torch.tensor([[2.0, 0.0, 0.0]])).vector.round(decimals=3)
    tensor([ 0.0000, -2.3030, -2.3030])
    """
    _require_rows(forget, retain)
    found = [orthogonal_direction(row, retain, min_sine=min_sine) for row in forget]
    free = [(row, step) for row, step in zip(forget, found, strict=True) if bool(step.vector.any())]
    if not free:
        return next((step for step in found if step.status is DirectionStatus.IN_SPAN), found[0])
    if len(free) == 1:
        return free[0][1]
    steps = torch.stack([step.vector for _, step in free])
    gram = steps.new_zeros(len(steps), len(steps), dtype=torch.float64)
    for _, block in blocks(steps[:-1], steps[-1]):
        gram += block @ block.T
    norms = gram.diagonal().sqrt()
    cosines = gram / norms / norms.unsqueeze(1)
    weights = min_norm_weights(cosines)
    share = math.sqrt(max(0.0, float(weights @ cosines @ weights)))
    first = free[0][1]
    if share <= STATIONARY:
        return _none(forget, DirectionStatus.IN_SPAN, dropped=first.dropped)
    factors = weights / norms * (float(norms.mean()) / share)
    vector = (factors.to(steps.dtype).unsqueeze(1) * steps).sum(0)
    sine = share * min(step.sine for _, step in free)
    # |cos| of a combination with a row is at most the sum of those of its parts.
    worst = sum(float(w) * step.max_cosine for w, (_, step) in zip(weights, free, strict=True)) / share
    return Direction(vector, first.status, sine, 1 / sine, first.rank, min(1.0, worst), first.dropped)


def _none(forget: Tensor, status: DirectionStatus, sine: float = 0.0, dropped: int = 0) -> Direction:
    return Direction(forget.new_zeros(forget.shape[1]), status, sine, 0.0, 0, 0.0, dropped)


def _require_rows(forget: Tensor, retain: Tensor) -> None:
    if forget.ndim != 2 or len(forget) == 0 or retain.ndim != 2 or retain.shape[1] != forget.shape[1]:
        raise ValueError(
            "forget and retain must be matrices with the same number of columns, and forget must have a row, "
            f"got {tuple(forget.shape)} and {tuple(retain.shape)}"
        )


def _require_finite(gram: Tensor) -> None:
    if not bool(gram.isfinite().all()):
        raise ValueError("forget or retain holds a NaN, an infinity or numbers too large to square")
