"""Federated averaging (McMahan et al., AISTATS 2017): pre-training, and the recovery of most methods."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from ..core import ClientId, Job, Phase, Replies, Request, Stage, State
from . import history


@dataclass(frozen=True)
class Averaging(Phase):
    """The retained clients go on without the targets, averaged by their number of examples."""

    stage: ClassVar[Stage] = Stage.POSTTRAINING

    def ask(self, request: Request, state: State) -> Mapping[ClientId, Job]:
        return {client: Job(state.params) for client in request.retained}

    def tell(self, request: Request, state: State, replies: Replies) -> State:
        return state.step(-replies.average())


@dataclass(frozen=True)
class Pretraining(Averaging):
    """Averaging over all clients, later targets included; records in its memory what later methods need."""

    history: tuple[str, ...] = ()

    stage: ClassVar[Stage] = Stage.PRETRAINING

    def speakers(self, request: Request) -> tuple[ClientId, ...]:
        return request.clients

    def ask(self, request: Request, state: State) -> Mapping[ClientId, Job]:
        return {client: Job(state.params) for client in request.clients}

    def tell(self, request: Request, state: State, replies: Replies) -> State:
        recorded = history.record(self.history, request, state, replies)
        return super().tell(request, state, replies).remember(**recorded)
