"""MoDe: momentum degradation and memory guidance (Zhao et al., IEEE Internet of Things Journal 2023)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ..core import ClientId, FedUnlearnError, Job, Objective, Phase, Replies, Request, Stage, State, Vector
from ..core.registry import method
from ..objectives import Minimise, answers, objective
from .fedavg import Averaging
from .schedule import Schedule, require
from .targets import absent

Guidance = Literal["all", "target", "none"]


@dataclass(frozen=True, kw_only=True)
class PseudoLabels(Minimise):
    """Learn what another model says, whatever the label is."""

    teacher: Tensor

    def loss(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(model(x), answers(model, self.teacher, x).argmax(1))


@objective("pseudo_labels", summary="training on the labels that another model gives", part_of="mode")
def _pseudo_labels(arrays: Mapping[str, Tensor]) -> Objective:
    return PseudoLabels(teacher=arrays["teacher"])


@dataclass(frozen=True)
class MomentumDegradation(Phase):
    """The retained clients train a new model θ, which ω follows; then both sides are guided by θ.

    One round of the paper is two here, because guidance needs the θ that degradation has just made.
    """

    momentum: float = 0.95
    guidance: Guidance = "all"
    degrade_lr: float = 0.05

    stage: ClassVar[Stage] = Stage.UNLEARNING

    def start(self, request: Request, state: State) -> State:
        if request.fresh is None:
            raise FedUnlearnError("MoDe degrades towards a new model: give the request a function `fresh`")
        return super().start(request, state).remember(degraded=request.fresh("mode").params)

    def ask(self, request: Request, state: State) -> Mapping[ClientId, Job]:
        degraded = state.memory["degraded"]
        if self._degrades(state):
            return {client: Job(degraded, lr=self.degrade_lr) for client in request.retained}
        guided = request.retained if self.guidance == "all" else ()
        return {client: Job(state.params) for client in guided} | {
            target: Job(state.params, "pseudo_labels", {"teacher": degraded}) for target in request.targets
        }

    def tell(self, request: Request, state: State, replies: Replies) -> State:
        if self._degrades(state):
            degraded = state.memory["degraded"] - replies.average()
            examples = torch.tensor(sum(reply.examples for reply in replies.values()))
            return state.step((1 - self.momentum) * (degraded - state.params)).remember(
                degraded=degraded, examples=examples
            )
        if lost := absent(request, state, replies):
            return lost
        return state.step(-self._guided(state, replies))

    def _degrades(self, state: State) -> bool:
        return self.guidance == "none" or state.round % 2 == 0

    def _guided(self, state: State, replies: Replies) -> Vector:
        if self.guidance == "all":
            return replies.average()
        own = sum(reply.examples for reply in replies.values())
        return replies.average() * (own / (own + int(state.memory["examples"])))


@method(
    "mode",
    paper="Zhao et al., IEEE IoT-J 2023",
    summary="pulls the model towards a new one that only the retained clients train",
    online="targets and retained, then retained",
)
def mode(schedule: Schedule, *, momentum: float = 0.95, guidance: Guidance = "all") -> tuple[Phase, ...]:
    """``guidance``: who is guided, ``all`` (as published), the ``target`` alone (what FedOSD's table of
    runtimes implies), or ``none``."""
    require(0 <= momentum <= 1, "momentum", momentum, "between 0 and 1")
    rounds = schedule.unlearn_rounds * (1 if guidance == "none" else 2)
    return (
        MomentumDegradation(rounds, schedule.unlearn_lr, momentum, guidance, schedule.pretrain_lr),
        Averaging(schedule.recover_rounds, schedule.recover_lr),
    )
