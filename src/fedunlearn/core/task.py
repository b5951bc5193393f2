"""What is learned: the only place that knows what a batch and a prediction are."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from torch import Tensor, nn

from ..maths import unlearning_transform

Batch: TypeAlias = Any
"""What a client's data yields: a tensor, a tuple or a dict of tensors."""

Criterion: TypeAlias = Callable[[Tensor, Tensor], Tensor]

SCORE = re.compile(r"(?!(loss|seen|acc|acc_worst|acc_best|.*_std)$)[a-z][a-z0-9_]*")
"""Names of scores: those of other measures, such as ``r_seen`` and ``r_acc_std``, are not free."""


def valid_score(name: object) -> bool:
    """Whether a score can have this name, by which measures call its means: ``r_NAME``, ``forget_NAME``."""
    return isinstance(name, str) and SCORE.fullmatch(name) is not None


class Task(ABC):
    """A task of one's own overrides ``losses``, and ``scores`` where means of other numbers are reported.

    Training minimises the mean of the losses, forgetting the mean of their unlearning transform, and every
    measure is a mean of losses or scores.
    """

    @abstractmethod
    def losses(self, model: nn.Module, batch: Batch) -> Tensor:
        """At least zero, one for each thing that can be remembered: an example, a label or a token."""

    def scores(self, model: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        """Numbers whose means are reported, such as ``{"accuracy": correct}``: an accuracy is 0 to 1."""
        return {}

    def measure(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Losses and scores; override it to compute both from one prediction."""
        return self.losses(model, batch), self.scores(model, batch)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """What local training minimises."""
        return self.losses(model, batch).mean()

    def unlearning_loss(self, model: nn.Module, batch: Batch, constant: float = 2.0) -> Tensor:
        """What the targets minimise to forget: −log(1 − e^−L/constant), FedOSD's Eq. 3."""
        return unlearning_transform(self.losses(model, batch), constant=constant).mean()

    def criterion(self, loss: str) -> Criterion | None:
        """The named loss as a function of output and labels of an ``(x, y)`` batch, if it is one.

        Engines use it for a faster way through plain models.
        """
        return None


class LabelTask(Task):
    """A task with one label out of several for each thing to learn: methods that distil need its logits."""

    @abstractmethod
    def logits(self, model: nn.Module, batch: Batch) -> Tensor:
        """One row for each label, one column for each class."""

    @abstractmethod
    def labels(self, batch: Batch) -> Tensor:
        """The right class of each row."""
