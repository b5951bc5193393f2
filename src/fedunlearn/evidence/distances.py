"""Distances to retraining: of output distributions, and of accuracies."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..core import FedUnlearnError
from ..core.errors import require
from .statistics import Array


@dataclass(frozen=True)
class TugOfWar:
    """ToW and the factors that it is the product of."""

    value: float
    factors: Mapping[str, float]


def jensen_shannon(one: ArrayLike, other: ArrayLike) -> float:
    """Return the Jensen–Shannon distance of two output distributions, from 0 (equal) to 1 (disjoint).

    It is the square root of the divergence in bits, a metric. Give mean distributions, one probability for
    each class, or one distribution a row: then it is the mean over rows. Means hide changes of single
    examples that cancel.

    >>> jensen_shannon([0.5, 0.5, 0.0], [0.0, 0.0, 1.0])
    1.0
    """
    p, q = _distributions(one), _distributions(other)
    if p.shape != q.shape:
        raise FedUnlearnError(f"distributions of shapes {p.shape} and {q.shape}: compare equal shapes")
    middle = (p + q) / 2
    divergence = (_relative_entropy(p, middle) + _relative_entropy(q, middle)) / 2
    return float(np.sqrt(np.clip(divergence, 0, 1)).mean())


def tug_of_war(model: Mapping[str, float], retrained: Mapping[str, float]) -> TugOfWar:
    """Return ToW = Π (1 − |accuracy − accuracy of retraining|) over sets of examples.

    The "tug of war" of Zhao et al. (What makes unlearning hard and what to do about it, NeurIPS 2024).
    Give the accuracies on ``forgotten``, ``retained`` and ``test``. 1 is like retraining. The product hides
    which set is off: show the factors.

    >>> tug_of_war({"forgotten": 0.75, "test": 0.8}, {"forgotten": 0.5, "test": 0.8}).factors
    {'forgotten': 0.75, 'test': 1.0}
    """
    if not model or model.keys() != retrained.keys():
        raise FedUnlearnError(
            f"accuracies on {sorted(model)} and, of retraining, on {sorted(retrained)}: give the same sets"
        )
    for name, value in [*model.items(), *retrained.items()]:
        require(0 <= value <= 1, f"accuracy on {name}", value, "from 0 to 1")
    factors = {name: 1 - abs(model[name] - retrained[name]) for name in model}
    return TugOfWar(math.prod(factors.values()), factors)


def _relative_entropy(p: Array, q: Array) -> Array:
    """Σ p log₂(p/q) over the last axis; a class without probability adds nothing."""
    ratio = np.divide(p, q, out=np.ones_like(p), where=p > 0)
    return np.asarray((p * np.log2(ratio)).sum(axis=-1), dtype=np.float64)


def _distributions(values: ArrayLike) -> Array:
    found = np.asarray(values, dtype=np.float64)
    sums: Any = found.sum(axis=-1) if found.ndim in (1, 2) and found.size else None
    if sums is None or not (found >= 0).all() or not np.allclose(sums, 1, atol=1e-4):
        raise FedUnlearnError("output distributions must be probabilities that add up to 1, one a row")
    return np.asarray(found / np.expand_dims(sums, -1), dtype=np.float64)
