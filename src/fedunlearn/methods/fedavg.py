"""Federated averaging (McMahan et al., AISTATS 2017): pre-training, and the recovery of most methods."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..core import RETAINED, ClientId, History, Phase, Request, Role, Round, Stage, State, history, train


@dataclass(frozen=True)
class Averaging(Phase):
    """The retained clients continue without the targets, averaged by their number of examples."""

    stage: ClassVar[Stage] = Stage.POSTTRAINING
    step_rule: ClassVar[str] = "plain"
    """By which the clients train."""
    asks: ClassVar[frozenset[Role]] = RETAINED

    def round(self, request: Request, state: State) -> Round:
        replies = yield {client: train(state.params, step=self.step_rule) for client in request.asked}
        return state.step(-replies.some(request.asked).average())


@dataclass(frozen=True)
class Pretraining(Phase):
    """Averaging over all clients, later targets included; records the history that later methods need."""

    history: tuple[str, ...] = ()

    stage: ClassVar[Stage] = Stage.PRETRAINING

    def start(self, request: Request, state: State) -> State:
        """Continues the history of earlier training, where the request has one."""
        recorded = request.history.only(self.history).tensors() if self.history else {}
        return State(state.params, memory=recorded, buffers=state.buffers)

    def learners(self, request: Request) -> tuple[ClientId, ...]:
        return request.clients

    def round(self, request: Request, state: State) -> Round:
        replies = yield {client: train(state.params) for client in request.asked}
        heard = History.from_tensors(state.memory).hear(
            self.history, history.HeardRound(state, replies, request.clients, request.shapes)
        )
        return state.step(-replies.some(request.asked).average()).remember(**heard.tensors())
