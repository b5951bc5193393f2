"""Probes: measures of a round in addition to those of its model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ..core import ClientId, Jobs, Metrics, Phase, Replies, Request, Stage, State, train
from ..maths import conflicts


@dataclass(frozen=True)
class Exchange:
    """One exchange of a round: jobs and replies."""

    jobs: Jobs
    replies: Replies


@dataclass(frozen=True)
class FinishedRound:
    """A round as probes see it."""

    phase: Phase
    request: Request
    before: State
    after: State
    exchanges: tuple[Exchange, ...]
    ask: Callable[[Jobs], Replies]
    """Asks clients once more; its cost is not counted, and it does not affect the result."""


class Probe(Protocol):
    """Measures something about a finished round."""

    def __call__(self, round: FinishedRound) -> Metrics: ...


@dataclass(frozen=True)
class Conflicts:
    """The number of retained clients that the step of a round would harm.

    It is measured in rounds in which they train anyway; ``ask`` also asks them in other rounds of unlearning.
    """

    ask: bool = False

    def __call__(self, round: FinishedRound) -> Metrics:
        if round.after.params is round.before.params or round.phase.stage is Stage.PRETRAINING:
            return {}
        plain = self._trained(round)
        if not plain and self.ask and round.phase.stage is Stage.UNLEARNING:
            plain = round.ask({client: train(round.before.params) for client in round.request.asked})
        if not plain:
            return {}
        return {"conflicts": conflicts(plain.matrix(), round.after.params - round.before.params)}

    def _trained(self, round: FinishedRound) -> Replies:
        """Return the replies of retained clients to ordinary training of the model."""

        def plain(jobs: Jobs, client: ClientId) -> bool:
            job = jobs[client]
            return (
                job.trains
                and job.params is round.before.params
                and job.config.get("loss", "task") == "task"
                and job.config.get("step", "plain") == "plain"
            )

        for jobs, replies in ((each.jobs, each.replies) for each in round.exchanges):
            found = replies.of(c for c in round.request.retained if c in jobs and plain(jobs, c))
            if found:
                return found
        return Replies({})
