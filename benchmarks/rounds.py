"""A round of local training on either engine, against the machine's own matrix product."""

from __future__ import annotations

import os
import subprocess
import sys

import torch
from timing import GEMM_FLOP, gemm, take_turns
from workloads import flop, holdings, jobs, network

from fedunlearn import Parallel, Sequential

SIZES = {"mlp": (60_000, 10), "lenet5": (12_000, 10), "cnn": (4_000, 10), "nfresnet18": (800, 4)}
"""Samples of a round, and clients; the perceptron's is full size, the others are whole batches."""

BUSY = "while True: sum(range(10_000))"


def measure(name: str, repeats: int) -> dict[str, object]:
    """Sequential, one worker and one worker for each core, and the GEMM peak in the same turns."""
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
                "sequential": lambda: sequential.train(asked),
                "one worker": lambda: one.train(asked),
                "parallel": lambda: many.train(asked),
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
        "speedup": times["sequential"]["wall"] / times["parallel"]["wall"],
        "speedup_median": times["sequential"]["wall_median"] / times["parallel"]["wall_median"],
    }


def under_load(repeats: int, processes: int = 2) -> dict[str, float]:
    """Median full-size perceptron round, quiet and with other processes busy, in turns of five rounds."""
    torch.set_num_threads(1)
    model, data = network("mlp"), holdings("mlp", *SIZES["mlp"])
    asked = jobs(model, data)
    quiet: list[float] = []
    busy: list[float] = []
    with Parallel(model, data, workers=len(os.sched_getaffinity(0))) as engine:
        for _ in range(max(1, repeats // 5)):
            quiet.append(take_turns(5, {"": lambda: engine.train(asked)})[""]["wall_median"])
            others = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(processes)]
            try:
                busy.append(take_turns(5, {"": lambda: engine.train(asked)})[""]["wall_median"])
            finally:
                for other in others:
                    other.kill()
                    other.wait()
    middle = len(quiet) // 2
    calm, loaded = sorted(quiet)[middle], sorted(busy)[middle]
    return {"processes": processes, "quiet": calm, "busy": loaded, "ratio": loaded / calm}
