"""What a step may keep: the part that does not lead back."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ._blocks import blocks
from ._quadratic import nonnegative

NEGLIGIBLE = 1e-12
"""An ``away`` this much shorter than the displacement is rounding and has no direction worth keeping."""

VANISHING = 1e-6
"""A projection this much shorter than the displacement is mostly rounding, and no step to stretch."""

SMALL = 1e-4
"""A square that is this little of what it was before a subtraction has lost digits, and is summed anew."""


@torch.no_grad()
def project_off(
    displacement: Tensor,
    away: Tensor,
    *,
    always: bool = False,
    rescale: bool = True,
) -> Tensor:
    """A client's displacement ω − ω_i without its part along ``away`` = ω − ω⁰, where that leads back to ω⁰.

    FedOSD (Pan et al., "Federated Unlearning with Gradient Descent and Conflict Mitigation", AAAI 2025),
    Eq. 7, and the rescaling to the former norm of Algorithm 1, line 17. Displacements are subtracted, so
    one with a positive product with ``away`` shortens the way back; any other is returned as it is, unless
    ``always``, as in the released code. Subtracting a mean of results never brings the model nearer to ω⁰.

    Successive requests have one row of ``away`` each, ω − ω⁰ of that request. The result is then the nearest
    vector that leads back to none of them (non-negative least squares; with ``always``, the part orthogonal
    to all rows), whatever their order, and rescaled likewise.

    A zero or negligible ``away`` (1e-12 of the displacement) changes nothing. A displacement parallel to
    ``away`` (less than 1e-6 of it remains) gives the zero vector, which is not rescaled. The result is
    a new tensor of the displacement's type. A NaN or an infinity is refused.

    >>> project_off(torch.tensor([3.0, 4.0]), torch.tensor([0.0, 2.0]))
    tensor([5., 0.])
    >>> project_off(torch.tensor([3.0, -4.0]), torch.tensor([0.0, 2.0]))
    tensor([ 3., -4.])
    """
    if displacement.ndim != 1 or away.ndim not in (1, 2) or displacement.shape != away.shape[-1:]:
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
    # Deviation: the authors' code divides by the norm of whatever remains, however little that is.
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
    shares = torch.linalg.pinv(cosines, hermitian=True) @ along if always else nonnegative(cosines, along)
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


@torch.no_grad()
def project_between(displacement: Tensor, normals: Tensor) -> Tensor:
    """The vector nearest to ``displacement`` that has no negative product with any row of ``normals``.

    The exact projection on an intersection of half-spaces, for a few rows; zero rows ask for nothing. The
    result is a new tensor of the displacement's type. A NaN or an infinity is refused.

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
    push = nonnegative(cosines, -gram[:-1, -1] / lengths) / lengths
    result = torch.empty_like(displacement)
    for part, block in blocks(normals, displacement):
        result[part] = block[-1] + push @ block[:-1]
    return result
