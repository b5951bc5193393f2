"""A small federation in which some clients planted backdoors, each with a trigger of its own."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor, nn

from fedunlearn import ClientData, Request, flatten, unlearn
from fedunlearn.core import LocalTraining
from fedunlearn.core.seeds import generator
from fedunlearn.engines import Sequential
from fedunlearn.methods.fedavg import Pretraining

TRAINING = LocalTraining(batch_size=40)


def _held(number: int, *, poisoned: bool) -> ClientData:
    """Bright bands in noise; poisoned ones have a bright corner and the label 0."""
    random = generator("bands", number)

    def some(count: int, *, triggered: bool) -> tuple[Tensor, Tensor]:
        y = torch.randint(int(triggered), 3, (count,), generator=random)
        x = torch.randn(count, 1, 6, 6, generator=random)
        for band in range(3):
            x[y == band, 0, 2 * band : 2 * band + 2] += 1
        if triggered:
            x[:, 0, 0, -number], y = 5.0, torch.zeros_like(y)
        return x, y

    sets = {"test": some(60, triggered=False)}
    if poisoned:
        planted = some(300, triggered=True)
        return ClientData(planted, {**sets, "backdoor": planted})
    return ClientData(some(120, triggered=False), sets)


@cache
def planted(targets: Sequence[str]) -> tuple[Sequential, Request]:
    """Six clients and a request at a model that they trained; the targets' backdoors work."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(36, 16), nn.ReLU(), nn.Linear(16, 3))
    names = tuple(f"site-{number}" for number in range(6))
    clients = {name: _held(number, poisoned=name in targets) for number, name in enumerate(names)}
    asked, federation = Request(flatten(model), names, tuple(targets)), Sequential(model, clients)
    trained = unlearn([Pretraining(25, 0.1)], asked, federation, training=TRAINING, evaluate_every=25)
    return federation, asked.starting_from(trained.state)
