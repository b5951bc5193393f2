"""The loop: asks phases for jobs, carries them to the federation, hands back what came of them."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch

from .. import measures as measure
from ..core import (
    Buffers,
    ClientId,
    Event,
    Failure,
    Federation,
    FedUnlearnError,
    Guarded,
    Job,
    Jobs,
    Listener,
    LocalTraining,
    Metrics,
    MissingReply,
    Outcome,
    Phase,
    Progress,
    Reason,
    Replies,
    Request,
    Stage,
    State,
    Status,
    Terms,
    did_you_mean,
    require,
    require_count,
    require_type,
)
from ..core.seeds import derive
from ..core.threads import one_thread
from ..maths import distance
from .gate import admit, finite, measured_in_vain
from .guards import (
    FLOOR,
    Guards,
    Watch,
    book,
    counts,
    finite_losses,
    left_over,
    part,
    starting,
    stopped_badly,
    unmoved,
    worse,
)
from .guards import warnings as noted
from .participation import Participation
from .preconditions import able, preconditions
from .probes import Conflicts, Exchange, FinishedRound, Probe
from .stopping import NotMeasured, StopRule, require_rules

LOG = logging.getLogger("fedunlearn")

ABSURD = 1e6
"""How many times as large as at first, or as 1, a mean loss is that no training leads to."""
NAMED = 5
"""Clients in a sentence."""
TRIED = 5
"""Rounds in which the loss of a model that is trained from the start must fall."""


def unlearn(
    phases: Sequence[Phase],
    request: Request,
    federation: Federation,
    *,
    training: LocalTraining = LocalTraining(),
    seed: int = 0,
    evaluate_every: int = 1,
    participation: Participation = Participation(),
    stop: Sequence[StopRule] = (),
    probes: Sequence[Probe] = (Conflicts(),),
    guards: Guards | None = None,
    floor: float | None = None,
    listeners: Sequence[Listener] = (),
    resume: Progress | None = None,
) -> Outcome:
    """Runs the phases one after the other and returns how the run ended.

    Pre-training is the same run with the one phase ``Pretraining``. Listeners hear every finished round;
    ``resume`` takes a ``Progress`` that a listener once heard and continues from there, to the same bits. A
    phase that fails (``Status.failed``) ends the run with the last good model.

    With ``stop`` rules every round of unlearning is evaluated. A target that meets one of them is left out of
    the rounds that follow, and the phase ends when every target has met one.

    ``guards`` limit what a single client can do to the model. A step that they cannot admit is left out, and
    ends unlearning: post-training still repairs the last admitted model. The run ends with
    ``Status.GUARD_STOP`` if the targets do not look forgotten then, or the retained clients lose much.

    ``floor`` is the R-Acc that the retained clients may lose: with more, the run ends as ``Status.HARMED``.
    ``Outcome.warnings`` names every client that was left out of a round, how often and why, what the guards
    did, retained clients that lose, and targets that do not look forgotten.
    """
    require_rules(stop)
    run = _Run(
        _phases(phases),
        request,
        federation,
        training,
        seed,
        evaluate_every,
        participation,
        tuple(stop),
        tuple(probes),
        guards,
        floor,
        listeners,
    )
    with one_thread():
        run.check()
        return run.outcome(resume)


def _phases(given: Sequence[Phase]) -> tuple[Phase, ...]:
    remedy = "give a list of phases, such as method['fedosd'](Schedule())"
    require_type(isinstance(given, Sequence) and not isinstance(given, str), "phases", given, remedy)
    for phase in given:
        require_type(isinstance(phase, Phase), "a phase", phase, remedy)
    return tuple(given)


@dataclass(frozen=True)
class _Run:
    """What stays the same from round to round."""

    phases: tuple[Phase, ...]
    request: Request
    federation: Federation
    training: LocalTraining
    seed: int
    evaluate_every: int
    participation: Participation
    stop: tuple[StopRule, ...]
    probes: tuple[Probe, ...]
    guards: Guards | None
    floor: float | None
    listeners: Sequence[Listener]

    def check(self) -> None:
        """Refuses before round one what could not be run."""
        request, present = self.request, self.federation.present()
        if absent := sorted({*request.retained} - present):
            known = did_you_mean(absent[0], present - {*request.clients} or present)
            warnings.warn(f"client {absent[0]!r} of the request is not present{known}", stacklevel=3)
        require_count("evaluate_every", self.evaluate_every, 1)
        share = isinstance(self.floor, int | float) and 0 <= self.floor <= 1
        require(self.floor is None or share, "floor", self.floor, "a share from 0 to 1, or None")
        found = preconditions(
            self.phases, request, self.federation, present, self.training, self.participation
        )
        for problem in found:
            raise FedUnlearnError(problem)

    def outcome(self, resume: Progress | None) -> Outcome:
        """Runs every phase that is left, and tells the listeners of every round."""
        phases, request = self.phases, self.request
        rows: list[Metrics] = []

        def announce(progress: Progress, metrics: Metrics) -> None:
            rows.append(metrics)
            for listener in self.listeners:
                listener(Event(progress, phases, metrics))

        if resume is None:
            progress = Progress(0, 0, State(request.params, buffers=request.buffers))
            before, _ = self.evaluate(progress.state)
            if "asr" not in before:
                for caution in sorted({phase.without_backdoor for phase in phases} - {""}):
                    warnings.warn(caution, stacklevel=3)
            for rule in self.stop:
                for target in request.targets:
                    rule.met(self.of(before, target), target)  # refuses at once what is never measured
            progress = replace(progress, guarded=Guarded(started=starting(before)))
            announce(
                progress,
                {"phase": 0, "stage": "start", "round": 0, "elapsed": 0, "distance": 0.0, **before},
            )
        else:
            # A failed round is tried again: the missing client may be back.
            progress = resume
            if resume.state.status.failed and not resume.state.status.final:
                progress = replace(resume, state=replace(resume.state, status=Status.RUNNING, reason=""))
        for index in range(progress.phase, len(phases)):
            if progress.state.status.failed:
                break
            phase = phases[index]
            if progress.guarded.stopped and phase.stage is Stage.UNLEARNING:
                continue
            if index > progress.phase or progress.elapsed_rounds == 0:
                started = phase.start(request, progress.state)
                fresh = replace(progress.guarded, reference={})
                progress = replace(progress, phase=index, state=started, finished=frozenset(), guarded=fresh)
            while progress.state.round < phase.rounds and progress.state.status is Status.RUNNING:
                start = progress
                progress, metrics = self.round(start)
                ended = progress.state.round == phase.rounds or progress.state.status is not Status.RUNNING
                watched = bool(self.stop) and phase.stage is Stage.UNLEARNING
                in_vain = False
                if ended or watched or progress.elapsed_rounds % self.evaluate_every == 0:
                    measures, in_vain = self.evaluate(progress.state)
                    metrics |= measures
                if not progress.state.status.failed and (why := self.absurd(progress, metrics, in_vain)):
                    progress, metrics = self.discarded(start, metrics, why)
                    ended = True
                if watched and not ended:
                    progress = self.stopped(progress, metrics)
                    if progress.state.status is not Status.RUNNING:
                        metrics |= {"status": progress.state.status, "reason": progress.state.reason}
                        ended = True
                if ended and not progress.state.status.failed:
                    progress, metrics = self.judged(progress, metrics)
                tried_again = progress.state.status.failed and not progress.state.status.final
                announce(replace(progress, guarded=start.guarded) if tried_again else progress, metrics)
        state = progress.state
        return Outcome(
            state,
            Status.DONE if state.status is Status.RUNNING else state.status,
            state.reason,
            tuple(rows),
            tuple(client for client in request.retained if client not in progress.heard),
            noted(progress.guarded),
            None if self.guards is None else counts(progress.guarded),
            request.targets,
        )

    def evaluate(self, state: State) -> tuple[Metrics, bool]:
        """Asks the clients that are present to measure the model on their own sets.

        Returns the measures, and whether losses were measured of which none is finite.
        """
        present = self.federation.present()
        job = Job("measure", state.params, buffers=state.buffers)
        jobs = {client: job for client in self.request.clients if client in present}
        known = replace(job, config={"on": "forget"})
        jobs |= {target: known for target in self.request.targets if target in jobs}
        sent = self.federation.exchange(jobs, Terms())
        replies = admit(jobs, sent, state.buffers)
        measures = {**measure.forgetting(replies, self.request), **measure.utility(replies, self.request)}
        return measures, measured_in_vain(sent, replies)

    def absurd(self, progress: Progress, metrics: Metrics, in_vain: bool) -> str:
        """What shows that a model is none, if so: no finite loss, or one out of measure in real use."""
        if in_vain:
            return "no loss that clients measured is finite"
        used = self.guards is not None or self.floor is not None
        if not used and self.phases[progress.phase].stage is not Stage.PRETRAINING:
            return ""  # an experiment may go through large losses
        for key in ("loss_retained", "train_loss_retained"):
            now, first = float(metrics.get(key, 0)), progress.guarded.started.get(key, 0.0)
            if now > ABSURD * max(1.0, first):
                return f"the retained clients' mean loss is {now:.1e} ({first:.3g} at first)"
        return ""

    def discarded(self, start: Progress, metrics: Metrics, why: str) -> tuple[Progress, Metrics]:
        """The progress before a round whose model is none."""
        state = _diverged(self.phases[start.phase], start.state, why)
        return replace(start, state=state), {
            **metrics,
            "round": state.round,
            "elapsed": start.elapsed_rounds,
            "distance": distance(state.params, self.request.params),
            "status": state.status,
            "reason": state.reason,
        }

    def round(self, progress: Progress) -> tuple[Progress, Metrics]:
        phase, decay = self.phases[progress.phase], self.training.decay**progress.elapsed_rounds
        before = replace(progress.state, lr=phase.lr * decay)
        clock = _Clock()
        exchanges: list[Exchange] = []
        trials: list[Exchange] = []
        request = self._participating(phase, progress)
        watch = None if self.guards is None else Watch(self.guards, self.request, progress.guarded)
        try:
            self._require_present(phase, request, before)
            after = self._exchanged(phase, request, before, decay, progress.phase, exchanges, clock, watch)
        except MissingReply as missing:
            after = _halted(phase, before, missing, exchanges)
        else:
            after = _finished(phase, before, after)
            # What the server does alone needs no guard.
            if watch is not None and any(each.jobs for each in exchanges) and not after.status.failed:
                after = self._guarded(phase, request, before, after, watch, trials, clock)
        seconds = clock.seconds()

        heard = {c for each in exchanges for c in each.replies}.intersection(self.request.retained)
        moved = replace(
            progress,
            elapsed_rounds=progress.elapsed_rounds + (after.round > before.round),
            state=after,
            heard=progress.heard | heard,
            guarded=self._booked(phase, progress.guarded if watch is None else watch.guarded, exchanges),
        )
        metrics: Metrics = {
            "phase": moved.phase,
            "stage": phase.stage,
            "round": after.round,
            "elapsed": moved.elapsed_rounds,
            "lr": _rate(phase, exchanges, decay),
            **after.diagnostics,
            "distance": distance(after.params, self.request.params),
        }
        if self.guards is not None or self.stop:
            # Both look at ω⁰ or at the targets after the noise, which no certificate covers.
            metrics.pop("epsilon", None)
        if not after.status.failed:
            finished = FinishedRound(
                phase,
                request,
                before,
                after,
                tuple(exchanges),
                lambda jobs: self._ask(jobs, before, decay, progress.phase, 0, before.buffers).replies,
            )
            for probe in self.probes:
                metrics |= probe(finished)
        metrics |= measure.training([each.replies for each in exchanges], self.request)
        moved = replace(moved, guarded=_learning(phase, after, moved.guarded, metrics))
        # What is done on public data is the server's own work.
        asked = [
            ({client: job for client, job in each.jobs.items() if client != request.public}, each.replies)
            for each in exchanges
        ]
        extra = [(each.jobs, each.replies) for each in trials]
        metrics |= measure.cost([*asked, *extra], seconds, seconds - clock.waited)
        metrics |= measure.coverage(asked, heard, moved.heard, self.request)
        metrics["bytes_stored"] = measure.size(
            *after.memory.values(), *self.request.history.only(phase.needs, beside=False).tensors().values()
        )
        if after.status is not Status.RUNNING:
            metrics |= {"status": after.status, "reason": after.reason}
        return moved, metrics

    def _participating(self, phase: Phase, progress: Progress) -> Request:
        """The request as this round sees it: who takes part, and which targets are still to be unlearned."""
        request = self.request
        if progress.finished:
            request = replace(
                request,
                clients=tuple(c for c in request.clients if c not in progress.finished),
                targets=tuple(t for t in request.targets if t not in progress.finished),
            )
        present = self.federation.present()
        there = tuple(client for client in phase.learners(request) if client in present)
        names = (self.seed, progress.phase, progress.state.round)
        return replace(request, participants=self.participation.draw(there, *names))

    def _require_present(self, phase: Phase, request: Request, before: State) -> None:
        if len(request.asked) < self.participation.minimum:
            raise MissingReply(
                f"{able(len(request.asked))} in round {before.round + 1} of {phase.stage}, and the "
                f"minimum is {self.participation.minimum}: resume later"
            )

    def _exchanged(
        self,
        phase: Phase,
        request: Request,
        before: State,
        decay: float,
        index: int,
        exchanges: list[Exchange],
        clock: _Clock,
        watch: Watch | None,
    ) -> State:
        """Drives one round, and keeps what was exchanged."""
        learners = phase.learners(request)
        round = phase.round(request, before)
        if not isinstance(round, Generator):
            return _state(phase, round)
        buffers = before.buffers
        try:
            jobs = next(round)
            while True:
                self._require_jobs(phase, jobs)
                with clock.waiting():
                    done = self._ask(jobs, before, decay, index, len(exchanges), buffers)
                if watch is not None:
                    done = Exchange(done.jobs, watch.screen(done.jobs, done.replies))
                exchanges.append(done)
                self._require_answers(phase, done, before, learners)
                own = (client for client in learners if client in jobs and jobs[client].buffers is None)
                buffers = done.replies.of(own).merged_buffers(buffers)
                jobs = round.send(done.replies)
        except StopIteration as stop:
            after = _state(phase, stop.value)
            return after if after.status.failed else replace(after, buffers=buffers)

    def _require_jobs(self, phase: Phase, jobs: Jobs) -> None:
        """Refuses what a method's author may yield by mistake."""
        where = f"{type(phase).__name__}.round"
        if not isinstance(jobs, Mapping) or not all(isinstance(job, Job) for job in jobs.values()):
            raise FedUnlearnError(
                f"{where} yields a {type(jobs).__name__} that does not map clients to jobs: yield a "
                "dictionary such as {client: train(state.params) for client in request.retained}"
            )
        known = {*self.request.clients, self.request.public}
        if unknown := [client for client in jobs if client not in known]:
            raise FedUnlearnError(
                f"{where} asks {unknown[0]!r}, which is not a client of this request: ask request.targets, "
                "request.retained or request.asked"
            )
        if "targets" not in phase.asks and (asked := [c for c in self.request.targets if c in jobs]):
            raise FedUnlearnError(
                f"{where} asks the target {asked[0]!r}, and the phase declares that it asks none: add "
                "'targets' to its asks"
            )

    def _guarded(
        self,
        phase: Phase,
        request: Request,
        before: State,
        after: State,
        watch: Watch,
        trials: list[Exchange],
        clock: _Clock,
    ) -> State:
        """The step as far as the guards admit it, or the state before it where they admit none."""
        guards, origin = watch.guards, phase.origin(request, before)
        if torch.equal(after.params, origin):
            return after
        proposed = watch.shortened(phase, before, origin, after)
        tries = watch.tries and not _new(phase)
        if tries:
            known = watch.guarded
            if not known.original:
                first = replace(before, params=self.request.params, buffers=self.request.buffers)
                watch.begin(self._losses(first, trials, clock))
            if watch.tries and not known.reference and not torch.equal(origin, self.request.params):
                start = replace(before, params=origin)
                watch.begin(self._losses(start, trials, clock))
        if tries and watch.tries:
            for left in reversed(range(guards.halvings + 1)):
                harmed = watch.harmed(self._losses(proposed, trials, clock))
                if not harmed:
                    break
                if not left:
                    worst = max(harmed, key=lambda client: harmed[client][0] / harmed[client][1])
                    loss, limit = harmed[worst]
                    return watch.leave_out(
                        phase,
                        before,
                        "harm",
                        f"would harm {', '.join(harmed)}, even halved {guards.halvings} times ({worst} would "
                        f"have a training loss of {loss:.3g}, and {limit:.3g} is admitted)",
                    )
                watch.note(
                    "halved",
                    f"a step of {phase.stage} was halved because it would have harmed {min(harmed)}",
                )
                proposed = part(before, origin, proposed, 0.5)
        if not watch.spend(phase, origin, proposed):
            return watch.leave_out(
                phase,
                before,
                "budget",
                f"would move the model by more than {guards.budget:g} times its length in all: raise the "
                "budget if the method needs more",
            )
        if proposed is after:
            return after
        share = distance(proposed.params, origin) / distance(after.params, origin)
        return replace(proposed, diagnostics={**proposed.diagnostics, "step_share": share})

    def _losses(self, state: State, trials: list[Exchange], clock: _Clock) -> dict[ClientId, float]:
        """The training losses of the retained clients that are present, with a model that is on trial."""
        present = self.federation.present()
        job = Job("measure", state.params, config={"on": "train"}, buffers=state.buffers)
        jobs = {client: job for client in self.request.retained if client in present}
        with clock.waiting():
            replies = admit(jobs, self.federation.exchange(jobs, Terms()), state.buffers)
        trials.append(Exchange(jobs, replies))
        return finite_losses(replies, jobs)

    def _booked(self, phase: Phase, guarded: Guarded, exchanges: Sequence[Exchange]) -> Guarded:
        """Takes down who was asked for help, who had work to do, and whose could not be used."""
        jobs = {client for each in exchanges for client in each.jobs}
        lost = {
            client: failure
            for each in exchanges
            for client, failure in each.replies.missing.items()
            if client in each.jobs
        }
        if jobs:
            away = {*phase.learners(self.request)} - self.federation.present() - jobs
            lost |= dict.fromkeys(away, Failure(Reason.ABSENT, "was not there"))
        helped = guarded.helped or not jobs.isdisjoint(self.request.targets)
        return book(replace(guarded, helped=helped), jobs, lost)

    def judged(self, progress: Progress, metrics: Metrics) -> tuple[Progress, Metrics]:
        """Looks, at the end of a phase, whether the targets are forgotten and what the others lose by it."""
        phase, guarded = self.phases[progress.phase], progress.guarded
        later = [each.stage for each in self.phases[progress.phase + 1 :] if each.rounds]
        last = not {*later} - ({Stage.UNLEARNING} if guarded.stopped else set())
        if not self.request.targets or not (last or phase.stage is Stage.UNLEARNING):
            return progress, metrics
        told = unmoved(guarded, metrics, phase.stage)
        guarded = guarded if told is None else replace(guarded, unmoved=told)
        if not last or phase.stage is Stage.PRETRAINING:
            return replace(progress, guarded=guarded), metrics
        floor, state = FLOOR if self.floor is None else self.floor, progress.state
        lost, harmed = worse(guarded, metrics, floor, _new(phase))
        bad = stopped_badly(guarded, metrics, floor) if guarded.stopped else ""
        if bad:
            state = state.halt(Status.GUARD_STOP, f"{guarded.stopped}; and {bad}")
        elif harmed and self.floor is not None:
            state = state.halt(Status.HARMED, lost)
        if state.status.failed:
            metrics = {**metrics, "status": state.status, "reason": state.reason}
        elif told := left_over(guarded, metrics):
            guarded = replace(guarded, events={**guarded.events, told: 1})
        return replace(progress, state=state, guarded=replace(guarded, worse=lost)), metrics

    def _ask(
        self, jobs: Jobs, before: State, decay: float, index: int, exchange: int, buffers: Buffers
    ) -> Exchange:
        if not jobs:
            return Exchange(jobs, Replies({}))
        phase, shuffle = self.phases[index], self.training.shuffle
        # Models that start anew for another purpose, such as a second retraining, see other batches, too.
        purpose = getattr(phase, "purpose", "") if shuffle else ""
        terms = Terms(
            phase.lr,
            decay,
            self.training.epochs,
            self.training.batch_size,
            (derive(self.seed, purpose) if purpose else self.seed, index, before.round),
            exchange,
            shuffle,
        )
        complete = {
            client: job if job.buffers is not None else replace(job, buffers=buffers)
            for client, job in jobs.items()
        }
        return Exchange(complete, self._answered(complete, terms, buffers))

    def _answered(self, jobs: Jobs, terms: Terms, buffers: Buffers) -> Replies:
        """The replies that can be used; clients that fail are asked again as often as participation says."""
        replies = admit(jobs, self.federation.exchange(jobs, terms), buffers)
        for _ in range(self.participation.redo):
            again = {c: jobs[c] for c, f in replies.missing.items() if c in jobs and f.reason.repeatable}
            if not again:
                break
            replies = replies.with_later(admit(again, self.federation.exchange(again, terms), buffers))
        for client, failure in replies.missing.items():
            LOG.info("%s %s and counts as missing", client, failure.detail)
        return replies

    def _require_answers(
        self, phase: Phase, done: Exchange, before: State, learners: Sequence[ClientId]
    ) -> None:
        jobs, replies = done.jobs, done.replies
        asked = set(learners).intersection(jobs)
        answered = sum(client in replies for client in asked)
        least = min(self.participation.minimum, len(asked))
        if answered < least or (jobs and not replies):
            missing = {client: replies.missing[client] for client in jobs if client in replies.missing}
            minimum = f", and the minimum is {least}" if least > 1 else ""
            raise MissingReply(
                f"{answered} of {len(asked) or len(jobs)} clients sent what can be used in round "
                f"{before.round + 1} of {phase.stage}{minimum}: {_explained(missing)}"
            )

    def stopped(self, progress: Progress, metrics: Metrics) -> Progress:
        """Releases the targets that meet a stop rule; the phase ends when none is left."""
        met = {
            target
            for target in self.request.targets
            if target in progress.finished or self._released(metrics, target)
        }
        if len(met) < len(self.request.targets):
            return replace(progress, finished=frozenset(met))
        rules = " or ".join(map(str, self.stop))
        state = progress.state.halt(Status.CONVERGED, f"every target meets a stop rule: {rules}")
        return replace(progress, state=state, finished=frozenset(met))

    def of(self, metrics: Metrics, target: ClientId) -> Metrics:
        """The measures of one target: its own where each target has them, else those of the model."""
        each = {key for key in metrics for one in self.request.targets if f"{key} {one}" in metrics}
        own = {key: metrics[f"{key} {target}"] for key in each if f"{key} {target}" in metrics}
        return {key: value for key, value in metrics.items() if key not in each} | own

    def _released(self, metrics: Metrics, target: ClientId) -> bool:
        """Whether a target meets a rule; not in a round in which it failed to be measured."""
        try:
            return any(rule.met(self.of(metrics, target), target) for rule in self.stop)
        except NotMeasured:
            return False


def _state(phase: Phase, returned: object) -> State:
    """What a round returned; refused where it is no state, as after a forgotten ``return``."""
    if not isinstance(returned, State):
        raise FedUnlearnError(
            f"{type(phase).__name__}.round returns a {type(returned).__name__}: return a State, such as "
            "state.step(direction)"
        )
    return returned


class _Clock:
    """Seconds of a round, and those of them that were spent waiting for clients."""

    def __init__(self) -> None:
        self._started = time.perf_counter()
        self.waited = 0.0

    def seconds(self) -> float:
        return time.perf_counter() - self._started

    @contextmanager
    def waiting(self) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.waited += time.perf_counter() - began


REMEDIES = {
    "resume later, when they are back": {Reason.ABSENT, Reason.LATE},
    "fix that and resume": {Reason.FAILED, Reason.STALE},
    "choose other Guards(...) if they are honest": {Reason.NORM, Reason.REPLAY, Reason.COPY},
    "check their data and code": {
        *(Reason.SHAPE, Reason.DTYPE, Reason.NOT_FINITE, Reason.FIELD, Reason.UNASKED)
    },
}
"""What helps where clients have no reply that can be used, by the reason."""


def _explained(missing: Mapping[ClientId, Failure]) -> str:
    """Who has no reply that can be used, by the reason, and what helps."""
    told = []
    for remedy, reasons in REMEDIES.items():
        found = [client for client, failure in missing.items() if failure.reason in reasons]
        if found:
            names = ", ".join(found[:NAMED]) + (" and others" if len(found) > NAMED else "")
            told.append(f"{names} ({missing[found[0]].reason}: {missing[found[0]].detail}): {remedy}")
    return "; ".join(told)


def _rate(phase: Phase, exchanges: Sequence[Exchange], decay: float) -> float:
    """The learning rate that was sent, last, to those whose training becomes the model's."""
    jobs = [job for each in exchanges for job in each.jobs.values() if job.work == "train"]
    return Terms(phase.lr, decay).rate(jobs[-1]) if jobs else phase.lr * decay


def _new(phase: Phase) -> bool:
    """Whether a model is trained from the start: nobody is protected by what it has not learned yet."""
    later = phase.stage is Stage.POSTTRAINING and "fresh" in phase.needs
    return phase.stage is Stage.PRETRAINING or later


def _learning(phase: Phase, after: State, guarded: Guarded, metrics: Metrics) -> Guarded:
    """Takes down the first losses of a run, and that a new model does not learn in its first rounds."""
    guarded = replace(guarded, started={**starting(metrics), **guarded.started})
    now, first = metrics.get("train_loss_retained"), guarded.started.get("train_loss_retained")
    tried = min(TRIED, phase.rounds)
    if not _new(phase) or after.round != tried or tried == 1 or now is None or first is None:
        return guarded
    if float(now) < 0.999 * first:
        return guarded
    told = (
        f"the training loss has not fallen in the first {tried} rounds ({float(now):.3g}, in the first "
        f"{first:.3g}): check the labels, scale the inputs, or train at another rate than {phase.lr:g}"
    )
    LOG.warning(told)
    return replace(guarded, events={**guarded.events, told: 1})


def _finished(phase: Phase, before: State, after: State) -> State:
    """The state after a round, or the one before it where the step is not finite."""
    if not finite(after.params):
        return _diverged(phase, before, "the step is not finite")
    if after.status.failed:
        said = {} if after.diagnostics is before.diagnostics else after.diagnostics
        return replace(after, round=before.round, diagnostics=said)
    return replace(after, round=before.round + 1)


def _halted(phase: Phase, before: State, missing: MissingReply, exchanges: Sequence[Exchange]) -> State:
    """The end of a round that cannot be completed: diverged where only updates that are not finite came."""
    jobs, replies = (exchanges[-1].jobs, exchanges[-1].replies) if exchanges else ({}, Replies({}))
    failures = {client: failure for client, failure in replies.missing.items() if client in jobs}
    wild = [client for client, failure in failures.items() if failure.reason is Reason.NOT_FINITE]
    if not wild or len(wild) < len(failures):
        return replace(before, diagnostics={}).halt(Status.MISSING_REPLY, str(missing))
    what = f"{wild[0]} {failures[wild[0]].detail}"
    if len(wild) == len(jobs) > 1:
        return _diverged(phase, before, f"{what}, as did everybody else,")
    # Others, or nobody else, could train at this rate: the client's data may be the cause as well.
    return _diverged(phase, before, what, f"check the data of {wild[0]}, or ")


def _diverged(phase: Phase, state: State, what: str, first: str = "") -> State:
    return replace(state, diagnostics={}).halt(
        Status.DIVERGED,
        f"{what} in round {state.round + 1} of {phase.stage}: the model before it is kept; "
        f"{first}lower the learning rate (now {phase.lr:g}) and run again",
    )
