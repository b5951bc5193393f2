"""The direction that forgets without harming the retained clients."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from ._blocks import blocks

NEGLIGIBLE = 1e-12
"""Norm, relative to the median row, below which a vector counts as rounding error."""

RANK_CUT = 1e-14
"""Eigenvalue, relative to the largest, below which it counts as rounding error of the float64 Gram matrix.

Leaving out such a direction costs a cosine of at most √(RANK_CUT · rows) with any row: 1e-6 for a hundred
nearly equal rows, far less for others. A cut of 1e-10 would leave 1e-4.
"""

DISTINCT = 1e-4
"""Eigenvalue, for unit rows, below which it may be rounding error of the float32 Gram matrix."""

PIECES = {torch.float32: 16384, torch.float64: 2048}
"""Columns in one product of the Gram matrix; BLAS adds term by term, and longer sums exceed the cut."""

TILE = 64
"""Rows of the Gram matrix computed at once, from the diagonal on; the other half is not computed."""

PROJECTIONS = 5
"""Maximum number of projections; two suffice unless two rows differ by less than 1e-5."""

SETTLED = {torch.float32: 5e-9, torch.float64: 1e-14}
"""Cosine and relative norm error, by dtype, below which no further projection is needed."""

ADMITTED = 1e-8
"""Largest remaining cosine for which the float32 Gram matrix is accurate enough."""


class DirectionStatus(StrEnum):
    """The outcome of the search for a direction."""

    OK = "ok"
    ZERO_FORGET = "zero_forget"
    """Nothing to forget: the forget vector is zero, or negligible relative to the retained rows."""
    IN_SPAN = "in_span"
    """No admissible direction: every step that forgets also affects a retained client."""
    UNCONSTRAINED = "unconstrained"
    """All retained rows are zero, so the direction is plain descent."""


@dataclass(frozen=True)
class Direction:
    """A step for the model, with diagnostics."""

    vector: Tensor
    """The step, to be ADDED to the model; zero if there is no step."""
    status: DirectionStatus
    sine: float
    """Sine of the angle between the forget vector and the span of the retained rows."""
    amplification: float
    """The factor applied to the projected forget vector; 0 if there is no step."""
    rank: int
    """The dimension of the span of the retained rows."""
    max_cosine: float
    """The largest |cos| of ``vector``, as returned, with a row that was not dropped."""
    dropped: int
    """Number of rows that are zero, or negligible relative to the others."""


@torch.no_grad()
def orthogonal_direction(
    forget: Tensor,
    retain: Tensor,
    *,
    min_sine: float = 1e-3,
    max_amplification: float = math.inf,
) -> Direction:
    """Return the steepest descent of ``forget`` among all steps orthogonal to each row of ``retain``.

    FedOSD (Pan et al., "Federated Unlearning with Gradient Descent and Conflict Mitigation", AAAI 2025),
    Eq. 6: −g_u is projected onto the orthogonal complement of the g_i and rescaled to the norm of g_u. Pass
    either gradients or displacements ω − ω_i; the result has the norm of ``forget``. ``max_amplification``
    bounds the rescaling factor.

    Both tensors are float32 or float64; the vector has the dtype of ``forget``. Rows may be strided or
    memory-mapped; the memory layout does not change a single bit. Rows are read in blocks, two to four times
    in float32 and more often if they nearly coincide. 1000 rows of 11 million float32 columns need less than
    64 MB of extra memory, including the vector.

    ``status`` reports degenerate cases. A zero ``forget`` (or one below 1e-12 of the median row) and a sine
    below ``min_sine`` give the zero vector. If all rows are zero, the direction is −g_u. Duplicate and
    dependent rows only lower the rank. Rows below 1e-12 of the median norm are dropped and counted. A NaN, an
    infinity or a norm beyond float64 raises an error that names the row.

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
    """The rows of ``retain`` (or those kept), followed by ``forget``; never copied into one matrix."""

    retain: Tensor
    forget: Tensor
    kept: Tensor | None = None

    @property
    def dropped(self) -> int:
        return 0 if self.kept is None else len(self.retain) - len(self.kept)

    def gram(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return the cosine of each pair (above the diagonal) and the norms, from products in ``dtype``.

        Products are summed in float64. For similar clients the products must be float64 too; otherwise
        rounding hides the difference between them (a difference of 1e-4 is 1e-8 in the Gram matrix).
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
        """Write the linear combination to ``out``; return its products with each vector and its square."""
        products = torch.zeros_like(coefficients)
        square = coefficients.new_zeros(())
        for part, block in blocks(self.retain, self.forget, self.kept):
            out[part] = block.T @ coefficients
            combined = out[part].double()
            products += block @ combined
            square += combined @ combined
        return products, float(square)


def _from_float32(vectors: _Vectors, min_sine: float, max_amplification: float) -> Direction | None:
    """Use a float32 Gram matrix: several times faster; return None where it is not accurate enough."""
    if vectors.forget.dtype != torch.float32 or vectors.retain.dtype != torch.float32:
        return None
    cosines, norms = vectors.gram(torch.float32)
    least, largest = float(norms.min()), float(norms.max())
    # Every row must be significant and every square in range; a NaN fails this check too.
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
    """Compute Eq. 6 from the ``cosines`` of forget with each row and (G Gᵀ)⁺ = root @ root.T.

    Rows are scaled to length 1, which does not change their span. The projection is a linear combination of
    all vectors; only its coefficients are kept and refined.
    """
    combination = torch.cat([root @ (root.T @ cosines), -cosines.new_ones(1)])
    sine = math.sqrt(max(0.0, 1 - float((root.T @ cosines).square().sum())))
    vector, rank = torch.empty_like(vectors.forget), root.shape[1]
    worst = math.inf
    # Deviation: the paper projects once; repeated projection removes what rounding left in the span.
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
    """Return R with R Rᵀ = gram⁺ and one column for each dimension of the span."""
    eigenvalues: Tensor
    eigenvectors: Tensor
    eigenvalues, eigenvectors = torch.linalg.eigh(gram, UPLO="U")
    # Deviation: the authors' code cuts at an absolute 1e-6, so the result depends on the gradients' norm, and
    # it leaves the cut values in place instead of setting them to zero.
    first = int((eigenvalues <= max(cut, RANK_CUT * float(eigenvalues[-1]))).sum())
    # Eigenvalues ascend, so the remaining columns are contiguous and need no copy.
    return eigenvectors[:, first:].div_(eigenvalues[first:].sqrt())


def _require_matching(forget: Tensor, retain: Tensor) -> None:
    for name, given in (("forget", forget), ("retain", retain)):
        if not isinstance(given, Tensor):
            raise ValueError(f"{name} must be a tensor, got a {type(given).__name__}: torch.stack joins rows")
    if forget.ndim != 1 or retain.ndim != 2 or retain.shape[1] != len(forget):
        raise ValueError(
            "retain must be a matrix with a column for each element of forget, "
            f"got {tuple(retain.shape)} and {tuple(forget.shape)}"
        )
    for name, tensor in (("forget", forget), ("retain", retain)):
        if tensor.dtype not in (torch.float32, torch.float64):
            raise ValueError(f"{name} must be float32 or float64, got {tensor.dtype}")


def _finite_norms(forget: Tensor, retain: Tensor) -> tuple[float, Tensor]:
    """Return the norms of ``forget`` and of each row; raise an error if one is not finite."""
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
