"""Canaries: synthetic examples that each client gets at enrolment, to be looked for in an audit.

A canary is a picture of noise with a random label. It is nobody's data, and a model can know its label only
by heart. A fair coin decides for each whether the client trains on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from ..client.data import ClientData, Examples
from ..core import ClientId, FedUnlearnError, require_count
from ..core.seeds import generator
from .datasets import Dataset
from .population import Population

BRIGHT = 0.2
"""Share of bright pixels."""


def draw_canaries(
    client: ClientId,
    count: int,
    *,
    shape: Sequence[int],
    classes: int,
    seed: int,
    low: float = 0.0,
    high: float = 1.0,
) -> tuple[Examples, Examples]:
    """Draw the canaries of a client: those that it trains on, and those held out.

    A fifth of the pixels, drawn at random, has the value ``high``, the others have ``low``. The label is one
    of all classes. Every draw is of its own: whether a canary is trained on says nothing about its picture,
    its label or another canary.
    """
    require_count("canaries", count, 1)
    bright = torch.rand(count, *shape, generator=generator("canary pictures", seed, client)) < BRIGHT
    y = torch.randint(classes, (count,), generator=generator("canary labels", seed, client))
    trained = torch.rand(count, generator=generator("canary coins", seed, client)) < 0.5
    drawn = Examples(torch.where(bright, float(high), float(low)), y)
    return drawn.take(trained), drawn.take(~trained)


def plant_canaries(data: ClientData, trained: Examples, held_out: Examples) -> ClientData:
    """A client with canaries: it trains on some of them, after its own examples, and keeps all of them."""
    x, y = (torch.cat(parts) for parts in zip(data.train, trained, strict=True))
    sets = {"canary-in": trained, "canary-out": held_out}
    kept = {name: examples for name, examples in sets.items() if len(examples.y)}
    return ClientData(Examples(x, y), {**data.evaluations, **kept})


def plant(population: Population, dataset: Dataset, count: int, seed: int) -> Population:
    """Give each client ``count`` canaries; those of a target are part of what it asks to forget."""
    if any("#class-" in target for target in population.targets):
        raise FedUnlearnError(
            "canaries have labels of all classes, so forgetting one class does not cover them: "
            "set data.canaries = 0"
        )
    low, high = map(float, dataset.train.x.aminmax())
    drawn = {
        client: draw_canaries(
            client,
            count,
            shape=dataset.train.x.shape[1:],
            classes=dataset.classes,
            seed=seed,
            low=low,
            high=high,
        )
        for client in population.pretraining
    }
    parts = {target.partition("#")[0] for target in population.targets if "#" in target}
    return replace(
        population,
        pretraining={c: plant_canaries(data, *drawn[c]) for c, data in population.pretraining.items()},
        unlearning={
            c: data if c in parts else plant_canaries(data, *drawn[c.partition("#")[0]])
            for c, data in population.unlearning.items()
        },
    )
