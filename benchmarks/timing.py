"""Timing: candidates take turns, and every wall time comes with its CPU time."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

Figures = dict[str, float]


def take_turns(repeats: int, candidates: Mapping[str, Callable[[], object]]) -> dict[str, Figures]:
    """Minimum and median of wall and CPU seconds, after one warm-up round."""
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in candidates}
    for turn in range(repeats + 1):
        for name, candidate in candidates.items():
            wall, cpu = time.perf_counter(), family_cpu()
            candidate()
            if turn:
                seconds[name].append((time.perf_counter() - wall, family_cpu() - cpu))
    return {name: figures(pairs) for name, pairs in seconds.items()}


def figures(pairs: list[tuple[float, float]]) -> Figures:
    walls, cpus = zip(*pairs, strict=True)
    return {
        "wall": min(walls),
        "wall_median": statistics.median(walls),
        "cpu": min(cpus),
        "cpu_median": statistics.median(cpus),
        "repeats": len(walls),
    }


def family() -> list[int]:
    """This process and its children."""
    me = os.getpid()
    return [me, *map(int, Path(f"/proc/{me}/task/{me}/children").read_text().split())]


def family_cpu() -> float:
    """CPU seconds of this process and of the main threads of its children, to the nanosecond."""
    children = (Path(f"/proc/{child}/schedstat").read_text() for child in family()[1:])
    return time.process_time() + sum(int(text.split()[0]) for text in children) / 1e9


def family_memory() -> Figures:
    """Megabytes of all processes: ``rss`` counts shared pages in each, ``pss`` once."""
    totals = {"rss": 0.0, "pss": 0.0}
    for member in family():
        for line in Path(f"/proc/{member}/smaps_rollup").read_text().splitlines():
            name, _, rest = line.partition(":")
            if name.lower() in totals:
                totals[name.lower()] += int(rest.split()[0]) / 1000
    return totals


def gemm() -> Callable[[], object]:
    """A square float32 product of 2.147 GFLOP: the peak of this machine."""
    a, b, out = torch.randn(1024, 1024), torch.randn(1024, 1024), torch.empty(1024, 1024)
    return lambda: torch.mm(a, b, out=out)


GEMM_FLOP = 2 * 1024**3


def machine() -> dict[str, object]:
    """The machine that the figures were measured on."""
    processor = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        "unknown",
    )
    return {
        "processor": processor,
        "capability": torch.backends.cpu.get_cpu_capability(),
        "cores": len(os.sched_getaffinity(0)),
        "torch": torch.__version__,
        "load": [round(load, 2) for load in os.getloadavg()],
    }
