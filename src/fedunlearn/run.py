"""The driver: asks phases, carries jobs to the federation, tells phases what came back."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch

from . import measure
from .core import (
    Buffers,
    ClientId,
    Event,
    Federation,
    FedUnlearnError,
    Job,
    Listener,
    LocalTraining,
    Metrics,
    Outcome,
    Phase,
    Progress,
    Replies,
    Request,
    Stage,
    State,
    Status,
    Vector,
)
from .core.seeds import derive
from .maths import conflicts, distance


def unlearn(
    phases: Sequence[Phase],
    request: Request,
    federation: Federation,
    *,
    training: LocalTraining = LocalTraining(),
    seed: int = 0,
    evaluate_every: int = 1,
    stop_below: float = 0.0,
    count_conflicts: bool = False,
    listeners: Sequence[Listener] = (),
    resume: Progress | None = None,
) -> Outcome:
    """Drives the phases one after the other and returns how it ended.

    Pre-training is the same drive with the one phase ``Pretraining``. Listeners hear every finished
    round; ``resume`` takes a ``Progress`` that a listener once heard and goes on from there, to the
    same bits. A phase that fails (``Status.failed``) ends the run with the last good model.

    With ``stop_below`` above 0 every round of unlearning is evaluated, and the first that leaves the targets'
    ASR (their accuracy on what is to be forgotten, where there is no backdoor) below it is the last of its
    phase; one that repairs instead (``Phase.forgets``) has all of its rounds.

    Conflicts are counted where the retained clients train anyway; ``count_conflicts`` asks them in every
    round of unlearning, which a cost does not show and a result does not feel.
    """
    members = {*request.clients, *([request.public] if request.public else [])}
    absent = sorted(members - set(federation.clients))
    if absent:
        raise FedUnlearnError(f"client {absent[0]!r} of the request is not in the federation")
    if evaluate_every < 1:
        raise FedUnlearnError(f"evaluate_every = {evaluate_every}: it must be 1 or more")
    phases = tuple(phases)
    if not request.targets and any(phase.stage is Stage.UNLEARNING for phase in phases):
        raise FedUnlearnError("the request names no target, so there is nothing to unlearn: name one")
    known = {name.partition(" ")[0] for name in request.history} | ({"public"} if request.public else set())
    remedies = {
        "cluster": "pre-train in clusters",
        "public": "let the request name a member of the federation that holds public data",
    }
    for phase in phases:
        for kind in sorted(phase.needs - known):
            remedy = remedies.get(kind, f'pre-train with history = ["{kind}"]')
            raise FedUnlearnError(f"{type(phase).__name__} needs {kind}, and the request has none: {remedy}")
    rows: list[Metrics] = []

    def announce(progress: Progress, metrics: Metrics) -> None:
        rows.append(metrics)
        for listener in listeners:
            listener(Event(progress, phases, metrics))

    def evaluate(state: State) -> Metrics:
        evaluation = federation.evaluate(state.params, state.buffers)
        return {**measure.forgetting(evaluation, request), **measure.utility(evaluation, request)}

    with _one_thread():
        if resume is None:
            progress = Progress(0, 0, State(request.params, buffers=request.buffers))
            before = evaluate(progress.state)
            if stop_below > 0:
                _remembered(before)  # refuses at once what could never stop
            announce(
                progress,
                {"phase": 0, "stage": "start", "round": 0, "elapsed": 0, "distance": 0.0, **before},
            )
        else:
            # A failed round is tried again: the missing client may be back.
            progress = resume
            if resume.state.status.failed:
                progress = replace(resume, state=replace(resume.state, status=Status.RUNNING, reason=""))
        for index in range(progress.phase, len(phases)):
            phase = phases[index]
            if index > progress.phase or progress.elapsed_rounds == 0:
                progress = replace(progress, phase=index, state=phase.start(request, progress.state))
            while progress.state.round < phase.rounds and progress.state.status is Status.RUNNING:
                progress, metrics = _round(
                    phase, progress, request, federation, training, seed, count_conflicts
                )
                ended = progress.state.round == phase.rounds or progress.state.status is not Status.RUNNING
                watched = stop_below > 0 and phase.stage is Stage.UNLEARNING and phase.forgets
                if ended or watched or progress.elapsed_rounds % evaluate_every == 0:
                    metrics |= evaluate(progress.state)
                if watched and not ended and _remembered(metrics) < stop_below:
                    state = progress.state.halt(Status.CONVERGED, f"less than {stop_below:g} is remembered")
                    progress = replace(progress, state=state)
                    metrics |= {"status": state.status, "reason": state.reason}
                announce(progress, metrics)
            if progress.state.status.failed:
                break
    state = progress.state
    return Outcome(
        state, Status.DONE if state.status is Status.RUNNING else state.status, state.reason, tuple(rows)
    )


def _remembered(metrics: Metrics) -> float:
    """How much of the targets' examples the model still knows."""
    for key in ("asr", "forget_acc"):
        if key in metrics:
            return float(metrics[key])
    raise FedUnlearnError("stop_below needs examples of the targets to evaluate on, and they hold none")


def _round(
    phase: Phase,
    progress: Progress,
    request: Request,
    federation: Federation,
    training: LocalTraining,
    seed: int,
    count_conflicts: bool,
) -> tuple[Progress, Metrics]:
    started = time.perf_counter()
    decay = training.decay**progress.elapsed_rounds
    before = replace(progress.state, lr=phase.lr * decay)

    def complete(client: ClientId, job: Job) -> Job:
        return replace(
            job,
            objective=job.objective or training.objective,
            buffers=before.buffers,
            lr=(job.lr or phase.lr) * decay,
            epochs=math.ceil(job.effort * training.epochs - 1e-9),
            batch_size=training.batch_size,
            seed=derive(seed, progress.phase, before.round, client, "local training"),
        )

    jobs = {client: complete(client, job) for client, job in phase.ask(request, before).items()}
    asked_at = time.perf_counter()
    replies = federation.train(jobs) if jobs else Replies({})
    answered_at = time.perf_counter()
    after = _heard(phase, request, before, jobs, replies)
    seconds, waited = time.perf_counter() - started, answered_at - asked_at
    moved = replace(progress, elapsed_rounds=progress.elapsed_rounds + (not after.status.failed), state=after)
    metrics: Metrics = {
        "phase": moved.phase,
        "stage": phase.stage,
        "round": after.round,
        "elapsed": moved.elapsed_rounds,
        "lr": before.lr,
        **after.diagnostics,
        "distance": distance(after.params, request.params),
    }
    moves = after.params is not before.params and not after.status.failed
    if moves and phase.stage is not Stage.PRETRAINING:
        plain = replies.of(
            client for client in request.retained if _plain(jobs.get(client), before, training)
        )
        if count_conflicts and not plain and phase.stage is Stage.UNLEARNING:
            plain = federation.train(
                {client: complete(client, Job(before.params)) for client in request.retained}
            )
        if plain and all(_finite(reply.displacement) for reply in plain.values()):
            metrics["conflicts"] = conflicts(plain.matrix(), after.params - before.params)
    metrics |= measure.training(replies, request)
    # What is done on public data is the server's own work.
    asked = {client: job for client, job in jobs.items() if client != request.public}
    metrics |= measure.cost(asked, replies.of(asked), seconds, seconds - waited)
    metrics["bytes_stored"] = measure.size(
        *after.memory.values(),
        *(array for name, array in request.history.items() if name.partition(" ")[0] in phase.needs),
    )
    if after.status is not Status.RUNNING:
        metrics |= {"status": after.status, "reason": after.reason}
    return moved, metrics


def _heard(
    phase: Phase, request: Request, state: State, jobs: Mapping[ClientId, Job], replies: Replies
) -> State:
    """The state after the replies, or the one before them where they, or the step, are not finite."""
    if jobs and not replies:
        return state.halt(
            Status.MISSING_REPLY, f"nobody answered in round {state.round + 1} of {phase.stage}: resume later"
        )
    for client, reply in replies.items():
        if not all(map(_finite, (reply.displacement, *reply.arrays.values()))):
            return _diverged(phase, state, f"{client} sent an update that is not finite")
    after = phase.tell(request, state, replies)
    if not _finite(after.params):
        return _diverged(phase, state, "the step is not finite")
    if after.status.failed:
        said = {} if after.diagnostics is state.diagnostics else after.diagnostics
        return replace(after, round=state.round, diagnostics=said)
    return replace(
        after, round=state.round + 1, buffers=_merge(replies.of(phase.speakers(request)), state.buffers)
    )


def _plain(job: Job | None, state: State, training: LocalTraining) -> bool:
    """Whether the reply to a job is what the client would do to the model by itself."""
    return (
        job is not None
        and job.params is state.params
        and job.objective == training.objective
        and job.epochs > 0
    )


def _finite(vector: Vector) -> bool:
    """By its extremes: one pass, without a vector of truth values. Nothing at all is finite."""
    if not vector.numel():
        return True
    least, most = vector.aminmax()
    return math.isfinite(least) and math.isfinite(most)


def _diverged(phase: Phase, state: State, what: str) -> State:
    return replace(state, diagnostics={}).halt(
        Status.DIVERGED,
        f"{what} in round {state.round + 1} of {phase.stage}: the model before it is kept; "
        f"lower the learning rate (now {phase.lr:g}) and run again",
    )


def _merge(replies: Replies, before: Buffers) -> Buffers:
    """Averages the float buffers of the clients that stay; integer ones (counters) follow the first."""
    if not replies:
        return before
    merged = {}
    for name, old in next(iter(replies.values())).buffers.items():
        values = [reply.buffers[name] for reply in replies.values()]
        if old.is_floating_point():
            merged[name] = sum(
                (value * weight for value, weight in zip(values, replies.weights(), strict=True)),
                torch.zeros_like(old),
            )
        else:
            merged[name] = values[0]
    return merged


@contextmanager
def _one_thread() -> Iterator[None]:
    """Sums over several threads differ in the last bits; results must not depend on the machine's load."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
