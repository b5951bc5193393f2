"""The budget that all methods share, so that they are compared on equal terms."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

from ..core import require_count, require_rate


@dataclass(frozen=True)
class Schedule:
    """Rounds and learning rates of the two stages."""

    unlearn_rounds: int = 100
    unlearn_lr: float = 0.01
    recover_rounds: int = 100
    recover_lr: float = 0.01
    pretrain_lr: float = 0.05
    """For methods that train a new model."""

    @classmethod
    def after(cls, rounds: int, lr: float) -> Self:
        """Return the schedule of a request that states none, about a model trained like this.

        Two stages of half the rounds of training, 10 to 100 each, at a quarter and a fifth of its rate.
        """
        half = min(100, max(10, math.ceil(rounds / 2)))
        return cls(half, lr / 4, half, lr / 5, lr)

    def __post_init__(self) -> None:
        for name in ("unlearn_rounds", "recover_rounds"):
            require_count(name, getattr(self, name))
        for name in ("unlearn_lr", "recover_lr", "pretrain_lr"):
            require_rate(name, getattr(self, name))

    @property
    def rounds(self) -> int:
        return self.unlearn_rounds + self.recover_rounds

    @property
    def in_one_round(self) -> tuple[int, int]:
        """For methods that unlearn in a single round: the rounds of unlearning and of recovery."""
        once = min(1, self.unlearn_rounds)
        return once, self.rounds - once
