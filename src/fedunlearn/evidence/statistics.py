"""Estimates with their uncertainty: AUC with DeLong's variance, equivalence, Holm's correction."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..core import FedUnlearnError
from ..core.errors import require, require_count

Array: TypeAlias = NDArray[np.float64]

NORMAL = NormalDist()


@dataclass(frozen=True)
class Interval:
    """A confidence interval.

    >>> 0.5 in Interval(0.45, 0.55, level=0.9)
    True
    """

    low: float
    high: float
    level: float

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high

    def within(self, margin: float) -> bool:
        """Return whether the whole interval lies strictly between −margin and margin."""
        return -margin < self.low and self.high < margin

    def __str__(self) -> str:
        return f"[{self.low:.3f}, {self.high:.3f}]"


@dataclass(frozen=True)
class Estimate:
    """A number with its standard error.

    >>> print(Estimate(0.02, error=0.01).interval(0.90))
    [0.004, 0.036]
    """

    value: float
    error: float

    def interval(self, level: float = 0.9) -> Interval:
        """The normal interval."""
        require_level(level)
        half = NORMAL.inv_cdf((1 + level) / 2) * self.error
        return Interval(self.value - half, self.value + half, level)


@dataclass(frozen=True, eq=False)
class Scores:
    """One score for each example: of the forgotten examples, and of examples that nobody trained on.

    A score is a loss or a calibrated loss: a model that remembers gives forgotten examples lower scores.
    """

    forgotten: Array
    unseen: Array

    def __init__(self, forgotten: ArrayLike, unseen: ArrayLike) -> None:
        object.__setattr__(self, "forgotten", _scores("forgotten", forgotten))
        object.__setattr__(self, "unseen", _scores("unseen", unseen))

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Scores)
            and np.array_equal(self.forgotten, other.forgotten)
            and np.array_equal(self.unseen, other.unseen)
        )


@dataclass(frozen=True)
class Paired:
    """The AUC of a model and of a reference model on the same examples, and their difference."""

    model: Estimate
    reference: Estimate
    difference: Estimate
    n_forgotten: int
    n_unseen: int


@dataclass(frozen=True)
class Equivalence:
    """The result of two one-sided tests (TOST)."""

    equivalent: bool
    p_value: float
    """The larger one of the two."""
    interval: Interval
    """Of level 1 − 2α: the tests reject where it lies within the margin."""


def auc(forgotten: ArrayLike, unseen: ArrayLike) -> float:
    """Return P(forgotten < unseen) + ½ P(forgotten = unseen) for a score of each set, drawn at random.

    0.5: the scores say nothing about membership; above: remembered; below: worse than on unseen examples.

    >>> auc([0.1, 0.4], [0.2, 0.4, 0.9])
    0.75
    """
    scores = Scores(forgotten, unseen)
    return float(_placements(scores)[0].mean())


def delong(scores: Scores) -> Estimate:
    """Return the AUC with the standard error of DeLong, DeLong and Clarke-Pearson (Biometrics, 1988).

    Scores that separate the sets completely have a standard error of 0. Fewer than two scores in a set raise
    an error.

    >>> found = delong(Scores([0.1, 0.4, 0.3], [0.2, 0.4, 0.9]))
    >>> round(found.value, 3), round(found.error, 3)
    (0.722, 0.248)
    """
    _require_pairs(scores)
    return _estimate(*_placements(scores))


def paired_auc(model: Scores, reference: Scores, *others: Scores) -> Paired:
    """Compare two models on the same examples, in the same order, with DeLong's covariance.

    The covariance counts: two models find the same examples hard, so their AUCs err together, and the error
    of the difference is smaller than that of two independent samples. With ``others``, the AUC of the
    reference is the mean over them all, which errs less.

    >>> model = Scores([0.1, 0.2, 0.3], [0.3, 0.5, 0.7])
    >>> reference = Scores([0.2, 0.4, 0.6], [0.3, 0.5, 0.7])
    >>> round(paired_auc(model, reference).difference.value, 3)
    0.278
    """
    every = (reference, *others)
    for name in ("forgotten", "unseen"):
        for found, expected in ((len(getattr(model, name)), len(getattr(each, name))) for each in every):
            if found != expected:
                raise FedUnlearnError(
                    f"the model has {found} scores of {name} examples and the reference has {expected}: "
                    "score the same examples with both, in the same order"
                )
    _require_pairs(model)
    ours, each = _placements(model), [_placements(other) for other in every]
    theirs = np.mean([forgotten for forgotten, _ in each], 0), np.mean([unseen for _, unseen in each], 0)
    # The variance of differences of placements is var + var − 2 cov, without cancellation.
    difference = _estimate(ours[0] - theirs[0], ours[1] - theirs[1])
    return Paired(_estimate(*ours), _estimate(*theirs), difference, len(model.forgotten), len(model.unseen))


def auc_error(value: float, n_forgotten: int, n_unseen: int) -> float:
    """Return the standard error of an AUC of which only the value is known (Hanley and McNeil, 1982).

    >>> round(auc_error(0.5, 800, 200), 3)
    0.023
    """
    require(0 <= value <= 1, "value", value, "from 0 to 1")
    require_count("n_forgotten", n_forgotten, 1)
    require_count("n_unseen", n_unseen, 1)
    two_forgotten, two_unseen = value / (2 - value), 2 * value**2 / (1 + value)
    spread = value * (1 - value)
    spread += (n_forgotten - 1) * (two_forgotten - value**2) + (n_unseen - 1) * (two_unseen - value**2)
    return math.sqrt(max(spread, 0.0) / (n_forgotten * n_unseen))


def tost(difference: Estimate, margin: float, alpha: float = 0.05) -> Equivalence:
    """Test whether a difference is smaller than a margin (two one-sided tests, Schuirmann, 1987).

    "Not significantly different" is no evidence of equality. Here the burden of proof is reversed: the tests
    reject the hypothesis that the difference is as large as the margin, and are wrong in at most α of cases.

    >>> tost(Estimate(0.01, error=0.01), margin=0.05).equivalent
    True
    >>> tost(Estimate(0.01, error=0.03), margin=0.05).equivalent
    False
    """
    require(0 < margin < 0.5, "margin", margin, "between 0 and 0.5")
    require(0 < alpha < 0.5, "alpha", alpha, "between 0 and 0.5")
    interval = difference.interval(1 - 2 * alpha)
    nearest = margin - abs(difference.value)
    # Without an error the difference is known, and the tests are certain.
    p_value = NORMAL.cdf(-nearest / difference.error) if difference.error else float(nearest <= 0)
    return Equivalence(interval.within(margin), p_value, interval)


def holm(p_values: Sequence[float], alpha: float = 0.05) -> tuple[float, ...]:
    """Return the level at which each test must reject so that any false rejection has a chance of at most α.

    Holm (Scandinavian Journal of Statistics, 1979): of m tests the smallest p-value is held against α/m, the
    next one against α/(m − 1), and so on. After the first one that does not reject, none does: those that
    follow get its level. Tests may depend on each other.

    >>> holm([0.030, 0.005])
    (0.05, 0.025)
    >>> holm([0.030, 0.040])
    (0.025, 0.025)
    """
    require(0 < alpha < 1, "alpha", alpha, "between 0 and 1")
    require(all(0 <= p <= 1 for p in p_values), "p_values", list(p_values), "from 0 to 1")
    tests = len(p_values)
    levels, level, stopped = [alpha] * tests, alpha, False
    for rank, place in enumerate(sorted(range(tests), key=lambda each: p_values[each])):
        if not stopped:
            level = alpha / (tests - rank)
        stopped = stopped or p_values[place] > level
        levels[place] = level
    return tuple(levels)


def _placements(scores: Scores) -> tuple[Array, Array]:
    """For each forgotten score the share of unseen ones above, for each unseen one of forgotten ones below.

    Ties count half.
    """
    forgotten, unseen = scores.forgotten, scores.unseen
    below = _midranks(forgotten, unseen) / len(forgotten)
    above = 1 - _midranks(unseen, forgotten) / len(unseen)
    return above, below


def _estimate(forgotten: Array, unseen: Array) -> Estimate:
    """The mean of placements, with DeLong's standard error."""
    variance = forgotten.var(ddof=1) / len(forgotten) + unseen.var(ddof=1) / len(unseen)
    return Estimate(float(forgotten.mean()), math.sqrt(variance))


def _midranks(among: Array, values: Array) -> Array:
    """The number of ``among`` that are smaller than each value, plus half of those that are equal."""
    ordered = np.sort(among)
    smaller = np.searchsorted(ordered, values, side="left")
    not_larger = np.searchsorted(ordered, values, side="right")
    return (smaller + not_larger) / 2


def _scores(name: str, values: ArrayLike) -> Array:
    found = np.array(values, dtype=np.float64)  # a copy: the caller's array may change
    if found.ndim != 1 or not len(found):
        raise FedUnlearnError(f"{name} scores of shape {found.shape}: give one number for each example")
    if np.isnan(found).any():
        raise FedUnlearnError(f"{name} scores contain NaN: check the losses of the model and the references")
    found.flags.writeable = False
    return found


def _require_pairs(scores: Scores) -> None:
    if min(len(scores.forgotten), len(scores.unseen)) < 2:
        raise FedUnlearnError("a standard error needs at least two forgotten and two unseen examples")


def require_level(level: float) -> None:
    """Require a confidence between 0 and 1."""
    require(0 < level < 1, "level", level, "between 0 and 1")
