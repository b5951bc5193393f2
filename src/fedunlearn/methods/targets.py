"""What many methods share: the targets train alone, and their model becomes everybody's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..core import ClientId, Job, Phase, Replies, Request, Stage, State, Status


@dataclass(frozen=True)
class TargetTraining(Phase):
    """Only the targets train; the mean of their models is the next one."""

    objective: str | None = None

    stage: ClassVar[Stage] = Stage.UNLEARNING

    def start(self, request: Request, state: State) -> State:
        return State(state.params, memory=state.memory, buffers=state.buffers)

    def arrays(self, request: Request, state: State) -> Mapping[str, Tensor]:
        """What the objective is made of."""
        return {}

    def ask(self, request: Request, state: State) -> Mapping[ClientId, Job]:
        arrays = self.arrays(request, state)
        return {target: Job(state.params, self.objective, arrays) for target in request.targets}

    def tell(self, request: Request, state: State, replies: Replies) -> State:
        return absent(request, state, replies) or state.step(-replies.mean())


def absent(request: Request, state: State, replies: Replies) -> State | None:
    """The end of a phase that cannot do without a target that failed to answer, or None."""
    missing = [target for target in request.targets if target not in replies]
    if not missing:
        return None
    return state.halt(
        Status.MISSING_REPLY,
        f"{missing[0]} failed to answer, and this method cannot unlearn without it: bring it back and resume",
    )


def silent(request: Request, state: State, replies: Replies) -> State | None:
    """The end of a phase that needs all targets and a retained client, or None."""
    if lost := absent(request, state, replies):
        return lost
    if any(client in replies for client in request.retained):
        return None
    return state.halt(
        Status.MISSING_REPLY, "every retained client failed to answer: bring them back and resume"
    )
