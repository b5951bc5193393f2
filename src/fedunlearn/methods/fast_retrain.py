"""Fast retraining: a new model, averaged with server momentum (Hsu et al., 2019) at a falling rate (ours)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from ..core import Phase, Request, Round, State, require, train
from ..core.registry import method
from .fedavg import Averaging
from .recovering import RecoveringAveraging
from .schedule import Schedule

MOMENTUM = 0.8
LAST = 0.05
"""The learning rate of the last round, as a share of the first."""


@dataclass(frozen=True)
class MomentumAveraging(Averaging):
    """The server treats the mean displacement as a gradient and descends with Nesterov's momentum.

    The learning rate is constant in the first half of the rounds and then falls linearly.
    """

    momentum: float = MOMENTUM

    def round(self, request: Request, state: State) -> Round:
        rate = self.lr * share(state.round, self.rounds)
        replies = yield {client: train(state.params, lr=rate) for client in request.asked}
        mean = replies.some(request.asked).average()
        velocity = self.momentum * state.memory.get("velocity", torch.zeros_like(mean)) + mean
        return state.step(-mean - self.momentum * velocity).remember(velocity=velocity)


@dataclass(frozen=True)
class FreshMomentumAveraging(MomentumAveraging):
    """The same from a new random model."""

    purpose: str = "fast-retrain"

    needs: ClassVar[frozenset[str]] = frozenset({"fresh"})

    def start(self, request: Request, state: State) -> State:
        assert request.fresh is not None
        return request.fresh(self.purpose)


def share(number: int, rounds: int) -> float:
    """Of the learning rate, in a round with this number."""
    falling = rounds - rounds // 2
    return 1 - (1 - LAST) * max(0, number - rounds // 2) / max(1, falling - 1)


@method(
    "fast-retrain",
    paper="ours, after Hsu et al., 2019",
    source="ours",
    summary="a new model from the retained clients alone, in fewer rounds: momentum and a falling rate",
)
def fast_retrain(
    schedule: Schedule,
    *,
    rounds: int | None = None,
    momentum: float = MOMENTUM,
    number: int = 1,
    until_recovered: bool = False,
) -> tuple[Phase, ...]:
    """``rounds`` replaces the schedule's total. ``momentum`` is the share of a step that the next repeats.

    ``until_recovered`` takes these rounds as the most, ends once the retained clients have the training loss
    that they had before, and chooses the momentum itself. Another ``number`` starts from another new model.
    """
    require(rounds is None or rounds >= 1, "rounds", rounds, "1 or more")
    require(0 <= momentum < 1, "momentum", momentum, "at least 0 and below 1")
    chosen = momentum == MOMENTUM or not until_recovered
    require(chosen, "momentum", momentum, "left out where until_recovered chooses it")
    require(number >= 1, "number", number, "1 or more")
    purpose = "fast-retrain" if number == 1 else f"fast-retrain {number}"
    total = schedule.rounds if rounds is None else rounds
    if until_recovered:
        return (RecoveringAveraging(2 * total, schedule.pretrain_lr, purpose=purpose, longest=total),)
    return (FreshMomentumAveraging(total, schedule.pretrain_lr, momentum=momentum, purpose=purpose),)
