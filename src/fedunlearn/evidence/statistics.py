"""Estimates with their uncertainty: AUC with DeLong's variance, intervals of proportions, distances.

Everything is computed from plain numbers. Only the bounds after Clopper and Pearson need SciPy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..core import FedUnlearnError
from ..core.errors import require, require_count

Array: TypeAlias = NDArray[np.float64]

NORMAL = NormalDist()

EXPECTED_FALSE_ALARMS = 10
"""Unseen examples that must lie below the threshold of a TPR: its true FPR is then known to about a third."""


MANY = 10_000_000
"""Examples beyond which an exact test takes too long."""


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
        """Whether the whole interval lies strictly between −margin and margin."""
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
        _require_level(level)
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


@dataclass(frozen=True)
class TailCounts:
    """How many scores lie below the threshold of a TPR: all that a client need reveal."""

    hits: int
    n_forgotten: int
    alarms: int
    n_unseen: int


@dataclass(frozen=True)
class TailRate:
    """The true positive rate of the attack "a score below the threshold was trained on"."""

    tpr: float
    interval: Interval
    fpr: float
    """Share of unseen examples below the threshold; with ties it may be lower than asked for."""
    fpr_interval: Interval
    """Where the true FPR of this threshold lies."""


@dataclass(frozen=True)
class TugOfWar:
    """ToW and the factors that it is the product of."""

    value: float
    factors: Mapping[str, float]


@dataclass(frozen=True)
class CanaryBound:
    """What the guesses about planted canaries prove."""

    accuracy: float
    accuracy_low: float
    """Lower confidence bound of the probability to guess right."""
    epsilon_low: float
    """Lower confidence bound of ε; 0 where guessing was no better than chance."""
    confidence: float


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


def wilson(hits: int, n: int, level: float = 0.95) -> Interval:
    """Return Wilson's interval of a proportion (JASA, 1927): the default for rates such as ASR.

    >>> print(wilson(0, 100))
    [0.000, 0.037]
    """
    _require_counts(hits, n)
    _require_level(level)
    z = NORMAL.inv_cdf((1 + level) / 2)
    share, square = hits / n, z * z
    centre = (share + square / (2 * n)) / (1 + square / n)
    half = z / (1 + square / n) * math.sqrt(share * (1 - share) / n + square / (4 * n * n))
    # At the ends one bound is exact, and rounding would miss it.
    return Interval(0.0 if hits == 0 else centre - half, 1.0 if hits == n else centre + half, level)


def clopper_pearson(hits: int, n: int, level: float = 0.95) -> Interval:
    """Return the exact interval of a proportion (Biometrika, 1934): it never covers less than its level.

    Use it for small counts and for bounds that a claim rests on. Needs SciPy.

    >>> print(clopper_pearson(0, 100))
    [0.000, 0.036]
    """
    _require_counts(hits, n)
    _require_level(level)
    quantile, tail = _beta_quantile(), (1 - level) / 2
    low = 0.0 if hits == 0 else quantile(hits, n - hits + 1, tail)
    high = 1.0 if hits == n else quantile(hits + 1, n - hits, 1 - tail)
    return Interval(low, high, level)


def newcombe(hits: int, n: int, other_hits: int, other_n: int, level: float = 0.95) -> Interval:
    """Return Newcombe's interval of the difference of two proportions (Statistics in Medicine, 1998).

    It combines the intervals of Wilson (his method 10) and takes the samples as independent. Two models that
    are tried on the same examples mostly err together; the interval is then wider than it needs to be.

    >>> print(newcombe(56, 70, 48, 80))
    [0.052, 0.334]
    """
    one, other = wilson(hits, n, level), wilson(other_hits, other_n, level)
    share, other_share = hits / n, other_hits / other_n
    below = math.hypot(share - one.low, other.high - other_share)
    above = math.hypot(one.high - share, other_share - other.low)
    return Interval(share - other_share - below, share - other_share + above, level)


def fisher(hits: int, n: int, other_hits: int, other_n: int) -> float:
    """Return the two-sided p-value of Fisher's exact test that two proportions are equal.

    It is twice the tail. Two models on the same examples mostly err together; the test takes the samples as
    independent, so it finds less than there is. Beyond ten million examples, the normal approximation serves.

    >>> round(fisher(10, 10, 2, 10), 4), fisher(5, 10, 5, 10)
    (0.0007, 1.0)
    """
    _require_counts(hits, n)
    _require_counts(other_hits, other_n, "other_hits", "other_n")
    total, every = hits + other_hits, n + other_n
    away = hits / n - other_hits / other_n
    if not away:
        return 1.0
    if every > MANY:
        share = total / every
        return 2 * NORMAL.cdf(-abs(away) / math.sqrt(share * (1 - share) * (1 / n + 1 / other_n)))
    tail, step, k = 0.0, 1 if away > 0 else -1, hits
    while max(0, total - other_n) <= k <= min(n, total):
        odds = _log_choose(n, k) + _log_choose(other_n, total - k) - _log_choose(every, total)
        tail, k = tail + math.exp(odds), k + step
        if math.exp(odds) < 1e-18 * tail:
            break
    return min(1.0, 2 * tail)


def needed_unseen(fpr: float) -> int:
    """Return how many unseen examples a TPR at this FPR needs: ten of them must lie below the threshold.

    >>> needed_unseen(0.01), needed_unseen(0.001)
    (1000, 10000)
    """
    require(0 < fpr < 1, "fpr", fpr, "between 0 and 1")
    return math.ceil(EXPECTED_FALSE_ALARMS / fpr - 1e-9)


def tail_counts(scores: Scores, fpr: float) -> TailCounts:
    """Count the scores that lie below all but ``fpr`` of the unseen ones.

    Refused where fewer than ten unseen examples would lie below the threshold: it rests on them alone, and
    the true FPR would be unknown by a third and more. 1 % needs 1,000 unseen examples, 0.1 % needs 10,000.

    >>> tail_counts(Scores(np.linspace(0, 1, 500), np.linspace(0.01, 1, 1000)), fpr=0.01).hits
    10
    """
    n, needed = len(scores.unseen), needed_unseen(fpr)
    if n < needed:
        raise FedUnlearnError(
            f"a TPR at {100 * fpr:g} % FPR needs {needed:,} unseen examples and there are {n:,}: fewer than "
            f"{EXPECTED_FALSE_ALARMS} of them would lie below the threshold, too few to know its FPR"
        )
    threshold = float(np.partition(scores.unseen, int(n * fpr + 1e-9))[int(n * fpr + 1e-9)])
    hits, alarms = int((scores.forgotten < threshold).sum()), int((scores.unseen < threshold).sum())
    return TailCounts(hits, len(scores.forgotten), alarms, n)


def tail_rate(counts: TailCounts, level: float = 0.95) -> TailRate:
    """Return the rates of counts with the intervals of Clopper and Pearson. Needs SciPy.

    The interval of the TPR takes the threshold as given.

    >>> print(tail_rate(TailCounts(hits=10, n_forgotten=500, alarms=10, n_unseen=1000)).interval)
    [0.010, 0.036]
    """
    return TailRate(
        counts.hits / counts.n_forgotten,
        clopper_pearson(counts.hits, counts.n_forgotten, level),
        counts.alarms / counts.n_unseen,
        clopper_pearson(counts.alarms, counts.n_unseen, level),
    )


def exact_bounds() -> bool:
    """Return whether SciPy is there, which the bounds after Clopper and Pearson need."""
    try:
        _beta_quantile()
    except FedUnlearnError:
        return False
    return True


def tpr_at_fpr(scores: Scores, fpr: float, level: float = 0.95) -> TailRate:
    """Return the share of forgotten examples whose score lies below all but ``fpr`` of the unseen ones.

    ``tail_counts`` and ``tail_rate`` in one: see there what is refused and what the intervals mean. To look
    for over-forgetting, negate the scores. Needs SciPy.

    >>> rate = tpr_at_fpr(Scores(np.linspace(0, 1, 500), np.linspace(0.01, 1, 1000)), fpr=0.01)
    >>> print(f"{rate.tpr:.3f} {rate.interval}")
    0.020 [0.010, 0.036]
    """
    return tail_rate(tail_counts(scores, fpr), level)


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


def canary_bound(correct: int, guesses: int, confidence: float = 0.95) -> CanaryBound:
    """Return what one run proves about canaries, of which a fair coin chose the trained ones.

    If training and unlearning were ε-differentially private, the number of right guesses would be at most
    binomial with probability e^ε / (1 + e^ε) (Steinke, Nasr and Jagielski, NeurIPS 2023); Clopper and
    Pearson's one-sided bound turns that round. The rule that guesses, including its sign, must be fixed
    before the scores are seen; it may abstain. Forgotten canaries do not prove forgotten people. Needs SciPy.

    >>> round(canary_bound(32, 32).epsilon_low, 2)
    2.32
    >>> canary_bound(16, 32).epsilon_low
    0.0
    """
    _require_counts(correct, guesses, "correct", "guesses")
    _require_level(confidence)
    low = 0.0 if correct == 0 else _beta_quantile()(correct, guesses - correct + 1, 1 - confidence)
    low = min(low, math.nextafter(1.0, 0.0))  # the bound of very many guesses is rounded to 1
    epsilon = math.log(low / (1 - low)) if low > 0.5 else 0.0
    return CanaryBound(correct / guesses, low, epsilon, confidence)


def _log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


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
    """How many of ``among`` are smaller than each value, plus half of those that are equal."""
    ordered = np.sort(among)
    smaller = np.searchsorted(ordered, values, side="left")
    not_larger = np.searchsorted(ordered, values, side="right")
    return (smaller + not_larger) / 2


def _relative_entropy(p: Array, q: Array) -> Array:
    """Σ p log₂(p/q) over the last axis; a class without probability adds nothing."""
    ratio = np.divide(p, q, out=np.ones_like(p), where=p > 0)
    return np.asarray((p * np.log2(ratio)).sum(axis=-1), dtype=np.float64)


def _beta_quantile() -> Callable[[float, float, float], float]:
    try:
        from scipy.special import betaincinv
    except ImportError:
        sentence = "exact bounds of proportions need SciPy: pip install 'fedunlearn[evidence]'"
        raise FedUnlearnError(sentence) from None
    return lambda a, b, share: float(betaincinv(a, b, share))


def _scores(name: str, values: ArrayLike) -> Array:
    found = np.array(values, dtype=np.float64)  # a copy: the caller's array may change
    if found.ndim != 1 or not len(found):
        raise FedUnlearnError(f"{name} scores of shape {found.shape}: give one number for each example")
    if np.isnan(found).any():
        raise FedUnlearnError(f"{name} scores contain NaN: check the losses of the model and the references")
    found.flags.writeable = False
    return found


def _distributions(values: ArrayLike) -> Array:
    found = np.asarray(values, dtype=np.float64)
    sums: Any = found.sum(axis=-1) if found.ndim in (1, 2) and found.size else None
    if sums is None or not (found >= 0).all() or not np.allclose(sums, 1, atol=1e-4):
        raise FedUnlearnError("output distributions must be probabilities that add up to 1, one a row")
    return np.asarray(found / np.expand_dims(sums, -1), dtype=np.float64)


def _require_pairs(scores: Scores) -> None:
    if min(len(scores.forgotten), len(scores.unseen)) < 2:
        raise FedUnlearnError("a standard error needs at least two forgotten and two unseen examples")


def _require_counts(hits: int, n: int, hits_name: str = "hits", n_name: str = "n") -> None:
    require_count(n_name, n, 1)
    require_count(hits_name, hits)
    require(hits <= n, hits_name, hits, f"at most {n_name} = {n}")


def _require_level(level: float) -> None:
    require(0 < level < 1, "level", level, "between 0 and 1")
