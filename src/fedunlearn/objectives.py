"""What clients minimise, by the name that a job carries."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from .core import Examples, FedUnlearnError, Objective, Vector
from .core.registry import objective
from .maths import unlearning_cross_entropy

__all__ = ["Ascend", "Minimise", "answers", "objective", "require_loss"]


@dataclass(frozen=True)
class Minimise:
    """A criterion on the model's output, plain steps, and nothing to upload."""

    criterion: Callable[[Tensor, Tensor], Tensor] = cross_entropy

    def loss(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return self.criterion(model(x), y)

    def step(self, params: Vector, gradient: Vector, lr: float) -> Vector:
        return lr * gradient

    def upload(self, model: nn.Module, batches: Iterable[Examples]) -> Mapping[str, Tensor]:
        return {}


@dataclass(frozen=True)
class Ascend(Minimise):
    """Gradient ascent on the labels, each step's gradient clipped to a norm."""

    criterion: Callable[[Tensor, Tensor], Tensor] = lambda output, y: -cross_entropy(output, y)
    clip: float = math.inf

    def step(self, params: Vector, gradient: Vector, lr: float) -> Vector:
        norm = float(torch.linalg.vector_norm(gradient))
        return lr * min(1.0, self.clip / norm if norm > 0 else 1.0) * gradient


@torch.no_grad()
def answers(model: nn.Module, params: Vector, x: Tensor) -> Tensor:
    """What the model would say with other parameters, in evaluation mode."""
    names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    own, training = dict(model.named_parameters()), model.training
    parts = params.split([own[name].numel() for name in names])
    model.eval()
    try:
        output: Tensor = functional_call(
            model, {name: part.view_as(own[name]) for name, part in zip(names, parts, strict=True)}, (x,)
        )
    finally:
        model.train(training)
    return output


@objective("cross_entropy", summary="ordinary training on labels")
def _cross_entropy(arrays: Mapping[str, Tensor]) -> Objective:
    return Minimise(cross_entropy)


@objective("ascent", summary="gradient ascent on labels, clipped where the job says so")
def _ascent(arrays: Mapping[str, Tensor]) -> Objective:
    return Ascend(clip=float(arrays["clip"])) if "clip" in arrays else Ascend()


@objective("uce", summary="unlearning cross-entropy: bounded, pushes the label's probability to zero")
def _uce(arrays: Mapping[str, Tensor]) -> Objective:
    return Minimise(unlearning_cross_entropy)


@objective("unlikelihood", summary="-log(1 - p): unlearning cross-entropy that stays steep where p is 1")
def _unlikelihood(arrays: Mapping[str, Tensor]) -> Objective:
    return Minimise(partial(unlearning_cross_entropy, constant=1.0))


def require_loss(name: str) -> None:
    """Refuses a name that is no objective, or one that a method uses for itself."""
    if "part_of" in objective.entry(name).about:
        owner = objective.entry(name).about["part_of"]
        raise FedUnlearnError(
            f"objective {name!r} is a part of {owner}, not an unlearning loss: name another"
        )
