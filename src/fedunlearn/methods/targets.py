"""What many methods share: the targets train alone, and their model becomes everybody's."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from ..core import Job, Phase, Request, Round, Stage, State


@dataclass(frozen=True)
class TargetTraining(Phase):
    """Only the targets train; the mean of their models is the next one."""

    stage: ClassVar[Stage] = Stage.UNLEARNING

    @abstractmethod
    def job(self, request: Request, state: State) -> Job:
        """What each target does."""

    def round(self, request: Request, state: State) -> Round:
        replies = yield dict.fromkeys(request.targets, self.job(request, state))
        return state.step(-replies.every(request.targets).mean())
