"""Lengths and angles of model-sized vectors, always summed in float64."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ._blocks import blocks


@torch.no_grad()
def distance(a: Tensor, b: Tensor) -> float:
    """Return the Euclidean distance ‖a − b‖, for example between a model ω and ω⁰.

    The result is NaN if a vector contains NaN. Vectors of different length raise an error.

    >>> distance(torch.tensor([3.0, 0.0]), torch.tensor([0.0, 4.0]))
    5.0
    """
    _require_vectors(a=a, b=b)
    square = 0.0
    for _, block in blocks(a.unsqueeze(0), b):
        gap = block[0].sub_(block[1])
        square += float(gap @ gap)
    return math.sqrt(square)


@torch.no_grad()
def cosine(a: Tensor, b: Tensor) -> float:
    """Return the cosine of the angle between two vectors, within [-1, 1].

    The result is 0 if a vector is zero and NaN if a vector contains NaN. Vectors of different length raise an
    error.

    >>> cosine(torch.tensor([3.0, 4.0]), torch.tensor([-2.0, 0.0]))
    -0.6
    """
    _require_vectors(a=a, b=b)
    return float(_cosines(a.unsqueeze(0), b))


@torch.no_grad()
def conflicts(displacements: Tensor, update: Tensor, *, tolerance: float = 1e-4) -> int:
    """Count the clients whose loss the applied step ω^{t+1} − ω^t raises, to first order.

    Row g_i is a gradient or a displacement ω − ω_i of client i; its loss rises if and only if
    g_i · update > 0 (Definition 1 of FedOSD, Pan et al., AAAI 2025, with update = −η g_u). A zero row or a
    zero update never conflicts. A row or an update that is not finite raises an error.

    Deviation: the authors' code compares an arccos with 90 degrees in float32, where even an exactly
    orthogonal step counts as a conflict; here the cosine must exceed ``tolerance``.

    >>> gradients = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    >>> conflicts(gradients, torch.tensor([0.5, 0.0]))
    1
    """
    if displacements.ndim != 2 or update.ndim != 1 or displacements.shape[1] != len(update):
        raise ValueError(
            "displacements must be a matrix with a column for each element of update, "
            f"got {tuple(displacements.shape)} and {tuple(update.shape)}"
        )
    cosines = _cosines(displacements, update)
    broken = torch.nonzero(cosines.isnan())
    if len(broken) > 0:
        raise ValueError(f"displacements row {int(broken[0])}, or update, holds a NaN or an infinity")
    return int((cosines > tolerance).sum())


def _cosines(matrix: Tensor, vector: Tensor) -> Tensor:
    """Return the cosine of each row with the vector; 0 where either is zero."""
    products = torch.zeros(len(matrix) + 1, dtype=torch.float64, device=matrix.device)
    squares = torch.zeros_like(products)
    for _, block in blocks(matrix, vector):
        products += block @ block[-1]
        squares += torch.linalg.vector_norm(block, dim=1).square()
    # Take each root separately: the product of two squares could leave the range of float64.
    lengths = squares.sqrt() * squares[-1].sqrt()
    return torch.where(lengths == 0, lengths, products / lengths).clamp(-1, 1)[:-1]


def _require_vectors(**vectors: Tensor) -> None:
    shapes = {name: tuple(vector.shape) for name, vector in vectors.items()}
    if len(set(shapes.values())) > 1 or any(len(shape) != 1 for shape in shapes.values()):
        raise ValueError(f"expected vectors of one length, got {shapes}")
