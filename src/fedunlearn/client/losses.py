"""Losses of local training by the name that a job carries; methods register more."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ..core import Batch, Buffers, FedUnlearnError, Job, LabelTask, Task, Vector
from ..core.registry import loss

Loss = Callable[[nn.Module, Batch], Tensor]


@loss("task", summary="ordinary training")
def _task(task: Task, job: Job) -> Loss:
    return task.loss


@loss("ascent", summary="gradient ascent: the negated loss of the task", forgets="yes")
def _ascent(task: Task, job: Job) -> Loss:
    return lambda model, batch: -task.loss(model, batch)


@loss(
    "uce", summary="unlearning cross-entropy: bounded, pushes the label's probability to zero", forgets="yes"
)
def _uce(task: Task, job: Job) -> Loss:
    return task.unlearning_loss


@loss(
    "unlikelihood",
    summary="-log(1 - p): unlearning cross-entropy that stays steep where p is 1",
    forgets="yes",
)
def _unlikelihood(task: Task, job: Job) -> Loss:
    return lambda model, batch: task.unlearning_loss(model, batch, 1.0)


def forgets(job: Job) -> bool:
    """Return whether a job's loss trains to forget; some methods forget with ordinary training."""
    return job.trains and "forgets" in loss.entry(str(job.config.get("loss", "task"))).about


def require_unlearning_loss(name: str) -> None:
    """Refuse a name that is no loss, or one that a method uses for itself."""
    owner = loss.entry(name).about.get("part_of")
    if owner is not None:
        raise FedUnlearnError(f"loss {name!r} is a part of {owner}, not an unlearning loss: name another")


class _Logits(nn.Module):
    """The logits of a task as a module, so that they can be computed with other parameters."""

    def __init__(self, task: LabelTask, model: nn.Module) -> None:
        super().__init__()
        self.task, self.model = task, model

    def forward(self, batch: Batch) -> Tensor:
        return self.task.logits(self.model, batch)


@torch.no_grad()
def teacher_logits(
    task: LabelTask, model: nn.Module, params: Vector, batch: Batch, buffers: Buffers | None = None
) -> Tensor:
    """Return ``logits_with`` without gradients, as targets for learning."""
    return logits_with(task, model, params, batch, buffers)


def logits_with(
    task: LabelTask, model: nn.Module, params: Vector, batch: Batch, buffers: Buffers | None = None
) -> Tensor:
    """Return the logits of the model with other parameters and buffers, in evaluation mode."""
    own = {name: p for name, p in model.named_parameters() if p.requires_grad}
    parts = params.split([parameter.numel() for parameter in own.values()])
    training = model.training
    model.eval()
    try:
        output: Tensor = functional_call(
            _Logits(task, model),
            {
                **{f"model.{name}": part.view_as(own[name]) for name, part in zip(own, parts, strict=True)},
                **{f"model.{name}": buffer for name, buffer in (buffers or {}).items()},
            },
            (batch,),
        )
    finally:
        model.train(training)
    return output
