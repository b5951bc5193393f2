"""How time and memory grow with clients, parameters and samples, and the memory of a whole run."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Iterator
from itertools import count

import torch
from timing import Figures, family_memory, take_turns
from torch import nn
from workloads import BATCH, TERMS, holdings, jobs, network

from fedunlearn import ClientData, LocalTraining, Parallel, Request, flatten, unlearn
from fedunlearn.methods.fedavg import Pretraining

GROWTH = {
    "clients": [10, 30, 100, 300, 1000],
    "parameters": [100, 200, 400, 800, 1600],
    "samples": [3_000, 6_000, 12_000, 24_000, 48_000],
}
"""Parameters grow with the layers' width; the defaults are 12,000 samples, 10 clients and width 400."""


def growth(what: str, repeats: int) -> list[Figures]:
    """A round of training and aggregation, for each size of one quantity."""
    torch.set_num_threads(1)
    rows = []
    for size in GROWTH[what]:
        clients = size if what == "clients" else 10
        samples = size if what == "samples" else 12_000
        model = _perceptron(size if what == "parameters" else 400)
        data = holdings("mlp", samples, clients)
        with Parallel(model, data, workers=len(os.sched_getaffinity(0))) as engine:
            asked = jobs(model, data)
            times = take_turns(repeats, {"": lambda: engine.exchange(asked, TERMS).average()})[""]  # noqa: B023
            memory = family_memory()
        amount = len(flatten(model)) if what == "parameters" else size
        rows.append({"size": amount, **times, **memory})
    return rows


def exponent(rows: list[Figures], key: str) -> float:
    """The slope of a straight line through the logarithms: 1 is proportional, 0 constant."""
    points = [(math.log(row["size"]), math.log(row[key])) for row in rows]
    middle = [sum(axis) / len(points) for axis in zip(*points, strict=True)]
    above = sum((x - middle[0]) * (y - middle[1]) for x, y in points)
    return above / sum((x - middle[0]) ** 2 for x, _ in points)


def memory_of_a_run(name: str, samples: int, clients: int, rounds: int) -> dict[str, float]:
    """Megabytes of all processes in pre-training, after a tenth of its rounds and at the end."""
    torch.set_num_threads(1)
    model, data = network(name), holdings(name, samples, clients)
    request = Request(flatten(model), tuple(data), ())
    seen: list[Figures] = []
    number: Iterator[int] = count()

    def look(_: object) -> None:
        if next(number) in (rounds // 10, rounds):
            seen.append(family_memory())

    started = time.perf_counter()
    with Parallel(model, data, workers=len(os.sched_getaffinity(0))) as engine:
        unlearn(
            (Pretraining(rounds, 0.05),),
            request,
            engine,
            training=LocalTraining(batch_size=BATCH),
            evaluate_every=20,
            listeners=[look],
        )
    early, late = seen
    return {
        "rounds": rounds,
        "seconds": time.perf_counter() - started,
        "data": _megabytes(data),
        **{f"early_{key}": value for key, value in early.items()},
        **late,
    }


def _megabytes(data: dict[str, ClientData]) -> float:
    return sum(held.train.x.nbytes + held.train.y.nbytes for held in data.values()) / 1e6


def _perceptron(width: int) -> nn.Module:
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(784, width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, 10),
    )


if __name__ == "__main__":
    import json

    name, *numbers = sys.argv[1:]
    print(json.dumps(memory_of_a_run(name, *map(int, numbers))))
