"""The examples that a measure of forgetting rests on, and how far chance alone moves it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from ..evidence import Interval, auc_error, wilson
from ..evidence.statistics import Estimate
from ..measures.metrics import metric
from .runs import Run

MOST = 100_000
"""The most examples that a share can tell."""


@dataclass(frozen=True)
class Sample:
    """A measure with its 95 % interval, over so many examples; ``known`` if they are counted, not derived."""

    interval: Interval
    n: int
    known: bool

    @property
    def size(self) -> str:
        return f"n {'=' if self.known else '≥'} {self.n:,}"


def sample(runs: Sequence[Run], key: str, value: float) -> Sample | None:
    """Return the interval of a measure that is the mean over runs; None if the examples cannot be counted.

    Named examples are counted. Otherwise, the least common denominator of the shares in a run divides the
    number of examples.
    """
    named = [bool(run.parts) for run in runs]
    share = "asr" if key == "asr" else "forget_acc"
    forgotten = sum(sum(map(len, run.parts.values())) or _denominator(run, share) for run in runs)
    if key == "forget_auc":
        unseen = sum(_denominator(run, "target_acc") for run in runs)
        if min(forgotten, unseen) < 2:
            return None
        interval = Estimate(value, auc_error(value, forgotten, unseen)).interval(0.95)
        return Sample(interval, min(forgotten, unseen), all(named))
    if metric(key).unit != "share" or forgotten < 2:
        return None
    return Sample(wilson(round(value * forgotten), forgotten), forgotten, all(named))


def _denominator(run: Run, key: str) -> int:
    shares = [float(row[key]) for row in run.evaluated if key in row]
    found = [Fraction(share).limit_denominator(MOST) for share in shares]
    exact = all(abs(float(each) - share) < 1e-14 for each, share in zip(found, shares, strict=True))
    return math.lcm(*(each.denominator for each in found)) if exact else 0
