"""Non-negative least squares: small problems, exact, in float64."""

from __future__ import annotations

import torch
from torch import Tensor

TOLERANCE = 1e-12

DEPENDENT = 1e-12
"""Relative eigenvalue below which the rows of a Gram matrix count as dependent.

Smaller eigenvalues have too few correct digits, and the coefficients would be noise.
"""


def nonnegative(gram: Tensor, linear: Tensor) -> Tensor:
    """Return the λ ≥ 0 that minimises ½ λᵀ gram λ − linearᵀ λ, for a positive semi-definite ``gram``.

    This is the active-set method of Lawson and Hanson (1974): the coefficient with the steepest slope joins
    the active set, and coefficients that the least-squares solution would make negative leave it.
    """
    size = len(linear)
    found = torch.zeros_like(linear)
    free = torch.zeros(size, dtype=torch.bool, device=linear.device)
    scale = TOLERANCE * max(float(linear.abs().max()), float(gram.diagonal().abs().max()), 1e-300)
    for _ in range(3 * size):
        slope = linear - gram @ found
        slope[free] = -torch.inf
        if float(slope.max()) <= scale:
            break
        free[slope.argmax()] = True
        while True:
            inside = torch.nonzero(free).squeeze(1)
            solved = torch.zeros_like(found)
            inverse = torch.linalg.pinv(gram[inside][:, inside], rtol=DEPENDENT, hermitian=True)
            solved[inside] = inverse @ linear[inside]
            leaving = free & (solved <= 0)
            if not leaving.any():
                break
            reach = (found[leaving] / (found[leaving] - solved[leaving])).nan_to_num(0.0).min()
            found = (found + reach * (solved - found)).clamp(min=0)
            free &= found > 0
        found = solved
    return found
