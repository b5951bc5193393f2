"""Federations of a given size with random data; the time does not depend on the content of images."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.flop_counter import FlopCounterMode

from fedunlearn import ClientData, Examples, Job, Terms, flatten, train
from fedunlearn.models import build

SHAPES = {
    "mlp": (1, 28, 28),
    "wide": (1, 28, 28),
    "lenet5": (1, 28, 28),
    "cnn": (3, 32, 32),
    "nfresnet18": (3, 32, 32),
}
BATCH = 200
TERMS = Terms(lr=0.05, batch_size=BATCH)


def network(name: str) -> nn.Module:
    """``wide`` is a perceptron with 2.6 million parameters, little arithmetic for its size."""
    if name == "wide":
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(1)
            layers = nn.Linear(784, 1290), nn.ReLU(), nn.Linear(1290, 1200), nn.ReLU(), nn.Linear(1200, 10)
            return nn.Sequential(nn.Flatten(), *layers)
    return build(name, 10, SHAPES[name], 1)


def holdings(name: str, samples: int, clients: int) -> dict[str, ClientData]:
    """Samples distributed evenly; a sixth as many are for evaluation."""
    random = torch.Generator().manual_seed(1)
    x = torch.rand(samples, *SHAPES[name], generator=random)
    y = torch.randint(0, 10, (samples,), generator=random)
    size = samples // clients
    held = {}
    for number in range(clients):
        mine = Examples(*(part[number * size : (number + 1) * size] for part in (x, y)))
        tested = Examples(mine.x[: max(1, size // 6)], mine.y[: max(1, size // 6)])
        held[f"client-{number:04}"] = ClientData(mine, {"test": tested})
    return held


def jobs(model: nn.Module, data: dict[str, ClientData]) -> dict[str, Job]:
    return dict.fromkeys(data, train(flatten(model)))


def flop(name: str) -> float:
    """Floating-point operations of one training sample, without optimiser and activations."""
    model, x = network(name), torch.rand(2, *SHAPES[name])
    with FlopCounterMode(display=False) as counter:
        cross_entropy(model(x), torch.tensor([0, 1])).backward()
    return counter.get_total_flops() / 2
