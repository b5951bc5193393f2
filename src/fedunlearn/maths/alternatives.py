"""Alternatives to the orthogonal direction, for comparison."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ._blocks import blocks
from .directions import Direction, DirectionStatus, orthogonal_direction
from .geometry import cosine
from .pareto import STATIONARY, min_norm_weights


@torch.no_grad()
def plain_descent(forget: Tensor, retain: Tensor) -> Direction:
    """Return −g_u, regardless of the other clients (ablation M2 of FedOSD).

    >>> plain_descent(torch.tensor([3.0, 4.0]), torch.tensor([[2.0, 0.0]])).vector
    tensor([-3., -4.])
    """
    found = Direction(-forget, DirectionStatus.UNCONSTRAINED, 1.0, 1.0, 0, _worst(forget, retain), 0)
    return found if bool(forget.any()) else _none(forget, DirectionStatus.ZERO_FORGET)


@torch.no_grad()
def random_direction(
    forget: Tensor, retain: Tensor, generator: torch.Generator, *, spread: float = 1.0
) -> Direction:
    """Return a random step orthogonal to each row of ``retain`` that still forgets (M4 of FedOSD).

    The paper says no more than that. In many dimensions a purely random vector is nearly orthogonal to g_u
    and would forget nothing, so it is mixed with the steepest direction. ``spread`` is the length of the
    random part relative to the steepest part; ``inf`` keeps only the random part. Degenerate cases are those
    of ``orthogonal_direction``.
    """
    if not spread >= 0:
        raise ValueError(f"spread must not be negative, got {spread}")
    norm = torch.linalg.vector_norm(forget)
    if norm == 0:
        return _none(forget, DirectionStatus.ZERO_FORGET)
    drawn = torch.randn(len(forget), generator=generator, dtype=forget.dtype)
    drawn *= norm / torch.linalg.vector_norm(drawn)
    mixed = drawn if math.isinf(spread) else forget + spread * drawn
    found = orthogonal_direction(mixed, retain)
    length = torch.linalg.vector_norm(found.vector)
    if length == 0:
        return found
    sign = -1.0 if float(found.vector @ forget) > 0 else 1.0
    return Direction(
        found.vector * (sign * norm / length),
        found.status,
        found.sine,
        found.amplification,
        found.rank,
        found.max_cosine,
        found.dropped,
    )


@torch.no_grad()
def common_descent(forget: Tensor, retain: Tensor, *, match_norm: bool = False) -> Direction:
    """Return −Σ λ_i g_i of minimum norm over convex weights; it descends all losses at once (M3 of FedOSD).

    This is MGDA (Désidéri, 2012; Fliege and Svaiter, 2000), solved exactly on the Gram matrix. If no step
    helps all clients (the minimum norm vanishes), the vector is zero and the status is ``in_span``.
    ``match_norm`` rescales the step to the norm of ``forget``.

    >>> common_descent(torch.tensor([2.0, 0.0]), torch.tensor([[0.0, 2.0]])).vector
    tensor([-1., -1.])
    """
    gram = forget.new_zeros(len(retain) + 1, len(retain) + 1, dtype=torch.float64)
    for _, block in blocks(retain, forget):
        gram += block @ block.T
    norms = gram.diagonal().sqrt()
    norm, longest, shortest = float(norms[-1]), float(norms.max()), float(norms.min())
    if norm == 0:
        return _none(forget, DirectionStatus.ZERO_FORGET)
    if shortest <= STATIONARY * longest:
        return _none(forget, DirectionStatus.IN_SPAN)
    weights = min_norm_weights(gram)
    vector = torch.empty_like(forget)
    for part, block in blocks(retain, forget):
        vector[part] = -(weights @ block)
    length = math.sqrt(max(0.0, float(weights @ gram @ weights)))
    if length <= STATIONARY * longest:
        return _none(forget, DirectionStatus.IN_SPAN)
    factor = norm / length if match_norm else 1.0
    return Direction(
        vector.mul_(factor),
        DirectionStatus.OK,
        1.0,
        factor,
        int((weights > 0).sum()),
        _worst(vector, retain),
        0,
    )


def _worst(vector: Tensor, retain: Tensor) -> float:
    return max((abs(cosine(row, vector)) for row in retain), default=0.0)


def _none(forget: Tensor, status: DirectionStatus) -> Direction:
    return Direction(torch.zeros_like(forget), status, 0.0, 0.0, 0, 0.0, 0)
