"""Outputs of a model besides losses: class probabilities and the last hidden layer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from ..core import Batch, LabelTask, Mean, Task
from ..evidence import jensen_shannon
from .data import length

RIDGE = 0.1
"""The λ of the linear probe, as a share of the mean squared length of a centred feature."""


@dataclass(frozen=True)
class Outputs:
    """One row for each example, in float64."""

    probabilities: Tensor
    labels: Tensor
    features: Tensor | None
    """Inputs of the last linear layer; None if there is none behind other layers."""


def outputs(task: Task, module: nn.Module, batches: Iterable[Batch]) -> Outputs | None:
    """Return the outputs for all batches; None for tasks without one label for each example."""
    if not isinstance(task, LabelTask):
        return None
    probabilities, labels, features = [], [], []
    with _watched(module) as inputs:
        for batch in batches:
            inputs.clear()
            logits = task.logits(module, batch)
            if len(logits) != length(batch):
                return None
            probabilities.append(logits.cpu().double().softmax(1))
            labels.append(task.labels(batch).cpu())
            features += [each.cpu().double() for each in inputs if each.shape[:-1] == logits.shape[:1]]
    complete = len(features) == len(labels)
    return Outputs(torch.cat(probabilities), torch.cat(labels), torch.cat(features) if complete else None)


@contextmanager
def _watched(module: nn.Module) -> Iterator[list[Tensor]]:
    """Fill a list with the inputs of the linear layer that ran last; other layers must hold parameters."""
    inputs: list[Tensor] = []

    def keep(_layer: nn.Module, given: tuple[Any, ...]) -> None:
        inputs[:] = given[:1]

    total = sum(parameter.numel() for parameter in module.parameters())
    hooks = [
        layer.register_forward_pre_hook(keep)
        for layer in module.modules()
        if isinstance(layer, nn.Linear) and sum(part.numel() for part in layer.parameters()) < total
    ]
    try:
        yield inputs
    finally:
        for hook in hooks:
            hook.remove()


def distance(model: tuple[Outputs, Outputs], retrained: tuple[Outputs, Outputs]) -> dict[str, Mean]:
    """Return sums of Jensen–Shannon distances between two models, over forgotten and unseen examples."""
    found = {}
    for name, ours, theirs in zip(("forgotten", "unseen"), model, retrained, strict=True):
        mean = jensen_shannon(ours.probabilities.numpy(), theirs.probabilities.numpy())
        found[name] = Mean(mean * len(ours.labels), len(ours.labels))
    return found


def probe(forgotten: Outputs, unseen: Outputs) -> Mapping[str, Mean]:
    """Return the unseen examples that a linear probe gets right; empty if none can be fitted.

    The network is frozen. Ridge regression of one-hot labels on centred features of the forgotten examples,
    in closed form, gives one score for each class; the highest one is the guess.
    """
    if forgotten.features is None or unseen.features is None or len(forgotten.labels.unique()) < 2:
        return {}
    centre = forgotten.features.mean(0)
    x, y = forgotten.features - centre, one_hot(forgotten.labels, forgotten.probabilities.shape[1]).double()
    shares = y.mean(0)
    n, width = x.shape
    ridge = RIDGE * float(x.square().sum()) / width or 1.0  # features that never vary carry no information
    # The smaller one of two equal systems.
    if width <= n:
        weights = torch.linalg.solve(x.T @ x + ridge * torch.eye(width).double(), x.T @ (y - shares))
    else:
        weights = x.T @ torch.linalg.solve(x @ x.T + ridge * torch.eye(n).double(), y - shares)
    guesses = ((unseen.features - centre) @ weights + shares).argmax(1)
    return {"accuracy": Mean(float((guesses == unseen.labels).sum()), len(guesses))}
