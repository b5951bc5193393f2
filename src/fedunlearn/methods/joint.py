"""FedOSD in one stage: forget and go on learning in the same round (ours, not in the paper)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..core import Phase, Replies, Request, State
from ..core.registry import method
from ..core.seeds import generator
from ..maths import project_between
from ..objectives import require_loss
from .fedosd import ForgettingDescent
from .schedule import Schedule
from .targets import silent


@dataclass(frozen=True)
class JointDescent(ForgettingDescent):
    """The orthogonal step, and with it the retained clients' own, freed of what would undo the first.

    FedOSD asks the retained clients for an update in every round of unlearning, and uses it for nothing but
    the span to avoid. Here their mean r is taken as well, as near as it may come without raising the targets'
    unlearning loss (r · Δ_u ≥ 0) and without leading back to ω⁰ (r · (ω − ω⁰) ≤ 0). Where there is nothing to
    forget any more, or no step that forgets, that part is zero and the clients go on learning.
    """

    objective: str = "unlikelihood"

    def tell(self, request: Request, state: State, replies: Replies) -> State:
        if lost := silent(request, state, replies):
            return lost
        forget, retained = replies.of(request.targets).mean(), replies.of(request.retained)
        found = self.direction(forget, retained.matrix(), generator(request.seed, "direction", state.round))
        learn = project_between(retained.mean(), torch.stack([forget, request.params - state.params]))
        return state.step(
            found.vector - learn,
            sine=found.sine,
            amplification=found.amplification,
            rank=found.rank,
            max_cosine=found.max_cosine,
        )


@method(
    "fedosd-joint",
    paper="ours, after Pan et al., AAAI 2025",
    summary="FedOSD that lets the retained clients learn in the same round; no post-training",
    online="targets and retained",
)
def joint(schedule: Schedule, *, objective: str = "unlikelihood") -> tuple[Phase, ...]:
    """``objective`` is the targets' unlearning loss.

    Not FedOSD's: that has no slope where p nears 1, and rests there for tens of rounds; what the steeper
    one costs the retained clients, they learn again in the same round.
    """
    require_loss(objective)
    return (JointDescent(schedule.unlearn_rounds, schedule.unlearn_lr, objective),)
