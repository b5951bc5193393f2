"""How far the time that a plan estimates is from that of the run: ``python benchmarks/plans.py``."""

from __future__ import annotations

import time
from statistics import median

from workloads import holdings, network

from fedunlearn import (
    Guards,
    LocalTraining,
    Parallel,
    Request,
    Schedule,
    Sequential,
    State,
    flatten,
    method,
    shapes,
    unlearn,
)
from fedunlearn.core import Federation
from fedunlearn.erasure.plan import make_plan

METHODS = ("fast-retrain", "fedosd", "ascent", "not")
SCHEDULE, TRAINING, GUARDS = (
    Schedule(5, 0.02, 5, 0.02),
    LocalTraining(batch_size=50),
    Guards(harm=1e6, budget=1e6),
)
REPEATS = 3
NEVER = 10**9


def compared(federation: Federation, request: Request, name: str) -> tuple[float, float]:
    """The estimated seconds of a run, and those that it took."""
    plan = make_plan(federation, request, name, SCHEDULE, training=TRAINING, guards=GUARDS)
    began = time.perf_counter()
    phases = method[name](SCHEDULE)
    outcome = unlearn(phases, request, federation, training=TRAINING, guards=GUARDS, evaluate_every=NEVER)
    seconds = time.perf_counter() - began
    assert plan.seconds is not None
    assert len(outcome.metrics) == 1 + plan.total("rounds"), outcome.reason
    return plan.seconds, seconds


def main() -> None:
    for model, samples in (("mlp", 2_000), ("lenet5", 1_000)):
        module, data = network(model), holdings(model, samples, 10)
        start = State(flatten(module))
        request = Request(
            start.params,
            tuple(data),
            ("client-0003",),
            lambda purpose, start=start: start,
            shapes=shapes(module),
        )
        with Parallel(module, data, workers=2) as parallel:
            for engine, federation in (("sequential", Sequential(module, data)), ("parallel", parallel)):
                for name in METHODS:
                    pairs = [compared(federation, request, name) for _ in range(REPEATS)]
                    ratios = sorted(estimated / real for estimated, real in pairs)
                    seconds = median(real for _, real in pairs)
                    print(
                        f"{model} {engine} {name}: {seconds:.2f} s, estimate / run {median(ratios):.2f} "
                        f"({ratios[0]:.2f} to {ratios[-1]:.2f})",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
