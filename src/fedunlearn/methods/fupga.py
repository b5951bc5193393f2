"""FUPGA: projected gradient ascent inside a ball (Halimi et al., 2022)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import ClassVar, Literal

import torch
from torch import Tensor

from ..core import ClientId, FedUnlearnError, Job, Objective, Phase, Replies, Request, State, Vector
from ..core.registry import method
from ..maths import distance
from ..objectives import Ascend, objective
from .ascent import Ascent
from .fedavg import Averaging
from .schedule import Schedule, require
from .targets import absent

DRAWS = 10


@dataclass(frozen=True, kw_only=True)
class BallAscend(Ascend):
    """Ascent that is put back onto the ball around a centre after each step that leaves it."""

    centre: Tensor
    radius: float = math.inf

    def step(self, params: Vector, gradient: Vector, lr: float) -> Vector:
        moved = super().step(params, gradient, lr)
        reached = params - moved - self.centre
        length = float(torch.linalg.vector_norm(reached))
        return moved if length <= self.radius else params - self.centre - reached * (self.radius / length)


@objective("ball_ascent", summary="gradient ascent that never leaves a ball", part_of="fupga")
def _ball_ascent(arrays: Mapping[str, Tensor]) -> Objective:
    return BallAscend(clip=float(arrays["clip"]), centre=arrays["centre"], radius=float(arrays["radius"]))


@dataclass(frozen=True)
class ProjectedAscent(Ascent):
    """Ascent at the targets around the mean of the others' last models, where it also begins."""

    objective: str | None = "ball_ascent"
    radius: Literal["third", "ibm"] = "third"

    needs: ClassVar[frozenset[str]] = frozenset({"locals"})

    def start(self, request: Request, state: State) -> State:
        if request.fresh is None:
            raise FedUnlearnError(
                "FUPGA measures its ball by new models: give the request a function `fresh`"
            )
        last = {client: request.recorded("locals", client) for client in sorted(request.retained)}
        shares = {client: float(request.recorded("share", client)) for client in last if len(last[client])}
        whole = sum(
            (share * last[client] for client, share in shares.items()), torch.zeros_like(request.params)
        )
        centre = whole / sum(shares.values())
        away = [distance(centre, request.fresh(f"fupga {draw}").params) for draw in range(DRAWS)]
        if self.radius == "third":
            radius = fmean(away) / 3
        else:
            # The authors' code takes the third of squared distances.
            radius = math.sqrt(fmean(length**2 for length in away) / 3)
        return super().start(request, state).remember(centre=centre, radius=torch.tensor(radius))

    def arrays(self, request: Request, state: State) -> Mapping[str, Tensor]:
        memory = state.memory
        return {**super().arrays(request, state), "centre": memory["centre"], "radius": memory["radius"]}

    def ask(self, request: Request, state: State) -> Mapping[ClientId, Job]:
        return super().ask(request, self._begun(state))

    def tell(self, request: Request, state: State, replies: Replies) -> State:
        if lost := absent(request, state, replies):
            return lost
        after = self._begun(state).params - replies.mean()
        reach = distance(after, state.memory["centre"]) / float(state.memory["radius"])
        return state.move_to(after, reach=reach)

    def _begun(self, state: State) -> State:
        """The first round starts from the centre."""
        return state if state.round else state.move_to(state.memory["centre"])


@method(
    "fupga",
    paper="Halimi et al., 2022",
    summary="projected gradient ascent at the targets, in a ball around the others' mean model",
    online="targets, then retained",
)
def fupga(
    schedule: Schedule, *, clip: float = 5.0, radius: Literal["third", "ibm"] = "third"
) -> tuple[Phase, ...]:
    """``radius``: a third of the mean distance to a new model (the paper), or the root of a third of its
    mean square (its authors' code)."""
    require(clip > 0, "clip", clip, "positive")
    return (
        ProjectedAscent(schedule.unlearn_rounds, schedule.unlearn_lr, clip=clip, radius=radius),
        Averaging(schedule.recover_rounds, schedule.recover_lr),
    )
