"""What all simulators share: the workload file, the model, and the protocol with the driver.

A simulator is started as ``python with_<peer>.py WORKLOAD.safetensors RESULT.safetensors``. It prints
``{"ready": true, ...}``, answers every line ``round`` with ``{"wall": seconds, "cpu": seconds}`` after one
round of FedAvg, and on ``stop`` writes its parameters and ends. The output of a framework goes to stderr.
The first round of a process is slower than all others and should not count.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

NAMES = ("w0", "b0", "w1", "b1", "w2", "b2")

Batches = list[tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Workload:
    """The clients' data in memory, the initial model, and the training settings."""

    x: tuple[Tensor, ...]
    y: tuple[Tensor, ...]
    params: Mapping[str, Tensor]
    lr: float
    batch_size: int

    @property
    def clients(self) -> range:
        return range(len(self.y))

    def batches(self, client: int) -> Batches:
        """Views of consecutive rows, always in the same order."""
        x, y = self.x[client], self.y[client]
        return list(zip(x.split(self.batch_size), y.split(self.batch_size), strict=True))

    def model(self) -> nn.Sequential:
        """The perceptron, with the initial parameters."""
        shapes = [self.params[name].shape for name in ("w0", "w1", "w2")]
        first, second, third = (nn.Linear(columns, rows) for rows, columns in shapes)
        model = nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), third)
        with torch.no_grad():
            for name, parameter in zip(NAMES, model.parameters(), strict=True):
                parameter.copy_(self.params[name])
        return model


@cache
def load(path: str) -> Workload:
    """Reads a workload into memory; a second call in one process returns the same object."""
    torch.set_num_threads(1)
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
        metadata = file.metadata()
    bounds = tensors["bounds"]
    sizes = (bounds[1:] - bounds[:-1]).tolist()
    return Workload(
        x=tensors["x"].split(sizes),
        y=tensors["y"].split(sizes),
        params={name: tensors[name] for name in NAMES},
        lr=float(metadata["lr"]),
        batch_size=int(metadata["batch_size"]),
    )


def parameters(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach() for name, value in zip(NAMES, model.parameters(), strict=True)}


@cache
def learner(path: str) -> tuple[nn.Sequential, torch.optim.Optimizer]:
    """A model and its optimiser, one pair per process, for simulators without a trainer."""
    workload = load(path)
    model = workload.model()
    return model, torch.optim.SGD(model.parameters(), lr=workload.lr)


def epoch(model: nn.Module, optimizer: torch.optim.Optimizer, batches: Batches) -> None:
    """One epoch in plain PyTorch."""
    for x, y in batches:
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()


def serve(
    name: str,
    package: str,
    note: str,
    play: Callable[[], None],
    result: Callable[[], Mapping[str, Tensor]],
    cpu: Callable[[], float] = time.process_time,
) -> None:
    """Serves the driver: ``play`` runs one round, ``result`` returns the final parameters."""
    _say({"ready": True, "name": name, "version": version(package), "note": note})
    for line in sys.stdin:
        match line.strip():
            case "round":
                cpu_before, before = cpu(), time.perf_counter()
                play()
                wall = time.perf_counter() - before
                _say({"wall": wall, "cpu": cpu() - cpu_before})
            case "stop":
                save_file({key: value.contiguous() for key, value in result().items()}, sys.argv[2])
                return
            case other:
                raise RuntimeError(f"unknown command {other!r} from the driver: use 'round' or 'stop'")
    raise RuntimeError("the driver ended without the command 'stop'")


def _say(answer: Mapping[str, object]) -> None:
    print(json.dumps(answer), file=_driver, flush=True)


# From here on, file descriptor 1 is stderr in this process and its children.
_driver = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
