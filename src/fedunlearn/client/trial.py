"""A trial before the first round: the model must take the data, and the task must give proper losses."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from ..core import Batch, ClientId, FedUnlearnError, LabelTask, Task, vectors
from ..core.task import valid_score
from . import data as holdings
from .data import ClientData, Data, Examples

MOST = 100_000
"""The rows of a ``Dataset`` or ``DataLoader`` read before round one; tensors are checked as a whole."""

MORE = "give the client more examples, or its DataLoader drop_last=True"
SOME = 20
"""The examples of a client that show whether a model predicts one class."""


def check(
    module: nn.Module,
    task: Task,
    placed: Callable[[Batch], Batch],
    clients: Mapping[ClientId, ClientData],
) -> None:
    """Try the model and the task on the first examples of every set of every client; check every row."""
    trial = copy.deepcopy(module).eval()
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        for client, data in clients.items():
            for name, held in {"train": data.train, **data.evaluations}.items():
                try:
                    lone = _try(trial, task, placed, held)
                    if name == "train" and lone is not None:
                        _try_alone(copy.deepcopy(trial).train(), task, lone)
                except FedUnlearnError as error:
                    raise FedUnlearnError(f"{client}, set {name!r}: {error}", code="data") from None
                except Exception as error:
                    detail = (str(error).splitlines() or [type(error).__name__])[0]
                    raise FedUnlearnError(
                        f"{client}, set {name!r}: it cannot be read, or the model fails on it ({detail}): "
                        "check the shapes of inputs and labels, and the task",
                        code="data",
                    ) from error


def _try(trial: nn.Module, task: Task, placed: Callable[[Batch], Batch], held: Data) -> Batch | None:
    """Return a batch of one example, if there is one."""
    few = Examples(held.x[:2], held.y[:2]) if isinstance(held, Examples) else held
    classes = None
    if isinstance(task, LabelTask) and isinstance(held, Tensor | Mapping | Examples):
        task.labels(held)  # refuses other types and shapes
    batch = next(map(placed, holdings.batches(few, 2)), None)
    if batch is None:
        raise FedUnlearnError("it yields no batch: give it examples")
    if isinstance(task, LabelTask):
        classes = task.logits(trial, batch).shape[-1]
    lone = _check_rows(held, placed, lambda rows: _check_values(trial, task, rows, classes))
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
    if classes is None:  # the labels of a label task show whether its losses are proper
        _check_rows(held, placed, lambda rows: _require_losses(task, task.losses(trial, rows), 0))
    return lone


def _check_rows(held: Data, placed: Callable[[Batch], Batch], check: Callable[[Batch], None]) -> Batch | None:
    """Name the first row that a check refuses; return a batch of one example, if there is one."""
    seen, loads, lone = 0, isinstance(held, DataLoader), None
    for batch in map(placed, holdings.batches(held, 200)):
        length = holdings.length(batch)
        lone = batch if length == 1 and (loads or not seen) else lone
        try:
            check(batch)
        except FedUnlearnError as found:
            rows = holdings.batches(batch, 1) if isinstance(batch, Tensor | Mapping | Examples) else ()
            for number, row in enumerate(rows):
                try:
                    check(row)
                except FedUnlearnError as error:
                    what = "example that its loader yields" if loads else "row"
                    raise FedUnlearnError(
                        f"{what} {seen + number} (the first is 0): {error}", code="data"
                    ) from None
            raise found
        seen += length
        if seen >= MOST and isinstance(held, Dataset | DataLoader):
            break
    return lone


def _check_values(trial: nn.Module, task: Task, rows: Batch, classes: int | None) -> None:
    if isinstance(task, LabelTask) and classes is not None and (labels := task.labels(rows)).numel():
        least, most = map(int, labels.aminmax())
        if least < 0 or most >= classes:
            raise FedUnlearnError(
                f"label {least if least < 0 else most} is out of range: the model has {classes} "
                f"classes, so labels are 0 to {classes - 1}"
            )
    if not _finite(rows):
        # A model may fill in what is missing: then loss and gradient are finite all the same.
        with torch.enable_grad():
            loss = task.loss(trial, rows)
            slopes = torch.autograd.grad(loss, vectors.trainable(trial), materialize_grads=True)
        if not _finite((loss.detach(), *slopes)):
            raise FedUnlearnError("a number is not finite: correct it, or leave the row out")


def _finite(batch: Batch) -> bool:
    if not isinstance(batch, Tensor):
        return all(map(_finite, batch.values() if isinstance(batch, Mapping) else batch))
    extremes = batch.aminmax() if batch.is_floating_point() and batch.numel() else ()
    return all(math.isfinite(float(extreme)) for extreme in extremes)


def _try_alone(trained: nn.Module, task: Task, lone: Batch, remedy: str = MORE) -> None:
    try:
        task.loss(trained, lone)
    except ValueError as error:
        raise FedUnlearnError(
            f"the model cannot train on a batch of one example ({error}): {remedy}"
        ) from None


def require_lone(module: nn.Module, task: Task, data: Data) -> None:
    """Refuse a model that cannot train on batches of one example, which these settings make."""
    if isinstance(data, DataLoader):
        return  # which makes its own batches
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        one = next(holdings.batches(holdings.part(data, torch.tensor([0])), 1))
        remedy = "train in larger batches, LocalTraining(batch_size=…)"
        _try_alone(copy.deepcopy(module).train(), task, one, remedy)


def constant_loss(module: nn.Module, task: LabelTask, clients: Iterable[ClientData]) -> float | None:
    """Return the least loss of a constant prediction if a model predicts one class for all examples.

    It looks at some examples of each client that holds tensors.
    """
    predicted, labels = set[int](), list[Tensor]()
    with torch.random.fork_rng(devices=[]), torch.inference_mode():
        for data in clients:
            if isinstance(data.train, Tensor | Mapping | Examples):
                some = torch.linspace(0, holdings.size(data.train) - 1, SOME).long()
                batch = holdings.part(data.train, some)
                labels.append(task.labels(batch).flatten())
                predicted |= {*task.logits(module.eval(), batch).argmax(-1).flatten().tolist()}
            if len(predicted) > 1:
                return None
    shares = torch.cat(labels).bincount().double() / sum(map(len, labels)) if labels else torch.ones(1)
    return float(torch.special.entr(shares).sum()) or None


def _require_losses(task: Task, losses: object, least: int) -> None:
    kind = type(task).__name__
    if not isinstance(losses, Tensor) or losses.ndim == 0 or losses.numel() < least:
        returned = f"a {type(losses).__name__}"
        if isinstance(losses, Tensor):
            returned = "a single number" if losses.ndim == 0 else f"{losses.numel()} for {least} examples"
        raise FedUnlearnError(
            f"{kind}.losses returns {returned}: return one loss for each example (reduction='none')"
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
