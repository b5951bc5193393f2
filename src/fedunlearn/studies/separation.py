"""The per-example test: do many unlearned models treat an example differently from many retrained ones?

The attack is U-LiRA (Hayes et al., 2024): for one example, a Gaussian is fitted to the log-odds of unlearned
models and another to those of retrained models; a further model is attributed to the likelier one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from ..core import FedUnlearnError
from ..evidence.statistics import Array, Estimate

FEWEST = 8
"""Models on each side: fewer give no Gaussian worth the name."""

GROUPS = 16
"""Of models, left out one after the other for the standard error."""


@dataclass(frozen=True, eq=False)
class Confidences:
    """log p/(1 − p) of the right label: one row for each model, one column for each example."""

    forgotten: Array
    unseen: Array

    def __init__(self, forgotten: ArrayLike, unseen: ArrayLike) -> None:
        for name, given in (("forgotten", forgotten), ("unseen", unseen)):
            values = np.asarray(given, dtype=np.float64)
            if values.ndim != 2 or values.shape[1] < 2:
                raise FedUnlearnError(
                    f"confidences of {name} examples have shape {values.shape}: give one row for each model "
                    "and one column for each of at least two examples"
                )
            if not np.isfinite(values).all():
                raise FedUnlearnError(f"confidences of {name} examples are not finite: check the models")
            object.__setattr__(self, name, values)
        if len(self.forgotten) != len(self.unseen):
            raise FedUnlearnError(
                f"{len(self.forgotten)} models saw the forgotten examples and {len(self.unseen)} the unseen "
                "ones: give the same models"
            )


@dataclass(frozen=True)
class Separation:
    """How well single examples tell unlearned models from retrained ones."""

    forgotten: float
    """Mean accuracy of the attack on forgotten examples; 0.5 is chance."""
    unseen: float
    """The same on unseen examples. It is above 0.5 where unlearning differs in other ways from retraining."""
    difference: Estimate
    """Forgotten minus unseen, D − H: what remains of the forgotten examples themselves."""
    tail: float
    """The 90th percentile of the accuracy over forgotten examples; chance alone is above 0.5, too."""
    direction: Estimate
    """P(unlearned model is more confident than a retrained one), D − H: above 0 it remembers too much."""
    models: int
    n_forgotten: int
    n_unseen: int

    def as_dict(self) -> Mapping[str, float | int | list[float]]:
        interval, leaning = self.difference.interval(0.9), self.direction.interval(0.9)
        return {
            "accuracy_forgotten": self.forgotten,
            "accuracy_unseen": self.unseen,
            "difference": self.difference.value,
            "difference_error": self.difference.error,
            "difference_interval": [interval.low, interval.high],
            "tail": self.tail,
            "direction": self.direction.value,
            "direction_error": self.direction.error,
            "direction_interval": [leaning.low, leaning.high],
            "models": self.models,
            "n_forgotten": self.n_forgotten,
            "n_unseen": self.n_unseen,
        }


def separation(unlearned: Confidences, retrained: Confidences) -> Separation:
    """The per-example test of unlearned models against equally many retrained ones.

    Standard errors cover the choice of examples and the randomness of training (a jackknife over models).

    >>> same = np.random.default_rng(0).normal(size=(2, 32, 100))
    >>> models = Confidences(same[0], same[0]), Confidences(same[1], same[1])
    >>> separation(*models).difference.value
    0.0
    """
    models = len(unlearned.forgotten)
    if models != len(retrained.forgotten):
        raise FedUnlearnError(
            f"{models} unlearned models and {len(retrained.forgotten)} retrained ones: give equally many"
        )
    if models < FEWEST:
        raise FedUnlearnError(f"{models} models of each kind are too few: give at least {FEWEST}")
    for name in ("forgotten", "unseen"):
        ours, theirs = getattr(unlearned, name).shape[1], getattr(retrained, name).shape[1]
        if ours != theirs:
            raise FedUnlearnError(
                f"unlearned models saw {ours} {name} examples and retrained ones {theirs}: give the same ones"
            )
    sides = (unlearned.forgotten, retrained.forgotten), (unlearned.unseen, retrained.unseen)
    accuracy = [attack_accuracy(*side) for side in sides]
    confident = [_more_confident(*side) for side in sides]
    groups = [np.arange(models) % min(GROUPS, models) != group for group in range(min(GROUPS, models))]
    left_out = [[(ours[kept], theirs[kept]) for ours, theirs in sides] for kept in groups]
    return Separation(
        float(accuracy[0].mean()),
        float(accuracy[1].mean()),
        _estimate(accuracy, [[attack_accuracy(*side).mean() for side in rest] for rest in left_out]),
        float(np.quantile(accuracy[0], 0.9)),
        _estimate(confident, [[_more_confident(*side).mean() for side in rest] for rest in left_out]),
        models,
        accuracy[0].size,
        accuracy[1].size,
    )


def attack_accuracy(unlearned: Array, retrained: Array) -> Array:
    """For each example, how often the likelier Gaussian is the right one, for models that it has not seen.

    One model of each kind is left out at a time. Where both kinds have the same distribution, the expected
    accuracy is therefore exactly 0.5.
    """
    middle = (unlearned.mean(0) + retrained.mean(0)) / 2
    ours, theirs = unlearned - middle, retrained - middle
    fits = _left_out(ours), _left_out(theirs)
    right = np.zeros_like(ours)
    for values, sign in ((ours, 1), (theirs, -1)):
        (mean, variance), (other_mean, other_variance) = fits
        evidence = (
            (values - other_mean) ** 2 / other_variance
            - (values - mean) ** 2 / variance
            + np.log(other_variance / variance)
        )
        right += (np.sign(sign * evidence) + 1) / 4
    return np.asarray(right.mean(0))


def _left_out(values: Array) -> tuple[Array, Array]:
    """Mean and variance of all other models, for each model."""
    count = len(values)
    mean = (values.sum(0) - values) / (count - 1)
    squares = np.square(values).sum(0) - np.square(values)
    variance = (squares - (count - 1) * np.square(mean)) / (count - 2)
    return mean, np.maximum(variance, 1e-12)


def _more_confident(unlearned: Array, retrained: Array) -> Array:
    """For each example, the share of pairs in which the unlearned model is the more confident one."""
    found = np.zeros(unlearned.shape[1])
    for row in unlearned:
        found += ((np.sign(row - retrained) + 1) / 2).mean(0)
    return found / len(unlearned)


def _estimate(values: list[Array], left_out: list[list[float]]) -> Estimate:
    """The difference of two means with an error from examples and models."""
    forgotten, unseen = values
    again = np.array([one - other for one, other in left_out])
    models = (len(again) - 1) * again.var()
    examples = forgotten.var(ddof=1) / forgotten.size + unseen.var(ddof=1) / unseen.size
    return Estimate(float(forgotten.mean() - unseen.mean()), math.sqrt(models + examples))
