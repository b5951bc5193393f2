"""The one-run audit with canaries: which of them were trained on?

Canaries are synthetic examples. A fair coin decided for each whether it is trained on. Whoever guesses the
coins from a model much better than chance has shown that the model remembers (Steinke, Nasr and Jagielski,
Privacy auditing with one (1) training run, NeurIPS 2023).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median_high, median_low

from ..core import FedUnlearnError
from ..core.errors import require, require_count
from .proportions import CanaryBound, canary_bound, exact_bounds


@dataclass(frozen=True)
class CanaryFinding:
    """The guesses about the canaries of one client under one model."""

    correct: int
    guesses: int
    bound: CanaryBound | None
    """None without SciPy."""
    reverse: CanaryBound | None
    """The same for wrong guesses: above 0, the trained canaries have the higher losses."""

    @property
    def sentence(self) -> str:
        """The finding in plain words."""
        told = f"{self.correct} of {self.guesses} guesses are right"
        if self.bound is None or self.reverse is None:
            return f"{told}; a bound needs SciPy: pip install 'fedunlearn[evidence]'."
        level = f"with {100 * self.bound.confidence:.0f} % confidence"
        if self.bound.epsilon_low > 0:
            return f"{told}: they are remembered, ε is at least {self.bound.epsilon_low:.2f} {level}."
        if self.reverse.epsilon_low > 0:
            return f"{told}, fewer than chance would give {level}: a sign of over-forgetting."
        return f"{told}, which chance can explain: it proves neither memory nor its absence."


def guess_canaries(trained: Sequence[float], held_out: Sequence[float]) -> tuple[int, int]:
    """Guess from the scores which canaries were trained on; return the right guesses and all guesses.

    Those below the median are guessed to be trained on, those above it to be held out, and nothing is said
    about one that equals it. The rule looks at the scores alone, so where they do not depend on the coins,
    each guess is right with probability one half.

    >>> guess_canaries([0.1, 0.2, 0.9], [0.7, 0.8, 0.3])
    (4, 6)
    """
    scores = [*trained, *held_out]
    if any(map(math.isnan, scores)):
        raise FedUnlearnError("scores of canaries contain NaN: check the losses of all models")
    if not scores:
        return 0, 0
    low, high = median_low(scores), median_high(scores)  # equal where a score is the median
    correct = sum(score < high for score in trained) + sum(score > low for score in held_out)
    return correct, sum(score < high or score > low for score in scores)


def canary_finding(correct: int, guesses: int) -> CanaryFinding:
    """Judge guesses about canaries; without SciPy, there is no bound."""
    require_count("guesses", guesses, 1)
    require(0 <= correct <= guesses, "correct", correct, f"from 0 to guesses = {guesses}")
    if not exact_bounds():
        return CanaryFinding(correct, guesses, None, None)
    return CanaryFinding(
        correct, guesses, canary_bound(correct, guesses), canary_bound(guesses - correct, guesses)
    )
