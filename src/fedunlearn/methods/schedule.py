"""The budget that every method is given, so that methods are compared on equal terms."""

from __future__ import annotations

from dataclasses import dataclass

from ..core import FedUnlearnError


@dataclass(frozen=True)
class Schedule:
    """Rounds and learning rates of the two stages."""

    unlearn_rounds: int = 100
    unlearn_lr: float = 0.01
    recover_rounds: int = 100
    recover_lr: float = 0.01
    pretrain_lr: float = 0.05
    """For methods that train a new model."""

    @property
    def rounds(self) -> int:
        return self.unlearn_rounds + self.recover_rounds

    @property
    def in_one_round(self) -> tuple[int, int]:
        """For methods that unlearn in a single round: that one, and all others for the recovery."""
        once = min(1, self.unlearn_rounds)
        return once, self.rounds - once


def require(fine: bool, option: str, value: object, what: str) -> None:
    """Refuses an option's value with what it must be."""
    if not fine:
        raise FedUnlearnError(f"{option} = {value!r}: it must be {what}")
