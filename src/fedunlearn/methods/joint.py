"""FedOSD in one stage: forgetting and learning in the same round (ours, not in the paper)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from ..client.losses import require_unlearning_loss
from ..core import Phase, Replies, Request, State, Vector
from ..core.registry import method
from ..maths import Direction, project_between
from .fedosd import ForgettingDescent, diagnostics
from .schedule import Schedule


@dataclass(frozen=True)
class JointDescent(ForgettingDescent):
    """The orthogonal step plus the retained clients' mean update, projected so that it undoes no forgetting.

    FedOSD asks the retained clients for an update in every unlearning round and uses it only to constrain the
    step. Here their mean r is applied too, projected so that it neither raises the targets' unlearning loss
    (r · Δ_u ≥ 0) nor moves back towards ω⁰ or the model of an earlier request (r · (ω − ω⁰) ≤ 0). When
    nothing is left to forget, or no step forgets, the orthogonal step is zero and the clients continue to
    learn.
    """

    loss: str = "unlikelihood"

    without_backdoor: ClassVar[str] = (
        "no backdoor of the targets is measured, and for clean targets fedosd-joint ruined the model in our "
        "measurements: see docs/methods/fedosd-joint.md#clean-targets, or use reset or retrain"
    )
    reveals: ClassVar[tuple[str, ...]] = ()

    def moved(
        self, request: Request, state: State, forget: Vector, retained: Replies, found: Direction
    ) -> State:
        back = [anchor - state.params for anchor in (request.params, *request.anchors)]
        learn = project_between(retained.mean(), torch.stack([forget, *back]))
        return state.step(found.vector - learn, **diagnostics(found))


@method(
    "fedosd-joint",
    paper="ours, after Pan et al., AAAI 2025",
    source="ours",
    summary="FedOSD that lets the retained clients learn in the same round; no post-training",
    clean_targets="forgot too much and ruined the model",
)
def joint(schedule: Schedule, *, objective: str = "unlikelihood") -> tuple[Phase, ...]:
    """``objective`` is the targets' unlearning loss.

    The default is not FedOSD's: its gradient vanishes as p approaches 1, so it stalls there for tens of
    rounds. What the steeper loss costs the retained clients, they relearn in the same round.
    """
    require_unlearning_loss(objective)
    return (JointDescent(schedule.unlearn_rounds, schedule.unlearn_lr, objective),)
