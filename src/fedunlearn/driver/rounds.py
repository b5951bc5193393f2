"""One round: the exchanges with clients, the step as far as it is admitted, and what both cost."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace

from .. import measures as measure
from ..core import (
    Buffers,
    ClientId,
    Failure,
    FedUnlearnError,
    Guarded,
    Job,
    Jobs,
    Metrics,
    MissingReply,
    Phase,
    Progress,
    Reason,
    Replies,
    Reply,
    State,
    Terms,
)
from ..core.seeds import derive
from ..maths import distance
from .conditions import Run, from_scratch
from .endings import completed, explained, incomplete, starting
from .gate import admit
from .guardian import Guardian
from .preconditions import shortage
from .probes import Exchange, FinishedRound
from .sentences import sentence

LOG = logging.getLogger("fedunlearn")

TRIED = 5
"""The rounds in which the loss of a model that is trained from the start must fall."""


def play(run: Run, progress: Progress) -> tuple[Progress, Metrics]:
    """Carry out one round; return the progress after it, and its metrics."""
    started, guards = time.perf_counter(), run.conditions.guards
    guardian = None if guards is None else Guardian(guards, run.request, progress.guarded)
    round = Round(run, progress, guardian)
    after = round.state()
    seconds = time.perf_counter() - started
    guarded = progress.guarded if guardian is None else guardian.guarded
    heard = round.heard()
    moved = replace(
        progress,
        elapsed_rounds=progress.elapsed_rounds + (after.round > round.before.round),
        state=after,
        heard=progress.heard | heard,
        guarded=round.booked(guarded),
        missing=round.missing,
    )
    metrics = round.metrics(moved, heard, seconds)
    return replace(moved, guarded=_learning(round.phase, after, moved.guarded, metrics)), metrics


class Round:
    """One round of a phase: the jobs of clients, their replies, and the time spent waiting for them."""

    def __init__(self, run: Run, progress: Progress, guardian: Guardian | None) -> None:
        self.run, self.index, self.guardian = run, progress.phase, guardian
        self.phase = run.phases[progress.phase]
        self.decay = run.conditions.training.decay**progress.elapsed_rounds
        self.before = replace(progress.state, lr=self.phase.lr * self.decay)
        self.request = run.drawn(progress)
        self.exchanges: list[Exchange] = []
        self.trials: list[Exchange] = []
        self.waited = 0.0
        self.missing: tuple[ClientId, ...] = ()

    def state(self) -> State:
        """Return the state after the round, or the one before it if the round cannot be completed."""
        phase, before = self.phase, self.before
        try:
            self._require_present()
            after = completed(phase, before, self._drive())
        except MissingReply as missing:
            self.missing = missing.clients
            return incomplete(phase, before, missing, self.exchanges)
        # The server's own work needs no guard.
        if self.guardian is None or after.status.failed or not any(each.jobs for each in self.exchanges):
            return after
        origin = phase.origin(self.request, before)
        return self.guardian.admit(
            phase, before, origin, after, None if from_scratch(phase) else self._losses
        )

    def _drive(self) -> State:
        """Exchange messages until the phase returns the next state."""
        learners = self.phase.learners(self.request)
        round = self.phase.round(self.request, self.before)
        if not isinstance(round, Generator):
            return _returned(self.phase, round)
        buffers = self.before.buffers
        try:
            jobs = next(round)
            while True:
                self._require_jobs(jobs)
                began = time.perf_counter()
                done = self._ask(jobs, len(self.exchanges), buffers)
                self.waited += time.perf_counter() - began
                if self.guardian is not None:
                    done = Exchange(done.jobs, self.guardian.screen(done.jobs, done.replies))
                self.exchanges.append(done)
                self._require_replies(done, learners)
                own = (client for client in learners if client in jobs and jobs[client].buffers is None)
                buffers = done.replies.of(own).merged_buffers(buffers)
                jobs = round.send(done.replies)
        except StopIteration as stop:
            after = _returned(self.phase, stop.value)
            return after if after.status.failed else replace(after, buffers=buffers)

    def _ask(self, jobs: Jobs, exchange: int, buffers: Buffers) -> Exchange:
        """Send jobs, with the buffers of the model, and admit the replies."""
        if not jobs:
            return Exchange(jobs, Replies({}))
        phase, training, seed = self.phase, self.run.conditions.training, self.run.conditions.seed
        # Models that start anew for another purpose, such as a second retraining, see other batches, too.
        purpose = getattr(phase, "purpose", "") if training.shuffle else ""
        terms = Terms(
            phase.lr,
            self.decay,
            training.epochs,
            training.batch_size,
            (derive(seed, purpose) if purpose else seed, self.index, self.before.round),
            exchange,
            training.shuffle,
        )
        complete = {
            client: job if job.buffers is not None else replace(job, buffers=buffers)
            for client, job in jobs.items()
        }
        return Exchange(complete, self._collect(complete, terms, buffers))

    def _collect(self, jobs: Jobs, terms: Terms, buffers: Buffers) -> Replies:
        """Return usable replies; clients that fail are asked again as often as participation says."""
        federation = self.run.federation
        replies = admit(jobs, federation.exchange(jobs, terms), buffers)
        for _ in range(self.run.conditions.participation.redo):
            again = {c: jobs[c] for c, f in replies.missing.items() if c in jobs and f.reason.repeatable}
            if not again:
                break
            replies = replies.with_later(admit(again, federation.exchange(again, terms), buffers))
        for client, failure in replies.missing.items():
            LOG.info("%s %s and counts as missing", client, failure.detail)
        return replies

    def _losses(self, state: State) -> dict[ClientId, float]:
        """Return the training losses of the retained clients that are present, with a model on trial."""
        present = self.run.federation.present()
        job = Job("measure", state.params, config={"on": "train"}, buffers=state.buffers)
        jobs = {client: job for client in self.run.request.retained if client in present}
        began = time.perf_counter()
        replies = admit(jobs, self.run.federation.exchange(jobs, Terms()), state.buffers)
        self.waited += time.perf_counter() - began
        self.trials.append(Exchange(jobs, replies))
        return {client: _train_loss(reply) for client, reply in replies.of(jobs).items()}

    def _require_present(self) -> None:
        minimum, there = self.run.conditions.participation.minimum, len(self.request.asked)
        if there < minimum:
            place = {"round": self.before.round + 1, "stage": self.phase.stage}
            raise MissingReply(sentence("too_few_present", who=shortage(there), minimum=minimum, **place))

    def _require_jobs(self, jobs: Jobs) -> None:
        """Refuse what a method's author may yield by mistake."""
        where, request = f"{type(self.phase).__name__}.round", self.run.request
        if not isinstance(jobs, Mapping) or not all(isinstance(job, Job) for job in jobs.values()):
            raise FedUnlearnError(
                f"{where} yields a {type(jobs).__name__} that does not map clients to jobs: yield a "
                "dictionary such as {client: train(state.params) for client in request.retained}"
            )
        known = {*request.clients, request.public}
        if unknown := [client for client in jobs if client not in known]:
            raise FedUnlearnError(
                f"{where} asks {unknown[0]!r}, which is not a client of this request: ask request.targets, "
                "request.retained or request.asked"
            )
        if "targets" not in self.phase.asks and (asked := [c for c in request.targets if c in jobs]):
            raise FedUnlearnError(
                f"{where} asks the target {asked[0]!r}, and the phase declares that it asks none: add "
                "'targets' to its asks",
                code="unsuitable",
            )

    def _require_replies(self, done: Exchange, learners: Sequence[ClientId]) -> None:
        jobs, replies = done.jobs, done.replies
        asked = set(learners).intersection(jobs)
        answered = sum(client in replies for client in asked)
        least = min(self.run.conditions.participation.minimum, len(asked))
        if answered < least or (jobs and not replies):
            missing = {client: replies.missing[client] for client in jobs if client in replies.missing}
            facts = {
                "answered": answered,
                "asked": len(asked) or len(jobs),
                "round": self.before.round + 1,
                "stage": self.phase.stage,
                "minimum": f", and the minimum is {least}" if least > 1 else "",
                "missing": explained(missing),
            }
            raise MissingReply(sentence("too_few_usable", **facts), missing)

    def heard(self) -> set[ClientId]:
        """Return the retained clients with a usable reply."""
        return {c for each in self.exchanges for c in each.replies}.intersection(self.run.request.retained)

    def booked(self, guarded: Guarded) -> Guarded:
        """Book who was asked for help, who had work to do, and whose work could not be used."""
        asked = {client for each in self.exchanges for client in each.jobs}
        lost = {
            client: failure
            for each in self.exchanges
            for client, failure in each.replies.missing.items()
            if client in each.jobs
        }
        request = self.run.request
        if asked:
            away = {*self.phase.learners(request)} - self.run.federation.present() - asked
            lost |= dict.fromkeys(away, Failure(Reason.ABSENT, "was not there"))
        rounds, known = dict(guarded.asked), dict(guarded.lost)
        for client in {*asked, *lost}:
            rounds[client] = rounds.get(client, 0) + 1
        for client, failure in lost.items():
            held = known.get(client, {})
            count, _ = held.get(failure.reason, (0, ""))
            known[client] = {**held, str(failure.reason): (count + 1, failure.detail)}
        helped = guarded.helped or not asked.isdisjoint(request.targets)
        return replace(guarded, helped=helped, asked=rounds, lost=known)

    def metrics(self, moved: Progress, heard: set[ClientId], seconds: float) -> Metrics:
        """Return the metrics of the round: diagnostics of the phase, measures of probes, and costs."""
        phase, after, request, conditions = self.phase, moved.state, self.run.request, self.run.conditions
        metrics: Metrics = {
            "phase": moved.phase,
            "stage": phase.stage,
            "round": after.round,
            "elapsed": moved.elapsed_rounds,
            "lr": self._rate(),
            **after.diagnostics,
            "distance": distance(after.params, request.params),
        }
        if conditions.guards is not None or conditions.stop:
            # Both look at ω⁰ or at the targets after the noise, which no certificate covers.
            metrics.pop("epsilon", None)
        if not after.status.failed:
            finished = FinishedRound(
                phase,
                self.request,
                self.before,
                after,
                tuple(self.exchanges),
                lambda jobs: self._ask(jobs, 0, self.before.buffers).replies,
            )
            for probe in conditions.probes:
                metrics |= probe(finished)
        metrics |= measure.training([each.replies for each in self.exchanges], request)
        # Work on public data is the server's own.
        asked = [
            ({client: job for client, job in each.jobs.items() if client != request.public}, each.replies)
            for each in self.exchanges
        ]
        tried = [(each.jobs, each.replies) for each in self.trials]
        metrics |= measure.cost([*asked, *tried], seconds, seconds - self.waited)
        metrics |= measure.coverage(asked, heard, moved.heard, request)
        metrics["bytes_stored"] = measure.size(
            *after.memory.values(), *request.history.only(phase.needs, common=False).tensors().values()
        )
        return metrics

    def _rate(self) -> float:
        """Return the learning rate that was sent, last, to those whose training becomes the model's."""
        jobs = [job for each in self.exchanges for job in each.jobs.values() if job.trains]
        return Terms(self.phase.lr, self.decay).rate(jobs[-1]) if jobs else self.before.lr


def _train_loss(reply: Reply) -> float:
    """Return the training loss that a client reports; infinity if it reports none that is usable."""
    means = reply.statistics.get("train") or reply.statistics.get("test") or {}
    return means["loss"].value if "loss" in means else math.inf


def _returned(phase: Phase, returned: object) -> State:
    """Return the state that a round returned; refuse anything else, as after a forgotten ``return``."""
    if not isinstance(returned, State):
        raise FedUnlearnError(
            f"{type(phase).__name__}.round returns a {type(returned).__name__}: return a State, such as "
            "state.step(direction)"
        )
    return returned


def _learning(phase: Phase, after: State, guarded: Guarded, metrics: Metrics) -> Guarded:
    """Book the first losses of a run, and warn if a new model does not learn in its first rounds."""
    guarded = replace(guarded, started={**starting(metrics), **guarded.started})
    now, first = metrics.get("train_loss_retained"), guarded.started.get("train_loss_retained")
    tried = min(TRIED, phase.rounds)
    if not from_scratch(phase) or after.round != tried or tried == 1 or now is None or first is None:
        return guarded
    if float(now) < first - 0.001 * abs(first):
        return guarded
    warning = sentence("not_learning", rounds=tried, now=float(now), first=first, lr=phase.lr)
    LOG.warning(warning)
    return replace(guarded, events={**guarded.events, warning: 1})
