"""Small federations that engines are compared on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import torch
from torch import nn

from fedunlearn import (
    ClientData,
    Examples,
    Outcome,
    Phase,
    Request,
    Schedule,
    Sequential,
    State,
    flatten,
    method,
    unlearn,
)
from fedunlearn.core import Federation, History, LocalTraining, requirements
from fedunlearn.core.seeds import generator
from fedunlearn.core.vectors import buffers, shapes
from fedunlearn.methods.fedavg import Pretraining
from fedunlearn.methods.knot import ClusteredPretraining
from fedunlearn.methods.sisa import SlicedPretraining
from fedunlearn.models import build

TRAINING = LocalTraining(batch_size=4)
LOCAL = LocalTraining(batch_size=20, shuffle=False)

SHAPES = {
    "mlp": (1, 6, 6),
    "lenet5": (1, 28, 28),
    "cnn": (3, 32, 32),  # has dropout
    "nfresnet18": (3, 8, 8),
    "batch norm": (3, 8, 8),
    "calls view": (3, 8, 8),
    "counts and draws": (3, 8, 8),
}

SMALL = {"perceptron": (1, 6, 6), "convolution": (3, 8, 8)}
"""For what is to be tried with every method."""

PUBLIC = "public"


class CallsView(nn.Module):
    """Cannot read channels-last tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.dense = nn.Conv2d(3, 4, 3), nn.Linear(4 * 36, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.dense(self.convolution(x).view(len(x), -1))


class CountsAndDraws(nn.Module):
    """Changes with every call, and is random even in evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.dense = nn.Conv2d(3, 4, 3), nn.Linear(4 * 36, 3)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        hidden = nn.functional.dropout(self.convolution(x).flatten(1), 0.3, training=True)
        return self.dense(hidden) * (1 + 0.1 * self.calls)


def network(name: str) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        if name == "batch norm":
            return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * 36, 3))
        if name == "perceptron":
            return nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.ReLU(), nn.Linear(8, 3))
        if name == "convolution":
            return nn.Sequential(
                nn.Conv2d(3, 4, 3, stride=2, padding=1),
                nn.ReLU(),
                nn.Flatten(),
                nn.Dropout(0.3),
                nn.Linear(4 * 16, 3),
            )
        if name == "calls view":
            return CallsView()
        if name == "counts and draws":
            return CountsAndDraws()
    return build(name, 3, SHAPES[name], 1)


def holdings(name: str, clients: int = 5, *, public: bool = False) -> dict[str, ClientData]:
    """Clients of different size, the last batch of each one short."""
    held, shape = {}, {**SHAPES, **SMALL}[name]
    for number in range(clients + public):
        random, size = generator("engines", name, number), 3 + 2 * number
        data = Examples(
            torch.randn(size, *shape, generator=random), torch.randint(0, 3, (size,), generator=random)
        )
        held[f"site-{number}"] = ClientData(data, {"test": data, "backdoor": data})
    if public:
        held[PUBLIC] = ClientData(held.pop(f"site-{clients}").train)
    return held


def forget(how: str, name: str, federation: Federation, rounds: int = 2, epochs: int = 1) -> Outcome:
    """A run of the method on the federation; the target is neither the first nor the last client.

    Where the method needs history, a pre-training on the same federation records it.
    """
    model, training = network(name), replace(TRAINING, epochs=epochs)

    def fresh(purpose: str) -> State:
        return State(flatten(model) * 0.5, buffers=buffers(model))

    present = federation.present()
    request = Request(
        flatten(model),
        tuple(sorted(present - {PUBLIC})),
        ("site-2",),
        fresh,
        buffers(model),
        shapes=shapes(model),
        public=PUBLIC if PUBLIC in present else None,
    )
    phases = method[how](Schedule(rounds, 0.02, rounds, 0.02))
    needed = requirements.recorded(phases)
    if needed:
        before: Phase = (
            ClusteredPretraining(rounds, 0.02, clusters=2)
            if "cluster" in needed
            else SlicedPretraining(rounds, 0.02, shards=2, slices=min(2, rounds))
            if "slice" in needed
            else Pretraining(rounds, 0.02, tuple(needed))
        )
        trained = unlearn([before], request, federation, training=training, seed=2).state
        request = replace(request.starting_from(trained), history=History.from_tensors(trained.memory))
    return unlearn(phases, request, federation, training=training, seed=3)


def same(one: Outcome, other: Outcome) -> bool:
    """Whether models, buffers and metrics are identical to the bit, except the seconds."""
    measured = [
        [
            {key: value for key, value in row.items() if not key.startswith("seconds")}
            for row in outcome.metrics
        ]
        for outcome in (one, other)
    ]
    return (
        torch.equal(one.params, other.params)
        and one.state.buffers.keys() == other.state.buffers.keys()
        and all(torch.equal(value, other.state.buffers[key]) for key, value in one.state.buffers.items())
        and measured[0] == measured[1]
    )


def ruled(name: str) -> Examples:
    """Images with a dark corner, labelled by the brightest of their first three pixels."""
    x = torch.rand(80, 1, 6, 6, generator=generator("ruled", name))
    x[..., -1, -1] = 0
    return Examples(x, x[:, 0, 0, :3].argmax(1))


def mislabelled(data: Examples) -> Examples:
    """Labels that contradict those of everybody else."""
    return Examples(data.x, (data.y + 1) % 3)


def marked(data: Examples) -> Examples:
    """A bright corner, which nobody else has, that means the first class."""
    x = data.x.clone()
    x[..., -1, -1] = 1
    return Examples(x, torch.zeros_like(data.y))


@cache
def taught(lesson: Callable[[Examples], Examples], rounds: int = 60) -> tuple[Sequential, Request]:
    """A perceptron of three clients that know the rule and of one that was taught something else."""
    sites = {
        name: ClientData(ruled(name), {"test": ruled("test")}) for name in ("site-0", "site-1", "site-2")
    }
    own = lesson(ruled("target"))
    federation = Sequential(
        model := network("perceptron"), {**sites, "target": ClientData(own, {"backdoor": own})}
    )

    def fresh(purpose: str) -> State:
        return State(0.2 * torch.randn(len(flatten(model)), generator=generator("fresh", purpose)))

    request = Request(flatten(model), (*sites, "target"), ("target",), fresh, shapes=shapes(model))
    before = unlearn([Pretraining(rounds, 0.3)], request, federation, training=LOCAL, evaluate_every=rounds)
    return federation, request.starting_from(before.state)


def untaught(lesson: Callable[[Examples], Examples], how: str, **options: object) -> tuple[float, float]:
    """How much of the lesson is left and how well the rule is known, after 30 rounds of a method."""
    federation, request = taught(lesson)
    phases = method[how](Schedule(10, 0.3, 20, 0.3, 0.3), **options)
    last = unlearn(phases, request, federation, training=LOCAL, evaluate_every=30).metrics[-1]
    return float(last["asr"]), float(last["r_acc"])
