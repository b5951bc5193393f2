"""The phase that many methods share: only the targets train, and the mean of their models is the new one."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from ..core import TARGETS, Job, Phase, Request, Role, Round, Stage, State


@dataclass(frozen=True)
class TargetTraining(Phase):
    """Only the targets train; the mean of their models is the next model."""

    stage: ClassVar[Stage] = Stage.UNLEARNING
    asks: ClassVar[frozenset[Role]] = TARGETS

    @abstractmethod
    def job(self, request: Request, state: State) -> Job:
        """The job of each target."""

    def round(self, request: Request, state: State) -> Round:
        replies = yield dict.fromkeys(request.targets, self.job(request, state))
        return state.step(-replies.every(request.targets).mean())
