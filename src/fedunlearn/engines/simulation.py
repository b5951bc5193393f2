"""Which engine simulates a federation on this machine."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import get_args

import torch
from torch import nn

from ..client.data import ClientData, Data
from ..core import ClientId, Federation, FedUnlearnError, Precision, Task, require_count
from ..core.errors import warn
from ..core.registry import did_you_mean
from ..tasks import Classification
from .parallel import Parallel
from .sequential import Sequential
from .workers import ending

DEVICES = ("cpu", "cuda", "mps")

TRIAL = """
import torch
layers = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.Flatten(), torch.nn.Linear(8 * 36, 8))
with torch.autocast("cpu", torch.bfloat16):
    loss = layers(torch.ones(16, 3, 8, 8)).float().square().mean()
loss.backward()
"""


def simulate(
    model: nn.Module,
    data: Mapping[ClientId, ClientData | Data],
    *,
    task: Task = Classification(),
    workers: int | None = None,
    device: str = "cpu",
    precision: Precision = "fp32",
) -> AbstractContextManager[Federation]:
    """A federation on this machine: worker processes on the CPU, or one loop on an accelerator.

    ``workers`` (by default one for each core, at most one for each client) does not affect the result.
    With one worker clients train in this process; also where processes do not start, and a warning says why.
    """
    require(device, precision)
    wanted = cores() if workers is None else workers
    require_count("workers", wanted, 1)
    count = min(wanted, len(data))
    if device == "cpu" and count > 1:
        obstacle = _obstacle()
        if obstacle is None:
            engine = Parallel(model, data, workers=count, task=task, precision=precision)
            try:
                engine.start()
                return engine
            except (FedUnlearnError, OSError, RuntimeError) as error:
                obstacle = f"worker processes do not work here ({_last_line(error)})"
        warn(f"clients train one after the other, because {obstacle}", "workers")
    elif device == "cpu" and workers is None and wanted == 1:
        warn("clients train one after the other, because there is one core", "workers")
    return nullcontext(Sequential(model, data, task=task, device=device, precision=precision))


def _last_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[-1]


def require(device: str, precision: Precision) -> None:
    """Refuses a device that is not here, or arithmetic that would end the process."""
    if device not in DEVICES:
        raise FedUnlearnError(f"unknown device {device!r}{did_you_mean(device, DEVICES)}", code="unknown")
    if precision not in get_args(Precision):
        raise FedUnlearnError(
            f"unknown precision {precision!r}{did_you_mean(precision, get_args(Precision))}", code="unknown"
        )
    if (device == "cuda" and not torch.cuda.is_available()) or (
        device == "mps" and not torch.backends.mps.is_available()
    ):
        raise FedUnlearnError(
            f"device {device!r} is not available to torch {torch.__version__} here: use 'cpu'",
            code="environment",
        )
    if precision == "bf16" and device == "cpu" and (failure := _reduced_precision_fails()):
        raise FedUnlearnError(
            f"precision 'bf16' does not work here, a trial process {failure}: use 'fp32'", code="environment"
        )


@cache
def _reduced_precision_fails() -> str | None:
    """How a trial ends, if badly: on some virtual machines an illegal instruction ends the process."""
    trial = subprocess.run([sys.executable, "-c", TRIAL], capture_output=True, text=True, check=False)
    if trial.returncode != 0:
        said = trial.stderr.strip().splitlines()[-1:]
        return " ".join([ending(trial.returncode), *(f"({line})" for line in said)])
    return None


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _obstacle() -> str | None:
    if sys.platform != "linux":
        return "worker processes need Linux"
    if torch.cuda.is_initialized():
        return "this process has begun to use CUDA, which its children could not"
    if multiprocessing.current_process().daemon:
        return "this process is a worker itself and may not start others"
    return None
