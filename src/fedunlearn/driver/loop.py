"""The loop: carries out phases round by round, evaluates the model, and calls callbacks with every round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..core import (
    Callback,
    Event,
    Federation,
    Guarded,
    Listener,
    LocalTraining,
    Metrics,
    Outcome,
    Phase,
    Progress,
    Request,
    Stage,
    State,
    Status,
)
from ..core.errors import warn
from ..core.threads import one_thread
from .conditions import Conditions, Run, require_phases
from .endings import judge, outcome_of, starting
from .evaluation import absurd, discard, evaluate, release, require_measured
from .guards import Guards
from .participation import Participation
from .probes import Conflicts, Probe
from .rounds import play
from .stopping import StopRule


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
    """Run the phases one after the other and return how the run ended.

    Pre-training is the same run with the one phase ``Pretraining``. Listeners are called with every finished
    round; ``resume`` takes the ``Progress`` of such an event and continues from there, to the same bits. A
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
    conditions = Conditions(training, seed, evaluate_every, participation, stop, probes, guards, floor)
    run = Run(require_phases(phases), request, federation, conditions)
    callbacks = [each for each in listeners if isinstance(each, Callback)]
    rows: list[Metrics] = []

    def announce(progress: Progress, metrics: Metrics) -> None:
        rows.append(metrics)
        event = Event(progress, run.phases, metrics)
        for callback in callbacks:
            callback.before_record(event)
        for callback in callbacks:
            callback.record(event)
        for listener in listeners:
            listener(event)

    with one_thread():
        run.check()
        if resume is None:
            progress, metrics = _begin(run)
            announce(progress, metrics)
        else:
            progress = _again(resume)
        for index in range(progress.phase, len(run.phases)):
            phase = run.phases[index]
            if progress.state.status.failed:
                break
            if progress.guarded.stopped and phase.stage is Stage.UNLEARNING:
                continue
            if index > progress.phase or progress.elapsed_rounds == 0:
                fresh = replace(progress.guarded, reference={})
                state = phase.start(request, progress.state)
                progress = replace(progress, phase=index, state=state, finished=frozenset(), guarded=fresh)
            while progress.state.round < phase.rounds and progress.state.status is Status.RUNNING:
                start = progress
                progress, metrics = _round(run, start)
                # A round that failed is tried again: its notes count for this outcome alone.
                again = progress.state.status.failed and not progress.state.status.final
                announce(replace(progress, guarded=start.guarded) if again else progress, metrics)
    return outcome_of(run, progress, rows)


def _begin(run: Run) -> tuple[Progress, Metrics]:
    """Evaluate ω⁰."""
    request = run.request
    state = State(request.params, buffers=request.buffers)
    measures, _, tests = evaluate(run, state)
    if "asr" not in measures:
        for caution in sorted({phase.without_backdoor for phase in run.phases} - {""}):
            warn(caution, "no-backdoor")
    require_measured(run, measures)
    guarded = Guarded(started=starting(measures), tests=tests)
    row: Metrics = {"phase": 0, "stage": "start", "round": 0, "elapsed": 0, "distance": 0.0, **measures}
    return Progress(0, 0, state, guarded=guarded), row


def _again(progress: Progress) -> Progress:
    """Try a failed round again, unless its end is final: the missing client may be back."""
    status = progress.state.status
    if not status.failed or status.final:
        return progress
    return replace(progress, state=replace(progress.state, status=Status.RUNNING, reason=""))


def _round(run: Run, start: Progress) -> tuple[Progress, Metrics]:
    """Play a round; evaluate, discard, release or judge its model when that is due."""
    phase, conditions = run.phases[start.phase], run.conditions
    progress, metrics = play(run, start)
    ended = progress.state.round == phase.rounds or progress.state.status is not Status.RUNNING
    watched = bool(conditions.stop) and phase.stage is Stage.UNLEARNING
    unusable = False
    if ended or watched or progress.elapsed_rounds % conditions.evaluate_every == 0:
        measures, unusable, _ = evaluate(run, progress.state)
        metrics |= measures
    if not progress.state.status.failed and (cause := absurd(run, progress, metrics, unusable)):
        progress, metrics = discard(run, start, metrics, cause)
    elif watched and not ended:
        progress = release(run, progress, metrics)
        ended = progress.state.status is not Status.RUNNING
    if ended and not progress.state.status.failed:
        progress = judge(run, progress, metrics)
    if progress.state.status is not Status.RUNNING:
        metrics |= {"status": progress.state.status, "reason": progress.state.reason}
    return progress, metrics
