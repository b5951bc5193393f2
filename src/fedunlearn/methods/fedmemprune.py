"""FedMemPrune: reset what the retained clients do not train (Wei et al., KDD 2026)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..core import RETAINED, Phase, Request, Role, Round, Stage, State, Vector, require, train
from ..core.registry import method
from .fedavg import Averaging
from .schedule import Schedule


@dataclass(frozen=True)
class RedundancyPruning(Phase):
    """One round of the retained clients; what it hardly changes is initialised anew.

    Such parameters are redundant to the retained data, so they are where only the targets' examples are
    memorised.
    """

    share: float = 0.3

    stage: ClassVar[Stage] = Stage.UNLEARNING
    needs: ClassVar[frozenset[str]] = frozenset({"fresh"})
    asks: ClassVar[frozenset[Role]] = RETAINED

    def round(self, request: Request, state: State) -> Round:
        assert request.fresh is not None
        replies = yield {client: train(state.params) for client in request.asked}
        update = replies.some(request.asked).average()
        pruned = redundant(update, self.share)
        # Deviation: values of the model's own initialisation, not of a Kaiming distribution for every layer.
        anew = torch.where(pruned, request.fresh("fedmemprune").params, state.params - update)
        return state.move_to(anew, pruned=int(pruned.count_nonzero()) / len(pruned))


def redundant(update: Vector, share: float) -> Tensor:
    """The given share of all parameters, those with the smallest mean update, and whatever ties with them."""
    change = update.abs()
    return change <= change.kthvalue(math.ceil(share * len(change))).values


@method(
    "fedmemprune",
    paper="Wei et al., KDD 2026",
    source="abstract and paper's code",
    summary="initialises anew what the retained clients do not train, then continues without the targets",
)
def fedmemprune(schedule: Schedule, *, share: float = 0.3) -> tuple[Phase, ...]:
    """``share`` of the parameters to initialise anew.

    As in the authors' code, all rounds use the learning rate of pre-training.
    """
    require(0 < share <= 1, "share", share, "above 0 and at most 1")
    once, rest = schedule.in_one_round
    return (
        RedundancyPruning(once, schedule.pretrain_lr, share),
        Averaging(rest, schedule.pretrain_lr),
    )
