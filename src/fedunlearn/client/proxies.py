"""Proxies: examples made from a model alone, which represent its knowledge of each class."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ..core import Batch, FedUnlearnError, LabelTask, Vector
from ..core.seeds import generator
from .losses import logits_with

STEPS, LENGTH = 40, 0.01
"""The most steps from noise to a proxy, and their length as a share of the diagonal of the inputs' range."""
PREDICTED = 0.5
"""The loss at which a proxy is done: its class is predicted, but the gradient has not vanished yet."""


@dataclass(frozen=True)
class Proxies:
    """Proxies, with a class for each."""

    batch: Batch
    classes: Tensor

    def loss(self, task: LabelTask, model: nn.Module) -> Tensor:
        """Return cross-entropy in evaluation mode: proxies must not enter the statistics of BatchNorm."""
        training = model.training
        try:
            return cross_entropy(task.logits(model.eval(), self.batch), self.classes)
        finally:
            model.train(training)


def class_proxies(task: LabelTask, model: nn.Module, params: Vector, batch: Batch, each: int) -> Proxies:
    """Return ``each`` inputs for each class, which descend from noise until ``params`` predict it.

    Only the form and the range of the inputs in ``batch`` are used.
    """
    like, classes = _inputs(batch), logits_with(task, model, params, batch).shape[1]
    wanted = torch.arange(classes, device=like.device).repeat(each)
    low, high = like.amin(), like.amax()
    noise = torch.rand(len(wanted), *like.shape[1:], generator=generator("class proxies"))
    made, reach = low + (high - low) * noise.to(like), LENGTH * (high - low) * like[0].numel() ** 0.5
    for _ in range(STEPS):
        made.requires_grad_()
        losses = cross_entropy(logits_with(task, model, params, _with(batch, made)), wanted, reduction="none")
        (slopes,) = torch.autograd.grad(losses.sum(), made)
        lengths = slopes.flatten(1).norm(dim=1).clamp(min=torch.finfo(slopes.dtype).tiny)
        paces = (reach * (losses.detach() > PREDICTED) / lengths).to(slopes.dtype)
        made = (made.detach() - paces.view(-1, *[1] * (slopes.ndim - 1)) * slopes).clamp(low, high)
    return Proxies(_with(batch, made), wanted)


def _inputs(batch: Batch) -> Tensor:
    parts = batch.values() if isinstance(batch, Mapping) else batch[:1]
    found = [part for part in parts if isinstance(part, Tensor) and part.is_floating_point()]
    if len(found) != 1:
        raise FedUnlearnError(
            "examples are made up by gradient descent on their inputs, which must be one tensor of "
            "floating-point numbers in each batch: use another method than fedcare",
            code="unsuitable",
        )
    return found[0]


def _with(batch: Batch, inputs: Tensor) -> Batch:
    """Return the batch with other inputs; its labels stay and are not used."""
    if isinstance(batch, Mapping):
        own = _inputs(batch)
        return {name: inputs if part is own else part for name, part in batch.items()}
    return (inputs, *batch[1:])
