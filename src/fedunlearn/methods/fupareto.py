"""FUPareto: steps that help everybody while there are any, then the null space (arXiv 2602.01852).

Read from the abstract alone: what it leaves open is ours, and docs/methods/fupareto.md lists it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from ..client.losses import Loss
from ..core import Batch, Job, LabelTask, Phase, Request, Round, State, require, train
from ..core.registry import loss, method
from ..maths import DirectionStatus, null_space_descent, pareto_improvement
from .fedosd import AnchoredAveraging, ForgettingDescent
from .schedule import Schedule


@loss(
    "boundary_shift",
    summary="how far the label's logit is above the best of the others",
    part_of="fupareto",
    forgets="yes",
)
def boundary_shift(task: LabelTask, job: Job) -> Loss:
    """The minimum boundary shift: zero, gradient included, for examples beyond the boundary."""
    margin = float(job.config["margin"])

    def minimised(model: nn.Module, batch: Batch) -> Tensor:
        return (logit_lead(task.logits(model, batch), task.labels(batch)) + margin).relu().mean()

    return minimised


def logit_lead(logits: Tensor, labels: Tensor) -> Tensor:
    """The label's logit minus the largest of the others."""
    column = labels.unsqueeze(1)
    return logits.gather(1, column).squeeze(1) - logits.scatter(1, column, -torch.inf).amax(1)


@dataclass(frozen=True)
class ParetoDescent(ForgettingDescent):
    """Descends every loss at once; where that is impossible, those of the targets in the null space.

    Each target is a loss of its own, so no target is forgotten at the expense of another.
    """

    loss: str = "boundary_shift"
    margin: float = 0.0
    improve_above: float = 0.1

    needs: ClassVar[frozenset[str]] = frozenset({"labels"})

    def round(self, request: Request, state: State) -> Round:
        shift = train(state.params, self.loss, margin=self.margin)
        replies = yield dict.fromkeys(request.targets, shift) | {
            client: train(state.params) for client in request.asked
        }
        targets, retained = replies.every(request.targets), replies.some(request.asked)
        forget, retain = targets.matrix(), retained.matrix()
        found = pareto_improvement(forget, retain, min_cosine=self.improve_above)
        stationary = found.status is DirectionStatus.IN_SPAN
        if stationary:
            found = null_space_descent(forget, retain)
        after = self.moved(request, state, targets.mean(), retained, found)
        return replace(after, diagnostics={**after.diagnostics, "expanded": float(stationary)})


@method(
    "fupareto",
    paper="Wang et al., arXiv 2602.01852",
    source="abstract",
    summary="steps that help all clients, then steps in the null space of the retained ones",
)
def fupareto(schedule: Schedule, *, margin: float = 0.0, improve_above: float = 0.1) -> tuple[Phase, ...]:
    """``margin`` is how far below the best other logit the label's has to fall; ``improve_above`` the share
    of everybody's steepest descent from which on a step counts as an improvement for all.

    Deviation: the abstract names no recovery; this is the one of FedOSD, by the same group.
    """
    require(margin >= 0, "margin", margin, "zero or more")
    require(0 <= improve_above < 1, "improve_above", improve_above, "at least 0 and below 1")
    return (
        ParetoDescent(
            schedule.unlearn_rounds, schedule.unlearn_lr, margin=margin, improve_above=improve_above
        ),
        AnchoredAveraging(schedule.recover_rounds, schedule.recover_lr),
    )
