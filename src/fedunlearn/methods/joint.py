"""FedOSD in one stage: forget and go on learning in the same round (ours, not in the paper)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from ..maths import orthogonal_direction, project_between
from ..registry import method
from ..types import Phase, Replies, Request, State, Status
from .fedosd import ForgettingDescent
from .schedule import Schedule
from .targets import absent


@dataclass(frozen=True)
class JointDescent(ForgettingDescent):
    """The orthogonal step, and with it the retained clients' own, freed of what would undo the first.

    FedOSD asks the retained clients for an update in every round of unlearning, and uses it for nothing but
    the span to avoid. Here their mean r is taken as well, as near as it may come without raising the targets'
    unlearning loss (r · Δ_u ≥ 0) and without leading back to ω⁰ (r · (ω − ω⁰) ≤ 0).
    """

    cap: float = math.inf

    def tell(self, request: Request, state: State, replies: Replies) -> State:
        retained = replies.of(request.retained)
        if lost := absent(request, state, replies):
            return lost
        if not retained:
            return state.halt(
                Status.MISSING_REPLY, "every retained client failed to answer: bring them back and resume"
            )
        forget = replies.of(request.targets).mean()
        found = orthogonal_direction(forget, retained.matrix(), max_amplification=self.cap)
        back = request.params - state.params
        learn = project_between(retained.mean(), torch.stack([forget, back]))
        return state.step(found.vector - learn, sine=found.sine, amplification=found.amplification)


@method(
    "fedosd-joint",
    paper="ours, after Pan et al., AAAI 2025",
    summary="FedOSD that lets the retained clients learn in the same round; no post-training",
    online="targets and retained",
)
def joint(schedule: Schedule, *, objective: str = "uce", cap: float = math.inf) -> tuple[Phase, ...]:
    """``cap`` bounds how far the orthogonal direction is stretched to the length of the targets' update."""
    return (JointDescent(schedule.unlearn_rounds, schedule.unlearn_lr, objective, cap=cap),)
