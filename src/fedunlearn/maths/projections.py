"""Projections that remove the part of a step that leads back."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ._blocks import blocks
from ._quadratic import nonnegative

NEGLIGIBLE = 1e-12
"""Length of ``away``, relative to the displacement, below which it counts as rounding error."""

VANISHING = 1e-6
"""Relative length below which a projection is mostly rounding error and must not be rescaled."""

SMALL = 1e-4
"""Relative size below which a square has lost digits in a subtraction and is summed again."""


@torch.no_grad()
def project_off(
    displacement: Tensor,
    away: Tensor,
    *,
    always: bool = False,
    rescale: bool = True,
) -> Tensor:
    """Remove the part of a displacement ω − ω_i along ``away`` = ω − ω⁰ if it leads back to ω⁰.

    FedOSD (Pan et al., "Federated Unlearning with Gradient Descent and Conflict Mitigation", AAAI 2025),
    Eq. 7, and the rescaling to the original norm of Algorithm 1, line 17. Displacements are subtracted from
    the model, so a positive product with ``away`` shortens the distance to ω⁰. Other displacements are
    returned unchanged, unless ``always`` is set, as in the released code. Subtracting a mean of results never
    brings the model closer to ω⁰.

    Successive requests have one row of ``away`` each, ω − ω⁰ of that request. The result is then the nearest
    vector that leads back to none of them (non-negative least squares; with ``always``, the part orthogonal
    to all rows), whatever their order, and rescaled likewise.

    A zero or negligible ``away`` (1e-12 of the displacement) changes nothing. A displacement parallel to
    ``away`` (less than 1e-6 of it remains) gives the zero vector. The result is a new tensor of the
    displacement's dtype. NaN and infinity raise an error.

    >>> project_off(torch.tensor([3.0, 4.0]), torch.tensor([0.0, 2.0]))
    tensor([5., 0.])
    >>> project_off(torch.tensor([3.0, -4.0]), torch.tensor([0.0, 2.0]))
    tensor([ 3., -4.])
    """
    rows = away.ndim == 1 or (away.ndim == 2 and len(away) > 0)
    if displacement.ndim != 1 or not rows or displacement.shape != away.shape[-1:]:
        raise ValueError(
            "expected a vector and one or more rows of its length, "
            f"got {tuple(displacement.shape)} and {tuple(away.shape)}"
        )
    if away.ndim == 2:
        if len(away) != 1:
            return _project_off_all(displacement, away, always, rescale)
        away = away[0]
    square = product = reach = 0.0
    for _, (own, anchor) in blocks(displacement.unsqueeze(0), away):
        square += float(own @ own)
        product += float(own @ anchor)
        reach += float(anchor @ anchor)
    if not math.isfinite(square + reach):
        name = "displacement" if math.isfinite(reach) else "away"
        raise ValueError(f"{name} holds a NaN, an infinity or numbers too large to square")
    if math.sqrt(reach) <= NEGLIGIBLE * math.sqrt(square) or not (always or product > 0):
        return displacement.clone()

    share = product / reach  # Eq. 7
    remaining = square - share * product
    if remaining < SMALL * square:
        remaining = 0.0
        for _, (own, anchor) in blocks(displacement.unsqueeze(0), away):
            rest = own.sub_(anchor, alpha=share)
            remaining += float(rest @ rest)
    norm, remainder = math.sqrt(square), math.sqrt(remaining)
    # Deviation: the authors' code divides by the norm of the remainder, however small.
    if remainder <= VANISHING * norm:
        return torch.zeros_like(displacement)
    result = torch.empty_like(displacement)
    scale = norm / remainder if rescale else 1.0  # Alg. 1, line 17
    for part, (own, anchor) in blocks(displacement.unsqueeze(0), away):
        result[part] = own.sub_(anchor, alpha=share).mul_(scale)
    return result


def _project_off_all(displacement: Tensor, away: Tensor, always: bool, rescale: bool) -> Tensor:
    """Eq. 7 for several anchors: g − Aᵀμ that is shortest, with μ ≥ 0 unless ``always``."""
    gram = displacement.new_zeros(len(away) + 1, len(away) + 1, dtype=torch.float64)
    for _, block in blocks(away, displacement):
        gram += block @ block.T
    if not bool(gram.isfinite().all()):
        raise ValueError("displacement or away holds a NaN, an infinity or numbers too large to square")
    norm = math.sqrt(float(gram[-1, -1]))
    lengths = gram.diagonal()[:-1].sqrt()
    kept = lengths > NEGLIGIBLE * norm
    lengths = lengths.where(kept, torch.ones_like(lengths))
    cosines = (gram[:-1, :-1] / lengths / lengths.unsqueeze(1)) * (kept & kept.unsqueeze(1))
    along = gram[:-1, -1] / lengths * kept
    if always:
        shares = torch.linalg.pinv(cosines, hermitian=True) @ along
    else:
        unit = _unit(norm)
        shares = nonnegative(cosines, along / unit) * unit
    if not shares.any():
        return displacement.clone()
    shares = shares / lengths
    result = torch.empty_like(displacement)
    remaining = 0.0
    for part, block in blocks(away, displacement):
        rest = block[-1] - shares @ block[:-1]
        remaining += float(rest @ rest)
        result[part] = rest
    remainder = math.sqrt(remaining)
    if remainder <= VANISHING * norm:
        return torch.zeros_like(displacement)
    return result.mul_(norm / remainder) if rescale else result


def _unit(norm: float) -> float:
    """The power of two next above a norm: dividing by it is exact, and the tolerance of ``nonnegative``
    then refers to a displacement of about 1."""
    return math.ldexp(1.0, math.frexp(norm)[1])


@torch.no_grad()
def project_between(displacement: Tensor, normals: Tensor) -> Tensor:
    """Return the vector nearest to ``displacement`` with no negative product with any row of ``normals``.

    This is the exact projection on an intersection of half-spaces, for a few rows. Zero rows impose no
    constraint. The result is a new tensor of the displacement's dtype. NaN and infinity raise an error.

    >>> project_between(torch.tensor([3.0, -4.0]), torch.tensor([[0.0, 2.0], [1.0, 0.0]]))
    tensor([3., 0.])
    """
    if displacement.ndim != 1 or normals.ndim != 2 or normals.shape[1] != len(displacement):
        raise ValueError(
            "normals must be a matrix with a column for each element of displacement, "
            f"got {tuple(normals.shape)} and {tuple(displacement.shape)}"
        )
    gram = displacement.new_zeros(len(normals) + 1, len(normals) + 1, dtype=torch.float64)
    for _, block in blocks(normals, displacement):
        gram += block @ block.T
    if not bool(gram.isfinite().all()):
        raise ValueError("displacement or normals hold a NaN, an infinity or numbers too large to square")
    lengths = gram.diagonal()[:-1].sqrt()
    lengths[lengths == 0] = 1.0
    cosines = gram[:-1, :-1] / lengths / lengths.unsqueeze(1)
    unit = _unit(math.sqrt(float(gram[-1, -1])))
    push = nonnegative(cosines, -gram[:-1, -1] / lengths / unit) * unit / lengths
    result = torch.empty_like(displacement)
    for part, block in blocks(normals, displacement):
        result[part] = block[-1] + push @ block[:-1]
    return result
