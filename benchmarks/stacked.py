"""Federations one after the other against federations side by side: ``python benchmarks/stacked.py``.

Processor milliseconds on one core for a round of one federation: ten clients with 600 examples each, batches
of 50, a hidden layer of 64. Candidates take turns; the minimum of all turns counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch
from torch import nn

from fedunlearn import LocalTraining, Request, Sequential, flatten, unlearn
from fedunlearn.core.seeds import generator
from fedunlearn.driver import course, in_lockstep
from fedunlearn.engines import Stacked
from fedunlearn.methods.fedavg import Pretraining

CLIENTS, EXAMPLES, ROUNDS, TURNS = 10, 600, 3, 5
INPUTS, STACKS = (784, 196), (4, 8, 16, 32, 64)
TRAINING = LocalTraining(batch_size=50)


def main() -> None:
    torch.set_num_threads(1)
    print(
        "| inputs | one after the other | " + " | ".join(f"{count} side by side" for count in STACKS) + " |"
    )
    print("|---" * (len(STACKS) + 2) + "|")
    for inputs in INPUTS:
        model = nn.Sequential(nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, 10))
        random = generator("benchmark", inputs)
        data = {
            f"client-{number}": (
                torch.randn(EXAMPLES, inputs, generator=random),
                torch.randint(0, 10, (EXAMPLES,), generator=random),
            )
            for number in range(CLIENTS)
        }
        request = Request(flatten(model), tuple(sorted(data)), ())
        phases = [Pretraining(ROUNDS, 0.05)]
        candidates = [_alone(phases, request, Sequential(model, data))]
        candidates += [_together(phases, request, Stacked(model, data, range(n)), n) for n in STACKS]
        turns = [[each() for each in candidates] for _ in range(TURNS)]
        found = [f"{1000 * min(each):.1f}" for each in zip(*turns, strict=True)]
        print("| " + " | ".join([str(inputs), *found]) + " |", flush=True)


def _alone(phases: Sequence[Pretraining], request: Request, federation: Sequential) -> Callable[[], float]:
    def seconds() -> float:
        began = time.process_time()
        unlearn(phases, request, federation, training=TRAINING, evaluate_every=ROUNDS + 1, probes=())
        return (time.process_time() - began) / ROUNDS

    return seconds


def _together(
    phases: Sequence[Pretraining], request: Request, stack: Stacked, count: int
) -> Callable[[], float]:
    def seconds() -> float:
        began = time.process_time()
        runs = [
            course(
                phases,
                request,
                stack.member(place),
                training=TRAINING,
                evaluate_every=ROUNDS + 1,
                probes=(),
            )
            for place in range(count)
        ]
        in_lockstep(runs, stack.exchange)
        return (time.process_time() - began) / ROUNDS / count

    return seconds


if __name__ == "__main__":
    main()
