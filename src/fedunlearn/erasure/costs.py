"""What a run will cost: counted in a rehearsal of the driver itself, and timed on the real clients."""

from __future__ import annotations

import math
import statistics
import time
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from ..core import (
    ClientId,
    Event,
    Federation,
    FedUnlearnError,
    Job,
    Jobs,
    LocalTraining,
    Phase,
    Replies,
    Request,
    Stage,
    Task,
    Terms,
    train,
)
from ..core.threads import one_thread
from ..driver import Guards, Participation, unlearn
from ..driver.gate import admit
from ..driver.rehearsal import made_up
from ..measure.cost import size
from ..methods.federaser import CalibratedReplay

REHEARSED = 2
"""Rounds of each phase: the first may exchange more than the others, which are all alike."""
NEVER = 2**62
UNLIMITED = 1e30
QUICK = 0.3
"""Seconds below which an exchange is timed three times."""


@dataclass(frozen=True)
class RoundCost:
    """What one round exchanges."""

    exchanges: tuple[Jobs, ...] = ()
    """Without public data, which the server holds itself."""
    efforts: tuple[float, ...] = ()
    """The share of the local epochs that each exchange trains; 0 for the trials of guards."""
    local_trainings: int = 0
    bytes_down: int = 0
    bytes_up: int = 0
    server: float = 0.0
    """Seconds that the server computes."""

    @property
    def messages(self) -> int:
        return sum(map(len, self.exchanges))

    @property
    def trials(self) -> int:
        """Exchanges in which a guard asks for losses."""
        return sum(effort == 0 for effort in self.efforts)


@dataclass(frozen=True)
class PhaseCost:
    """What a phase exchanges: its first round, and each of the others."""

    phase: Phase
    rounds: int
    first: RoundCost
    later: RoundCost

    def total(self, of: Callable[[RoundCost], float]) -> float:
        """A number of all rounds together."""
        return of(self.first) + (self.rounds - 1) * of(self.later) if self.rounds else 0


class _Rehearsal:
    """A federation that answers at once with made-up replies, and keeps what it was asked."""

    def __init__(self, task: Task, present: frozenset[ClientId]) -> None:
        self.task = task
        self._present = present
        self._number = 0
        self.asked: list[tuple[Jobs, Terms]] = []

    def present(self) -> frozenset[ClientId]:
        return self._present

    def exchange(self, jobs: Mapping[ClientId, Job], terms: Terms = Terms()) -> Replies:
        self._number += 1
        self.asked.append((jobs, terms))
        return Replies({client: made_up(client, job, self._number) for client, job in jobs.items()})


def rehearse(
    phases: Sequence[Phase],
    request: Request,
    task: Task,
    present: Collection[ClientId],
    training: LocalTraining,
    participation: Participation,
    guards: Guards | None,
) -> tuple[PhaseCost, ...]:
    """What each phase will exchange if nobody fails; nobody is asked.

    The driver runs two rounds of every phase with made-up replies of the right shapes.
    """
    federation, rounds = _Rehearsal(task, frozenset(present)), [length(phase, request) for phase in phases]
    found: dict[int, list[RoundCost]] = {number: [] for number in range(len(phases))}
    ended: dict[int, int] = {}

    def heard(event: Event) -> None:
        asked, federation.asked = federation.asked, []
        if event.metrics["stage"] == "start":
            return
        counted = [(jobs, terms) for jobs, terms in asked if not _evaluates(jobs)]
        place, metrics = event.progress.phase, event.metrics
        found[place].append(
            RoundCost(
                tuple({c: job for c, job in jobs.items() if c != request.public} for jobs, _ in counted),
                tuple(_effort(jobs, terms) for jobs, terms in counted),
                int(metrics["local_trainings"]),
                int(metrics["bytes_down"]),
                int(metrics["bytes_up"]),
                float(metrics["seconds_server"]),
            )
        )
        if "status" in metrics:
            ended[place] = int(metrics["round"])

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        outcome = unlearn(
            [
                replace(phase, rounds=min(REHEARSED, number))
                for phase, number in zip(phases, rounds, strict=True)
            ],
            request,
            federation,
            training=training,
            evaluate_every=NEVER,
            participation=participation,
            probes=(),
            # Made-up steps may be longer than real ones.
            guards=None if guards is None else replace(guards, budget=UNLIMITED),
            listeners=(heard,),
        )
    if outcome.status.failed:
        raise FedUnlearnError(f"a rehearsal of the method fails: {outcome.reason}")
    return tuple(
        PhaseCost(
            phase,
            min(rounds[number], ended.get(number, rounds[number])),
            *((each[0], each[-1]) if (each := found[number]) else (RoundCost(), RoundCost())),
        )
        for number, phase in enumerate(phases)
    )


def length(phase: Phase, request: Request) -> int:
    """The rounds of a phase: a replay ends with the last recorded one."""
    if not isinstance(phase, CalibratedReplay) or "norms" not in request.history.kinds:
        return phase.rounds
    return min(phase.rounds, *(len(request.history.of("norms", client)) for client in request.retained))


def evaluations(costs: Sequence[PhaseCost], every: int, watched: bool) -> int:
    """How often the clients measure the model: at the start, at the ends of phases, and in between.

    ``watched`` says that stop rules look at every round of unlearning.
    """
    count, elapsed = int(bool(costs)), 0
    for cost in costs:
        first, last = elapsed + 1, elapsed + cost.rounds
        elapsed = last
        if watched and cost.phase.stage is Stage.UNLEARNING:
            count += cost.rounds
        elif cost.rounds:
            count += last // every - (first - 1) // every + (last % every > 0)
    return count


def evaluation_bytes(request: Request) -> int:
    """What each client receives to measure a model."""
    return size(request.params, *request.buffers.values())


def _evaluates(jobs: Jobs) -> bool:
    return all(job.work == "measure" and job.config.get("on") != "train" for job in jobs.values())


def _effort(jobs: Jobs, terms: Terms) -> float:
    passes = [terms.passes(job) / terms.epochs for job in jobs.values() if job.work != "measure"]
    return max(passes, default=0.0)


@dataclass(frozen=True)
class Timing:
    """Seconds of exchanges that were really made before the run; their replies were thrown away."""

    clients: int
    """Retained clients that trained, as many as a round asks."""
    training: float
    """One training of all of them."""
    alone: float
    """The training of one of them."""
    trial: float
    """One measurement of training losses by the retained clients, as the utility guard asks for it."""
    evaluation: float
    """One measurement by all clients that are present."""

    def trained(self, clients: int) -> float:
        """An exchange in which so many clients train, on a line through the two that were timed."""
        if self.clients == 1:
            return self.training * clients
        slope = max(0.0, self.training - self.alone) / (self.clients - 1)
        return min(self.alone, self.training) + slope * (clients - 1)

    def round(self, cost: RoundCost) -> float:
        exchanged = (
            effort * self.trained(max(1, len(jobs))) if effort else self.trial
            for jobs, effort in zip(cost.exchanges, cost.efforts, strict=True)
        )
        return sum(exchanged) + cost.server


@dataclass(frozen=True)
class Measured:
    """What clients told before a run."""

    timing: Timing | None
    replies: Replies
    """To the measurement of the model: numbers of examples, and which sets clients have."""
    failed: Mapping[ClientId, str]


def measure_round(
    federation: Federation,
    request: Request,
    present: Collection[ClientId],
    lr: float,
    training: LocalTraining,
    participation: Participation,
) -> Measured:
    """Times the exchanges that rounds are made of. Targets only measure the model; nothing is kept."""
    model = Job("measure", request.params, buffers=request.buffers)
    trial = replace(model, config={"on": "train"})
    retained = [client for client in request.retained if client in present]
    drawn = participation.draw(retained, "plan")
    terms = Terms(lr, 1.0, training.epochs, training.batch_size, shuffle=training.shuffle)
    failed: dict[ClientId, str] = {}

    def timed(jobs: Jobs) -> tuple[float, Replies]:
        seconds: list[float] = []
        while len(seconds) < 3 and (not seconds or seconds[0] < QUICK):
            began = time.perf_counter()
            sent = federation.exchange(jobs, terms)
            seconds.append(time.perf_counter() - began)
        replies = admit(jobs, sent, request.buffers)
        failed.update({client: each.detail for client, each in replies.missing.items()})
        return statistics.median(seconds), replies

    with one_thread(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # who failed is told below
        evaluation, replies = timed({client: model for client in request.clients if client in present})
        if not drawn:
            return Measured(None, replies, failed)
        step = train(request.params, buffers=request.buffers)
        alone, _ = timed({drawn[0]: step})
        together = timed(dict.fromkeys(drawn, step))[0] if len(drawn) > 1 else alone
        tried, _ = timed(dict.fromkeys(retained, trial))
    found = Timing(len(drawn), together, alone, tried, evaluation)
    return Measured(None if {*drawn} <= failed.keys() else found, replies, failed)


def estimate(costs: Sequence[PhaseCost], measurements: int, timing: Timing) -> float:
    """Seconds of a run, from exchanges that were timed and rounds that were counted."""
    return math.fsum(cost.total(timing.round) for cost in costs) + measurements * timing.evaluation
