"""The per-example test on models whose distributions are known."""

from __future__ import annotations

import numpy as np
import pytest
from support.codes import refused

from fedunlearn.studies.separation import Confidences, attack_accuracy, separation

MODELS, FORGOTTEN, UNSEEN = 32, 200, 150


def drawn(seed: int, forgotten: float = 0.0, unseen: float = 0.0, scale: float = 1.0, common: float = 0.5):
    """Log-odds of examples of different difficulty; all those of one model share an effect."""
    random, fixed = np.random.default_rng(seed), np.random.default_rng(99)
    shared = common * random.normal(size=(MODELS, 1))

    def side(examples: int, shift: float):
        hardness = fixed.normal(0, 3, examples)
        return hardness + shared + scale * random.normal(size=(MODELS, examples)) + shift

    return Confidences(side(FORGOTTEN, forgotten), side(UNSEEN, unseen))


def test_equal_distributions_cannot_be_told_apart():
    found = [separation(drawn(2 * seed), drawn(2 * seed + 1)) for seed in range(60)]
    scores = np.array([each.difference.value / each.difference.error for each in found])
    assert abs(np.mean([each.forgotten for each in found]) - 0.5) < 0.005
    assert abs(np.mean([each.difference.value for each in found])) < 0.005
    assert np.mean(np.abs(scores) > 1.645) <= 0.12
    assert abs(np.mean([each.direction.value for each in found])) < 0.01


def test_a_shift_of_the_forgotten_examples_shows():
    found = separation(drawn(1, forgotten=1.0), drawn(2))
    assert found.difference.interval(0.99).low > 0.05
    assert found.direction.interval(0.99).low > 0.1
    assert found.tail > found.forgotten > found.unseen


def test_forgetting_too_much_shows_with_the_other_direction():
    found = separation(drawn(1, forgotten=-1.0), drawn(2))
    assert found.difference.interval(0.99).low > 0.05
    assert found.direction.interval(0.99).high < -0.1


def test_a_shift_of_all_examples_is_no_difference():
    found = separation(drawn(1, forgotten=1.0, unseen=1.0), drawn(2))
    assert found.forgotten > 0.6
    assert abs(found.difference.value) < 2 * found.difference.error
    assert found.difference.error < 0.02


def test_another_spread_shows_where_the_mean_is_the_same():
    ours, theirs = drawn(1, scale=3.0, common=0.0), drawn(2, common=0.0)
    assert attack_accuracy(ours.forgotten, theirs.forgotten).mean() > 0.65


def test_the_attack_equals_a_slow_one():
    random = np.random.default_rng(3)
    ours, theirs = random.normal(0.3, 1, (9, 4)), random.normal(0, 2, (9, 4))

    def likelihood(value: float, sample: np.ndarray) -> float:
        return -((value - sample.mean()) ** 2) / (2 * sample.var(ddof=1)) - np.log(sample.std(ddof=1))

    expected = np.zeros(4)
    for example in range(4):
        for out in range(9):
            rest = [np.delete(side[:, example], out) for side in (ours, theirs)]
            for value, right in ((ours[out, example], 0), (theirs[out, example], 1)):
                expected[example] += likelihood(value, rest[right]) > likelihood(value, rest[1 - right])
    np.testing.assert_allclose(attack_accuracy(ours, theirs), expected / 18)


def test_models_that_do_not_differ_at_all_are_chance():
    constant = Confidences(np.ones((8, 5)), np.zeros((8, 5)))
    found = separation(constant, constant)
    assert (found.forgotten, found.unseen, found.difference.value) == (0.5, 0.5, 0.0)


@pytest.mark.parametrize(
    ("unlearned", "retrained", "said"),
    [
        ((7, 9, 9), (7, 9, 9), "7 models of each kind are too few"),
        ((8, 9, 9), (9, 9, 9), "8 unlearned models and 9 retrained ones"),
        ((8, 9, 9), (8, 9, 8), "unlearned models saw 9 unseen examples and retrained ones 8"),
        ((8, 1, 9), (8, 1, 9), "confidences of forgotten examples have shape"),
    ],
)
def test_what_does_not_fit_is_refused(unlearned, retrained, said):
    with refused("invalid", says=said):
        separation(*(Confidences(np.zeros((m, d)), np.zeros((m, h))) for m, d, h in (unlearned, retrained)))


def test_infinite_confidence_is_refused():
    with refused("invalid", says="are not finite"):
        Confidences(np.full((8, 3), np.inf), np.zeros((8, 3)))
