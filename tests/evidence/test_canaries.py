"""Guesses about canaries, and what they prove."""

from __future__ import annotations

import sys
from random import Random

from support.codes import refused

from fedunlearn.evidence import canary_bound, canary_finding, guess_canaries


def test_the_lower_half_is_guessed_to_be_trained_on():
    assert guess_canaries([1, 2, 3], [4, 5, 6]) == (6, 6)
    assert guess_canaries([4, 5, 6], [1, 2, 3]) == (0, 6)
    assert guess_canaries([1, 2], [3, 4, 5]) == (4, 4)  # nothing is said about the one in the middle
    assert guess_canaries([1, 2, 3, 4], [5, 6]) == (5, 6)  # half are guessed, whatever the coins
    assert guess_canaries([], [1, 2]) == (1, 2)
    assert guess_canaries([1], []) == (0, 0)


def test_equal_scores_say_nothing():
    """Ordered by set, they would all be right."""
    assert guess_canaries([1, 1, 1], [1, 1, 1]) == (0, 0)
    assert guess_canaries([0, 1, 1], [1, 1, 2]) == (2, 2)


def test_the_bound_is_wrong_in_at_most_one_of_twenty_cases():
    random, alarms = Random(2), 0
    for _ in range(2000):
        coins = [random.random() < 0.5 for _ in range(64)]
        scores = [random.random() for _ in coins]
        trained, held_out = (
            [score for score, coin in zip(scores, coins, strict=True) if coin is side]
            for side in (True, False)
        )
        alarms += canary_finding(*guess_canaries(trained, held_out)).bound.epsilon_low > 0
    assert 0.01 <= alarms / 2000 <= 0.06


def test_findings_are_told_in_sentences():
    found = canary_finding(60, 64)
    assert found.bound == canary_bound(60, 64)
    assert found.sentence.startswith("60 of 64 guesses are right: they are remembered, ε is at least 1.8")
    assert found.reverse.epsilon_low == 0
    assert "which chance can explain: it proves neither" in canary_finding(33, 64).sentence
    fewer = canary_finding(10, 64)
    assert fewer.bound.epsilon_low == 0
    assert "fewer than chance would give with 95 % confidence: a sign of over-forgetting" in fewer.sentence


def test_more_guesses_than_anybody_makes_have_a_finite_bound():
    assert 30 < canary_finding(2**62, 2**62).bound.epsilon_low < 50


def test_without_scipy_the_counts_remain(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.special", None)
    found = canary_finding(60, 64)
    assert (found.correct, found.guesses, found.bound) == (60, 64, None)
    assert found.sentence == (
        "60 of 64 guesses are right; a bound needs SciPy: pip install 'fedunlearn[evidence]'."
    )


def test_what_cannot_be_guessed_is_refused():
    with refused("invalid", says="scores of canaries contain NaN"):
        guess_canaries([float("nan")], [1.0])
    for counts in ((3, 2), (-1, 2), (0, 0)):
        with refused("invalid", says=r"correct|guesses"):
            canary_finding(*counts)
