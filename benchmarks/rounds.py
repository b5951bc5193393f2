"""A round of local training on both engines, relative to the machine's matrix product."""

from __future__ import annotations

import os
import subprocess
import sys

import torch
from timing import GEMM_FLOP, gemm, take_turns
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import ProfilerActivity, profile, record_function
from workloads import TERMS, flop, holdings, jobs, network

from fedunlearn import Classification, Parallel, Sequential
from fedunlearn.client import Learner

SIZES = {"mlp": (60_000, 10), "lenet5": (12_000, 10), "cnn": (4_000, 10), "nfresnet18": (800, 4)}
"""Samples and clients of a round; the perceptron has full size, the others have whole batches."""

KINDS = {
    "products": ("mm", "convolution"),
    "activations": ("relu", "threshold", "pool"),
    "loss": ("crossentropy", "logsoftmax", "nllloss"),
    "update": ("accumulategrad",),
}
"""The purpose of an operation, by parts of its name or of the name of its parent."""

BUSY = "while True: sum(range(10_000))"


def measure(name: str, repeats: int) -> dict[str, object]:
    """Sequential, one worker, one worker per core, and the GEMM peak, measured in turns."""
    torch.set_num_threads(1)
    cores, (samples, clients) = len(os.sched_getaffinity(0)), SIZES[name]
    model, data = network(name), holdings(name, samples, clients)
    asked, useful = jobs(model, data), samples * flop(name)
    sequential = Sequential(model, data)
    with Parallel(model, data, workers=1) as one, Parallel(model, data, workers=cores) as many:
        times = take_turns(
            repeats,
            {
                "gemm": gemm(),
                "sequential": lambda: sequential.exchange(asked, TERMS),
                "one worker": lambda: one.exchange(asked, TERMS),
                "parallel": lambda: many.exchange(asked, TERMS),
            },
        )
    peak = GEMM_FLOP / times["gemm"]["cpu"]
    return {
        "model": name,
        "samples": samples,
        "cores": cores,
        "peak": peak / 1e9,
        **{key: times[key] for key in ("sequential", "one worker", "parallel")},
        "share": {
            key: useful / (times[key]["cpu"] * peak) for key in ("sequential", "one worker", "parallel")
        },
        "profile": shares(name),
        "speedup": times["sequential"]["wall"] / times["parallel"]["wall"],
        "speedup_median": times["sequential"]["wall_median"] / times["parallel"]["wall_median"],
    }


def shares(name: str) -> dict[str, float]:
    """How one process spends its time while a client trains for an epoch."""
    torch.set_num_threads(1)
    samples, clients = SIZES[name]
    model, data = network(name), holdings(name, samples // clients, 1)
    ((client, job),) = jobs(model, data).items()
    learner = Learner(model, Classification())
    learner.perform(client, data[client], job, TERMS)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as seen, record_function("epoch"):
        learner.perform(client, data[client], job, TERMS)
    seconds = dict.fromkeys([*KINDS, "other"], 0.0)
    for event in seen.events():
        seconds[_kind(event, len(job.params))] += event.self_cpu_time_total
    return {kind: spent / sum(seconds.values()) for kind, spent in seconds.items()}


def _kind(event: FunctionEvent | None, parameters: int) -> str:
    if event is None:
        return "other"
    if event.input_shapes and list(event.input_shapes[0]) == [parameters]:
        return "update"  # a pass over all parameters
    called = event.name.lower().replace("_", "")
    found = (kind for kind, parts in KINDS.items() if any(part in called for part in parts))
    return next(found, None) or _kind(event.cpu_parent, parameters)


def under_load(repeats: int, processes: int = 2) -> dict[str, float]:
    """Median full-size perceptron round, on a quiet machine and under load, in turns of five rounds."""
    torch.set_num_threads(1)
    model, data = network("mlp"), holdings("mlp", *SIZES["mlp"])
    asked = jobs(model, data)
    quiet: list[float] = []
    busy: list[float] = []
    with Parallel(model, data, workers=len(os.sched_getaffinity(0))) as engine:
        for _ in range(max(1, repeats // 5)):
            quiet.append(take_turns(5, {"": lambda: engine.exchange(asked, TERMS)})[""]["wall_median"])
            others = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(processes)]
            try:
                busy.append(take_turns(5, {"": lambda: engine.exchange(asked, TERMS)})[""]["wall_median"])
            finally:
                for other in others:
                    other.kill()
                    other.wait()
    middle = len(quiet) // 2
    calm, loaded = sorted(quiet)[middle], sorted(busy)[middle]
    return {"processes": processes, "quiet": calm, "busy": loaded, "ratio": loaded / calm}
