"""Canaries in an audit: a target guesses which of its own were trained on, and only counts leave it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from ..core import Mean
from ..evidence import guess_canaries
from .data import ClientData, Data

SETS = ("canary-in", "canary-out")
STATISTIC = "canaries"
"""The second word of a name such as ``model canaries``; the first is the model that the guesses are about."""

Losses = Mapping[str, Sequence[float]]
"""One for each canary, by set."""


def of(data: ClientData) -> dict[str, Data]:
    """Return the canaries of a client: those that it trains on, and those held out."""
    return {name: data.evaluations[name] for name in SETS if name in data.evaluations}


def guessed(losses: Mapping[str, Losses], references: Sequence[Losses]) -> dict[str, dict[str, Mean]]:
    """Return the number of right guesses about the model and about ω⁰, from the losses under each model.

    Losses are calibrated by the losses under the references, like other losses of an audit.
    """
    found = {}
    for name in ("model", "original"):
        trained, held_out = (_calibrated(each, losses.get(name, {}), references) for each in SETS)
        correct, guesses = guess_canaries(trained, held_out)
        if guesses:
            found[f"{name} {STATISTIC}"] = {"accuracy": Mean(correct, guesses)}
    return found


def _calibrated(name: str, losses: Losses, references: Sequence[Losses]) -> list[float]:
    """Return the losses of a set, less the mean of the references; none if the set is empty."""
    if name not in losses:
        return []
    rows = zip(losses[name], *(held[name] for held in references), strict=True)
    return [loss - (fmean(others) if others else 0.0) for loss, *others in rows]
