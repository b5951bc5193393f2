"""What clients minimise, by the name that a job carries."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from .maths import unlearning_cross_entropy
from .registry import objective
from .types import Objective, Vector

__all__ = ["Minimise", "objective"]


@dataclass(frozen=True)
class Minimise:
    """A criterion on the model's output, with nothing to project."""

    criterion: Callable[[Tensor, Tensor], Tensor]

    def loss(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return self.criterion(model(x), y)

    def project(self, params: Vector) -> Vector:
        return params


@objective("cross_entropy", summary="ordinary training on labels")
def _cross_entropy(arrays: Mapping[str, Tensor]) -> Objective:
    return Minimise(cross_entropy)


@objective("uce", summary="unlearning cross-entropy: bounded, pushes the label's probability to zero")
def _uce(arrays: Mapping[str, Tensor]) -> Objective:
    return Minimise(unlearning_cross_entropy)
