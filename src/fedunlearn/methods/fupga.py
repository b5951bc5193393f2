"""FUPGA: projected gradient ascent inside a ball (Halimi et al., 2022)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import fmean
from typing import ClassVar, Literal

import torch

from ..client.steps import Step, clipped
from ..core import (
    TARGETS,
    FedUnlearnError,
    Job,
    Phase,
    Request,
    Role,
    Round,
    Stage,
    State,
    Vector,
    require,
    train,
)
from ..core.registry import method, step
from ..maths import distance
from .fedavg import Averaging
from .schedule import Schedule

DRAWS = 10


@step("ball", summary="a clipped step, projected back onto a ball", part_of="fupga")
def ball(job: Job) -> Step:
    """Steps that would leave the ball end on its surface."""
    ascend, centre, radius = clipped(job), job.arrays["centre"], float(job.config["radius"])

    def rule(params: Vector, gradient: Vector, lr: float) -> Vector:
        moved = ascend(params, gradient, lr)
        reached = params - moved - centre
        length = float(torch.linalg.vector_norm(reached))
        return moved if length <= radius else params - centre - reached * (radius / length)

    return rule


@dataclass(frozen=True)
class ProjectedAscent(Phase):
    """Ascent at the targets in a ball around the mean of the others' last models, starting at its centre."""

    clip: float = 5.0
    radius: Literal["third", "ibm"] = "third"

    stage: ClassVar[Stage] = Stage.UNLEARNING
    needs: ClassVar[frozenset[str]] = frozenset({"fresh", "locals"})
    asks: ClassVar[frozenset[Role]] = TARGETS

    def message_bytes(self, request: Request) -> int:
        return 2 * super().message_bytes(request)

    def start(self, request: Request, state: State) -> State:
        centre = self._centre(request)
        assert request.fresh is not None
        away = [distance(centre, request.fresh(f"fupga {draw}").params) for draw in range(DRAWS)]
        if self.radius == "third":
            radius = fmean(away) / 3
        else:
            # The authors' code takes a third of the squared distances.
            radius = math.sqrt(fmean(length**2 for length in away) / 3)
        return super().start(request, state).remember(centre=centre, radius=torch.tensor(radius))

    def _centre(self, request: Request) -> Vector:
        """The mean of the retained clients' last models, weighted by their examples."""
        last = {client: request.history.of("locals", client) for client in sorted(request.retained)}
        shares = {c: float(request.history.of("share", c)) for c, model in last.items() if len(model)}
        if not shares:
            raise FedUnlearnError(
                "no retained client took part in the last round of pre-training, so there is no model to "
                "start from: pre-train one more round, or use another method",
                code="unsuitable",
            )
        whole = sum((share * last[c] for c, share in shares.items()), torch.zeros_like(request.params))
        return whole / sum(shares.values())

    def origin(self, request: Request, state: State) -> Vector:
        """In the first round, the centre of the ball."""
        return state.params if state.round else state.memory["centre"]

    def round(self, request: Request, state: State) -> Round:
        centre, radius = state.memory["centre"], float(state.memory["radius"])
        start = self.origin(request, state)
        job = train(start, "ascent", "ball", arrays={"centre": centre}, clip=self.clip, radius=radius)
        replies = yield dict.fromkeys(request.targets, job)
        after = start - replies.every(request.targets).mean()
        return state.move_to(after, reach=distance(after, centre) / radius)


@method(
    "fupga",
    paper="Halimi et al., 2022",
    source="paper's code",
    summary="projected gradient ascent at the targets, in a ball around the others' mean model",
    clean_targets="left too much",
)
def fupga(
    schedule: Schedule, *, clip: float = 5.0, radius: Literal["third", "ibm"] = "third"
) -> tuple[Phase, ...]:
    """``radius``: ``third`` is a third of the mean distance to a new model (the paper), ``ibm`` the root of
    a third of its mean square (the authors' code)."""
    require(clip > 0, "clip", clip, "positive")
    return (
        ProjectedAscent(schedule.unlearn_rounds, schedule.unlearn_lr, clip, radius),
        Averaging(schedule.recover_rounds, schedule.recover_lr),
    )
