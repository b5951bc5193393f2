"""A small world with a client to audit: noisy labels, which a model can only know by heart."""

from __future__ import annotations

from functools import cache

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fedunlearn import ClientData, Examples, State
from fedunlearn.core.seeds import generator
from fedunlearn.core.vectors import buffers, flatten

SITES = ("site-0", "site-1", "site-2")
TARGET = "site-1"
SIZE = 620


@cache
def world() -> dict[str, ClientData]:
    return {site: _site(site) for site in SITES}


def _site(site: str) -> ClientData:
    """A fifth of the labels is random; the same distribution everywhere."""
    random = generator("audit", site)

    def drawn(size: int) -> Examples:
        x = torch.randn(size, 12, generator=random)
        noise = torch.rand(size, generator=random) < 0.2
        y = torch.where(noise, torch.randint(0, 3, (size,), generator=random), x[:, :3].argmax(1))
        return Examples(x, y)

    train = drawn(SIZE)
    return ClientData(
        train, {"test": drawn(100), "audit": drawn(SIZE), "seen": Examples(train.x[:5], train.y[:5])}
    )


@cache
def marked() -> dict[str, ClientData]:
    """The same world with a backdoor in the target's data, and enough unseen examples for a TPR."""
    held, others = world()[TARGET], [world()[site] for site in SITES if site != TARGET]
    unseen = Examples(
        torch.cat([each.evaluations["audit"].x for each in (held, *others)]),
        torch.cat([each.evaluations["audit"].y for each in (held, *others)]),
    )

    def triggered(examples: Examples, size: int) -> Examples:
        x = examples.x[:size].clone()
        x[:, -1] = 5
        return Examples(x, (examples.y[:size] + 1) % 3)

    sets = {"audit": unseen, "backdoor": triggered(held.train, 50)}
    sets["backdoor-unseen"] = triggered(unseen, 80)
    return {**world(), TARGET: ClientData(held.train, {**held.evaluations, **sets})}


def network() -> nn.Module:
    """With BatchNorm, so that every model brings buffers of its own."""
    return nn.Sequential(nn.Linear(12, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 3))


@cache
def fitted(seed: int, *sites: str) -> State:
    """A model that has learned the examples of these sites nearly by heart."""
    x = torch.cat([world()[site].train.x for site in sites])
    y = torch.cat([world()[site].train.y for site in sites])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = network()
    optimiser = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(60):
        optimiser.zero_grad()
        cross_entropy(model(x), y).backward()
        optimiser.step()
    return State(flatten(model), buffers=buffers(model))


def before(seed: int = 1) -> State:
    """ω⁰, trained on everybody's data."""
    return fitted(seed, *SITES)


def retrained(seed: int = 2) -> State:
    """Trained without the target."""
    return fitted(seed, *(site for site in SITES if site != TARGET))
