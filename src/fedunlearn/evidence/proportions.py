"""Shares of examples: intervals, an exact test, rates in the tail, and what guesses about canaries prove.

Only the bounds after Clopper and Pearson need SciPy.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..core import FedUnlearnError
from ..core.errors import require, require_count
from .statistics import NORMAL, Interval, Scores, require_level

EXPECTED_FALSE_ALARMS = 10
"""Unseen examples that must lie below the threshold of a TPR: its true FPR is then known to about a third."""

MANY = 10_000_000
"""Examples beyond which an exact test takes too long."""


FPRS = {"1 %": 0.01, "0.1 %": 0.001}
"""False positive rates of the attack on the tail, by title."""


@dataclass(frozen=True)
class TailCounts:
    """Counts of scores below the threshold of a TPR: all that a client need reveal."""

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
    """Of the true FPR of this threshold."""


@dataclass(frozen=True)
class CanaryBound:
    """The proof that guesses about planted canaries give."""

    accuracy: float
    accuracy_low: float
    """Lower confidence bound of the probability to guess right."""
    epsilon_low: float
    """Lower confidence bound of ε; 0 where guessing was no better than chance."""
    confidence: float


def wilson(hits: int, n: int, level: float = 0.95) -> Interval:
    """Return Wilson's interval of a proportion (JASA, 1927): the default for rates such as ASR.

    >>> print(wilson(0, 100))
    [0.000, 0.037]
    """
    _require_counts(hits, n)
    require_level(level)
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
    require_level(level)
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
    require_level(confidence)
    low = 0.0 if correct == 0 else _beta_quantile()(correct, guesses - correct + 1, 1 - confidence)
    low = min(low, math.nextafter(1.0, 0.0))  # the bound of very many guesses is rounded to 1
    epsilon = math.log(low / (1 - low)) if low > 0.5 else 0.0
    return CanaryBound(correct / guesses, low, epsilon, confidence)


def _log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def _beta_quantile() -> Callable[[float, float, float], float]:
    try:
        from scipy.special import betaincinv
    except ImportError:
        sentence = "exact bounds of proportions need SciPy: pip install 'fedunlearn[evidence]'"
        raise FedUnlearnError(sentence) from None
    return lambda a, b, share: float(betaincinv(a, b, share))


def _require_counts(hits: int, n: int, hits_name: str = "hits", n_name: str = "n") -> None:
    require_count(n_name, n, 1)
    require_count(hits_name, hits)
    require(hits <= n, hits_name, hits, f"at most {n_name} = {n}")
