"""Where to step: the direction that forgets without touching what the others have learned."""

from __future__ import annotations

import math
from collections.abc import Iterator
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

PIECE = 2048
"""Columns in one product of the Gram matrix; BLAS adds term by term, and longer sums round above RANK_CUT."""

REFINEMENTS = 4
"""At most; one is enough unless two rows differ by less than 1e-5."""


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
    from a file: they are read four times, in blocks (more often only where rows all but coincide), and
    1000 rows of 11 million float32 columns need less than 64 MB beside them, the vector included.

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

    size, sizes = _finite_norms(forget, retain)
    present = sizes[sizes > 0]
    typical = float(present.median()) if len(present) > 0 else 0.0
    kept = torch.nonzero(sizes > NEGLIGIBLE * typical).squeeze(1)
    dropped = len(retain) - len(kept)
    if size <= NEGLIGIBLE * typical:
        return Direction(torch.zeros_like(forget), DirectionStatus.ZERO_FORGET, 0.0, 0.0, 0, 0.0, dropped)
    if len(kept) == 0:
        return Direction(-forget, DirectionStatus.UNCONSTRAINED, 1.0, 1.0, 0, 0.0, dropped)

    vectors = _Vectors(retain, kept, forget)
    cosines, norms = vectors.gram()
    # Eq. 6: (G Gᵀ)⁺ = root @ root.T, of rows scaled to length 1, which leaves their span as it is.
    root = _inverse_root(cosines[:-1, :-1])
    rank = root.shape[1]
    combination = torch.cat([root @ (root.T @ cosines[:-1, -1]), -cosines.new_ones(1)])
    del cosines
    # The projection is a combination of all vectors, and only its coefficients are kept and refined.
    # Deviation: the paper projects once; projecting the result again removes what rounding left in the span.
    for _ in range(REFINEMENTS):
        products, square = vectors.measure(combination / norms)
        leftover = root.T @ (products / norms)[:-1]
        combination[:-1] -= root @ leftover
        spanned = float(leftover @ leftover)
        if spanned <= 1e-14 * max(square, min_sine**2):
            break
    del root

    sine = min(1.0, math.sqrt(max(0.0, square - spanned)))
    if sine < min_sine:
        return Direction(torch.zeros_like(forget), DirectionStatus.IN_SPAN, sine, 0.0, rank, 0.0, dropped)
    # Deviation: the μ printed below Eq. 6 has ‖g_u‖⁴ where ‖d‖ = ‖g_u‖ needs ‖g_u‖³; the norm is set here.
    amplification = min(1 / sine, max_amplification)
    vector = torch.empty_like(forget)
    products, square = vectors.measure(combination * (amplification * norms[-1]) / norms, out=vector)
    max_cosine = float((products / norms)[:-1].abs().max()) / math.sqrt(square)
    return Direction(vector, DirectionStatus.OK, sine, amplification, rank, max_cosine, dropped)


@dataclass(frozen=True)
class _Vectors:
    """The kept rows of ``retain`` and, last, ``forget``: never in one piece, always in float64."""

    retain: Tensor
    kept: Tensor
    forget: Tensor

    def gram(self) -> tuple[Tensor, Tensor]:
        """The cosine of each pair, and the norms.

        Float64 before the product, not only in the sum: float32 products would drown whatever tells two
        similar clients apart (a difference of 1e-4 is 1e-8 in the Gram matrix).
        """
        size = len(self.kept) + 1
        products = self.forget.new_zeros(size, size, dtype=torch.float64)
        product = torch.empty_like(products)
        for _, block in self._blocks():
            for piece in block.split(PIECE, dim=1):
                products += torch.mm(piece, piece.T, out=product)
        norms = products.diagonal().sqrt()
        return products.div_(norms).div_(norms.unsqueeze(1)), norms

    def measure(self, coefficients: Tensor, out: Tensor | None = None) -> tuple[Tensor, float]:
        """The products of each vector with their combination, and of that with itself.

        The combination is kept only if there is an ``out`` for it, and measured as it is stored there.
        """
        products = torch.zeros_like(coefficients)
        square = coefficients.new_zeros(())
        for part, block in self._blocks():
            combined = block.T @ coefficients
            if out is not None:
                out[part] = combined
                combined = out[part].double()
            products += block @ combined
            square += combined @ combined
        return products, float(square)

    def _blocks(self) -> Iterator[tuple[slice, Tensor]]:
        size = len(self.kept) + 1
        buffer: Tensor | None = None
        for part in blocks(len(self.forget), rows=size):
            if buffer is None:
                buffer = self.forget.new_empty(size, part.stop - part.start, dtype=torch.float64)
            block = buffer[:, : part.stop - part.start]
            rows = self.retain[:, part]
            block[:-1] = rows if len(rows) == len(self.kept) else rows[self.kept]
            block[-1] = self.forget[part]
            yield part, block


def _inverse_root(gram: Tensor) -> Tensor:
    """A matrix R with R Rᵀ = gram⁺, with one column for each dimension of the span."""
    eigenvalues: Tensor
    eigenvectors: Tensor
    eigenvalues, eigenvectors = torch.linalg.eigh(gram)
    # Deviation: the authors' code cuts at an absolute 1e-6, so that the norm of the gradients decides, and
    # leaves what it cuts in place of setting it to zero.
    first = int((eigenvalues <= RANK_CUT * eigenvalues[-1]).sum())
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
    square = forget.new_zeros((), dtype=torch.float64)
    squares = retain.new_zeros(len(retain), dtype=torch.float64)
    for part in blocks(len(forget), rows=len(retain) + 1):
        square += forget[part].double().square().sum()
        squares += retain[:, part].double().square().sum(1)
    if not square.isfinite():
        raise ValueError("forget holds a NaN, an infinity or numbers too large to square: reject that reply")
    broken = torch.nonzero(~squares.isfinite()).squeeze(1)
    if len(broken) > 0:
        raise ValueError(
            f"row {int(broken[0])} of retain holds a NaN, an infinity or numbers too large to square: "
            "reject that client's reply"
        )
    return math.sqrt(float(square)), squares.sqrt()
