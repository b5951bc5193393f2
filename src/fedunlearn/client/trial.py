"""A look at the data before the first round: does the model take it, and does the task give proper losses?"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from ..core import Batch, ClientId, FedUnlearnError, LabelTask, Task
from ..core.task import valid_score
from . import data as holdings
from .data import ClientData, Data, Examples


def check(
    module: nn.Module,
    task: Task,
    placed: Callable[[Batch], Batch],
    clients: Mapping[ClientId, ClientData],
) -> None:
    """Tries the model and the task on the first examples of every set of every client."""
    trial = copy.deepcopy(module).eval()
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        for client, data in clients.items():
            for name, held in {"train": data.train, **data.evaluations}.items():
                try:
                    _try(trial, task, placed, held)
                except FedUnlearnError as error:
                    raise FedUnlearnError(f"{client}, set {name!r}: {error}") from None
                except Exception as error:
                    said = (str(error).splitlines() or [type(error).__name__])[0]
                    raise FedUnlearnError(
                        f"{client}, set {name!r}: the model fails on its first examples ({said}): "
                        "check the shapes of inputs and labels, and the task"
                    ) from error


def _try(trial: nn.Module, task: Task, placed: Callable[[Batch], Batch], held: Data) -> None:
    few = Examples(held.x[:2], held.y[:2]) if isinstance(held, Examples) else held
    labels = _labels(task, held)
    batch = next(map(placed, holdings.batches(few, 2)), None)
    if batch is None:
        raise FedUnlearnError("it yields no batch: give it examples")
    if isinstance(task, LabelTask) and labels is not None and labels.numel():
        classes, (least, most) = task.logits(trial, batch).shape[-1], map(int, labels.aminmax())
        if least < 0 or most >= classes:
            raise FedUnlearnError(
                f"label {least if least < 0 else most} is out of range: the model has {classes} "
                f"classes, so labels are 0 to {classes - 1}"
            )
    losses, scores = task.measure(trial, batch)
    # A label task may learn several labels of an example, or none.
    least = len(task.labels(batch)) if isinstance(task, LabelTask) else holdings.length(batch)
    _require_losses(task, losses, least)
    for name, values in scores.items():
        if not valid_score(name):
            raise FedUnlearnError(
                f"{type(task).__name__}.scores returns {name!r}, which is no name for a score or "
                "belongs to another measure: choose another, of small letters, digits and underscores"
            )
        if not isinstance(values, Tensor):
            raise FedUnlearnError(
                f"{type(task).__name__}.scores returns a {type(values).__name__} as {name!r}: "
                "return a tensor with one number for each example"
            )


def _labels(task: Task, held: Data) -> Tensor | None:
    """All labels of a set, where they can be read without going through a dataset."""
    if isinstance(task, LabelTask) and isinstance(held, Tensor | Mapping | Examples):
        return task.labels(held)
    return None


def _require_losses(task: Task, losses: object, least: int) -> None:
    kind = type(task).__name__
    if not isinstance(losses, Tensor) or losses.ndim == 0 or losses.numel() < least:
        told = f"a {type(losses).__name__}"
        if isinstance(losses, Tensor):
            told = "a single number" if losses.ndim == 0 else f"{losses.numel()} for {least} examples"
        raise FedUnlearnError(
            f"{kind}.losses returns {told}: return one loss for each example (reduction='none')"
        )
    if not losses.numel():
        return
    lowest, highest = map(float, losses.aminmax())
    if not (math.isfinite(lowest) and math.isfinite(highest)):
        raise FedUnlearnError(f"{kind}.losses are not finite: check the inputs and the labels")
    if lowest < -1e-6:
        raise FedUnlearnError(
            f"{kind}.losses are negative ({lowest:.3g}): check the labels; the least loss must be 0"
        )
