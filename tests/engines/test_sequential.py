from __future__ import annotations

import torch
from torch import nn

from fedunlearn import (
    ClientData,
    Examples,
    LocalTraining,
    Request,
    Schedule,
    Sequential,
    State,
    method,
    unlearn,
)
from fedunlearn.core.seeds import generator
from fedunlearn.core.vectors import flatten


def model() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(5, 16), nn.Dropout(0.3), nn.ReLU(), nn.Linear(16, 3))


def clients(names: list[str]) -> dict[str, ClientData]:
    held = {}
    for name in names:
        random = generator("engine", name)
        data = Examples(torch.randn(40, 5, generator=random), torch.randint(0, 3, (40,), generator=random))
        held[name] = ClientData(data, {"test": data})
    return held


def final(names: list[str], threads: int = 1) -> torch.Tensor:
    torch.set_num_threads(threads)
    network = model()
    request = Request(flatten(network), tuple(names), ("c",), lambda purpose: State(flatten(network)))
    phases = method["fedosd"](Schedule(5, 0.1, 5, 0.1))
    training = LocalTraining(epochs=2, batch_size=16)
    try:
        return unlearn(phases, request, Sequential(network, clients(names)), training=training).params
    finally:
        torch.set_num_threads(1)


def test_the_same_run_gives_the_same_bits_whatever_the_order_of_clients_or_the_threads_around_it():
    expected = final(["a", "b", "c", "d"])
    assert torch.equal(final(["a", "b", "c", "d"]), expected)
    assert torch.equal(final(["d", "c", "a", "b"]), expected)
    assert torch.equal(final(["a", "b", "c", "d"], threads=2), expected)


def test_what_happened_before_does_not_matter_for_dropout():
    torch.manual_seed(5)
    expected = final(["a", "b", "c", "d"])
    torch.rand(100)
    assert torch.equal(final(["a", "b", "c", "d"]), expected)
