"""Where to step: the direction that forgets without touching what the others have learned."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from ._blocks import blocks

NEGLIGIBLE = 1e-12
"""A vector this much shorter than the typical one is rounding, not a message."""

RANK_CUT = 1e-14
"""An eigenvalue with a smaller share of the largest is rounding of the float64 Gram matrix.

A direction that is left out costs a cosine of at most √(RANK_CUT · rows) with any row: 1e-6 for a hundred
rows that all but coincide, far less for others. A cut of 1e-10 would leave 1e-4.
"""

DISTINCT = 1e-4
"""A smaller eigenvalue, of rows of length 1, may be rounding of the float32 Gram matrix."""

PIECES = {torch.float32: 16384, torch.float64: 2048}
"""Columns in one product of the Gram matrix; BLAS adds term by term, and longer sums round above the cut."""

TILE = 64
"""Rows of the Gram matrix that are made at once, from the diagonal on; the other half is not made."""

PROJECTIONS = 5
"""At most; two are enough unless two rows differ by less than 1e-5."""

SETTLED = {torch.float32: 5e-9, torch.float64: 1e-14}
"""Cosines, and relative errors of the norm, that need no further projection, by the type of the vector."""

ADMITTED = 1e-8
"""With a larger cosine left, the float32 Gram matrix was not enough."""


class DirectionStatus(StrEnum):
    """What became of the search for a direction."""

    OK = "ok"
    ZERO_FORGET = "zero_forget"
    """Nothing to forget: the forget vector is zero, or negligible beside the retained ones."""
    IN_SPAN = "in_span"
    """No admissible direction: each step that forgets would also move some retained client."""
    UNCONSTRAINED = "unconstrained"
    """No retained row is non-zero, so the direction is plain descent."""


@dataclass(frozen=True)
class Direction:
    """A step for the model, with what is known about it."""

    vector: Tensor
    """To be ADDED to the model; zero when there is no step to take."""
    status: DirectionStatus
    sine: float
    """Of the angle between the forget vector and the span of the retained rows."""
    amplification: float
    """The factor that was applied to the projected forget vector; 0 when there is no step."""
    rank: int
    """The dimension of the span of the retained rows."""
    max_cosine: float
    """The largest |cos| of ``vector``, as returned, with a row that was not dropped."""
    dropped: int
    """How many rows are zero, or negligible beside the others."""


@torch.no_grad()
def orthogonal_direction(
    forget: Tensor,
    retain: Tensor,
    *,
    min_sine: float = 1e-3,
    max_amplification: float = math.inf,
) -> Direction:
    """The steepest descent of ``forget`` among all steps orthogonal to each row of ``retain``.

    FedOSD (Pan et al., "Federated Unlearning with Gradient Descent and Conflict Mitigation", AAAI 2025),
    Eq. 6: the projection of −g_u off the span of the g_i, with the norm of g_u. Gradients and
    displacements ω − ω_i serve alike, because the result has the norm of ``forget``;
    ``max_amplification`` bounds how far the projection may be stretched to reach that norm.

    Both tensors are float32 or float64; the vector has the type of ``forget``. Rows may be strided, or mapped
    from a file; where they lie in memory changes no bit. They are read in blocks, two to four times if they
    are float32 and more often where they all but coincide; 1000 rows of 11 million float32 columns need less
    than 64 MB beside them, the vector included.

    Degenerate cases are reported in ``status``: a zero ``forget`` (or one below 1e-12 of the median row) and
    a sine below ``min_sine`` give the zero vector; without a non-zero row the direction is −g_u.
    Duplicates and dependent rows only lower the rank. Rows below 1e-12 of the median norm are dropped and
    counted. A NaN, an infinity, or a norm beyond float64 is refused with the number of the row.

    >>> step = orthogonal_direction(torch.tensor([3.0, 4.0]), torch.tensor([[2.0, 0.0]]))
    >>> step.vector.round(decimals=6), step.status.value, round(step.sine, 6)
    (tensor([ 0., -5.]), 'ok', 0.8)
    """
    _require_matching(forget, retain)
    if not 0 < min_sine <= 1:
        raise ValueError(f"min_sine must lie in (0, 1], got {min_sine}")
    if not max_amplification >= 1:
        raise ValueError(f"max_amplification must be at least 1, got {max_amplification}")

    vectors = _Vectors(retain, forget)
    if (step := _from_float32(vectors, min_sine, max_amplification)) is not None:
        return step

    size, sizes = _finite_norms(forget, retain)
    present = sizes[sizes > 0]
    typical = float(present.median()) if len(present) > 0 else 0.0
    kept = torch.nonzero(sizes > NEGLIGIBLE * typical).squeeze(1)
    dropped = len(retain) - len(kept)
    if size <= NEGLIGIBLE * typical:
        return Direction(torch.zeros_like(forget), DirectionStatus.ZERO_FORGET, 0.0, 0.0, 0, 0.0, dropped)
    if len(kept) == 0:
        return Direction(-forget, DirectionStatus.UNCONSTRAINED, 1.0, 1.0, 0, 0.0, dropped)

    if dropped > 0:
        vectors = _Vectors(retain, forget, kept)
        if (step := _from_float32(vectors, min_sine, max_amplification)) is not None:
            return step
    cosines, norms = vectors.gram(torch.float64)
    root = _inverse_root(cosines[:-1, :-1])
    return _project(vectors, root, cosines[:-1, -1].clone(), norms, min_sine, max_amplification)


@dataclass(frozen=True)
class _Vectors:
    """The rows of ``retain``, or those kept of them, and, last, ``forget``: never in one piece."""

    retain: Tensor
    forget: Tensor
    kept: Tensor | None = None

    @property
    def dropped(self) -> int:
        return 0 if self.kept is None else len(self.retain) - len(self.kept)

    def gram(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The cosine of each pair (above the diagonal), and the norms, from products of ``dtype``.

        These are summed in float64; where clients are similar, they must be of float64 themselves, or would
        drown whatever tells two clients apart (a difference of 1e-4 is 1e-8 in the Gram matrix).
        """
        size = len(self.retain) - self.dropped + 1
        products = self.forget.new_zeros(size, size, dtype=torch.float64)
        square = self.forget.new_zeros((), dtype=torch.float64)
        tile = min(TILE, (size + 1) // 2)
        for _, block in blocks(self.retain, self.forget, self.kept, dtype):
            forget = block[-1].double()
            square += forget @ forget
            for piece in block.split(PIECES[dtype], dim=1):
                for start in range(0, size, tile):
                    rows = slice(start, start + tile)
                    products[rows, start:] += piece[rows] @ piece[start:].T
        products[-1, -1] = square  # the norm of the result is that of forget, to the last digit
        norms = products.diagonal().sqrt()
        return products.div_(norms).div_(norms.unsqueeze(1)), norms

    def combine(self, coefficients: Tensor, out: Tensor) -> tuple[Tensor, float]:
        """Writes their combination to ``out``; of that, as stored, the products with each and with itself."""
        products = torch.zeros_like(coefficients)
        square = coefficients.new_zeros(())
        for part, block in blocks(self.retain, self.forget, self.kept):
            out[part] = block.T @ coefficients
            combined = out[part].double()
            products += block @ combined
            square += combined @ combined
        return products, float(square)


def _from_float32(vectors: _Vectors, min_sine: float, max_amplification: float) -> Direction | None:
    """The direction with the Gram matrix in float32: several times faster, but not enough for all rows."""
    if vectors.forget.dtype != torch.float32 or vectors.retain.dtype != torch.float32:
        return None
    cosines, norms = vectors.gram(torch.float32)
    least, largest = float(norms.min()), float(norms.max())
    # No row may be negligible, and no square leave the range; a NaN fails as well.
    if not (least > NEGLIGIBLE * max(1.0, largest) and largest < 1 / NEGLIGIBLE and len(norms) > 1):
        return None
    root = _inverse_root(cosines[:-1, :-1], DISTINCT)
    if root.shape[1] < len(root):
        return None
    step = _project(vectors, root, cosines[:-1, -1].clone(), norms, min_sine, max_amplification)
    return step if step.status is DirectionStatus.OK and step.max_cosine <= ADMITTED else None


def _project(
    vectors: _Vectors,
    root: Tensor,
    cosines: Tensor,
    norms: Tensor,
    min_sine: float,
    max_amplification: float,
) -> Direction:
    """Eq. 6, from the ``cosines`` of forget with each row and (G Gᵀ)⁺ = root @ root.T.

    All is of rows scaled to length 1, which leaves their span as it is. The projection is a combination of
    all vectors, and only its coefficients are kept and refined.
    """
    combination = torch.cat([root @ (root.T @ cosines), -cosines.new_ones(1)])
    sine = math.sqrt(max(0.0, 1 - float((root.T @ cosines).square().sum())))
    vector, rank = torch.empty_like(vectors.forget), root.shape[1]
    worst = math.inf
    # Deviation: the paper projects once; projecting the result again removes what rounding left in the span.
    for _ in range(PROJECTIONS):
        admitted = max(sine, min_sine)
        # Deviation: the μ below Eq. 6 has ‖g_u‖⁴ where ‖d‖ = ‖g_u‖ needs ‖g_u‖³; the norm is set here.
        amplification = min(1 / admitted, max_amplification)
        length = amplification * float(norms[-1])
        products, square = vectors.combine(combination * length / norms, out=vector)
        products = (products / norms / length)[:-1]
        leftover = root.T @ products
        size = math.sqrt(square) / length
        sine = min(1.0, math.sqrt(max(0.0, size**2 - float(leftover @ leftover))))
        before, worst = worst, float(products.abs().max()) / max(sine, min_sine)
        off = abs(max(sine, min_sine) / admitted - 1)
        if off <= SETTLED[vector.dtype] and (worst <= SETTLED[vector.dtype] or worst > before / 2):
            break
        combination[:-1] -= root @ leftover
    if sine < min_sine:
        return Direction(vector.zero_(), DirectionStatus.IN_SPAN, sine, 0.0, rank, 0.0, vectors.dropped)
    max_cosine = float(products.abs().max()) / size
    return Direction(vector, DirectionStatus.OK, admitted, amplification, rank, max_cosine, vectors.dropped)


def _inverse_root(gram: Tensor, cut: float = 0.0) -> Tensor:
    """A matrix R with R Rᵀ = gram⁺, with one column for each dimension of the span."""
    eigenvalues: Tensor
    eigenvectors: Tensor
    eigenvalues, eigenvectors = torch.linalg.eigh(gram, UPLO="U")
    # Deviation: the authors' code cuts at an absolute 1e-6, so that the norm of the gradients decides, and
    # leaves what it cuts in place of setting it to zero.
    first = int((eigenvalues <= max(cut, RANK_CUT * float(eigenvalues[-1]))).sum())
    # In ascending order, what remains is one piece, and needs no copy.
    return eigenvectors[:, first:].div_(eigenvalues[first:].sqrt())


def _require_matching(forget: Tensor, retain: Tensor) -> None:
    if forget.ndim != 1 or retain.ndim != 2 or retain.shape[1] != len(forget):
        raise ValueError(
            "retain must be a matrix with a column for each element of forget, "
            f"got {tuple(retain.shape)} and {tuple(forget.shape)}"
        )
    for name, tensor in (("forget", forget), ("retain", retain)):
        if tensor.dtype not in (torch.float32, torch.float64):
            raise ValueError(f"{name} must be float32 or float64, got {tensor.dtype}")


def _finite_norms(forget: Tensor, retain: Tensor) -> tuple[float, Tensor]:
    """The norm of ``forget`` and of each row, once it is sure that they are finite."""
    squares = torch.zeros(len(retain) + 1, dtype=torch.float64, device=forget.device)
    for _, block in blocks(retain, forget):
        squares += torch.linalg.vector_norm(block, dim=1).square()
    square, squares = squares[-1], squares[:-1]
    if not square.isfinite():
        raise ValueError("forget holds a NaN, an infinity or numbers too large to square: reject that reply")
    broken = torch.nonzero(~squares.isfinite()).squeeze(1)
    if len(broken) > 0:
        raise ValueError(
            f"row {int(broken[0])} of retain holds a NaN, an infinity or numbers too large to square: "
            "reject that client's reply"
        )
    return math.sqrt(float(square)), squares.sqrt()
