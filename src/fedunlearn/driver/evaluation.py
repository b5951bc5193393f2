"""Evaluation: measuring the model with the clients, and what follows from the measures."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from .. import measures as measure
from ..core import ClientId, Job, Metrics, Progress, Stage, State, Status, Terms
from ..maths import distance
from .conditions import Run
from .endings import diverged
from .gate import admit, all_losses_non_finite
from .sentences import sentence
from .stopping import NotMeasured

ABSURD = 1e6
"""The factor above the first mean loss, or above 1, that no training leads to."""


class Evaluation(NamedTuple):
    """The measures of a model, with what they rest on."""

    measures: Metrics
    all_losses_non_finite: bool
    tests: dict[ClientId, int]
    """The number of test examples of each retained client."""


def evaluate(run: Run, state: State) -> Evaluation:
    """Ask the clients that are present to measure the model on their own sets."""
    request, present = run.request, run.federation.present()
    job = Job("measure", state.params, buffers=state.buffers)
    jobs = {client: job for client in request.clients if client in present}
    known = replace(job, config={"on": "forget"})
    jobs |= {target: known for target in request.targets if target in jobs}
    sent = run.federation.exchange(jobs, Terms())
    replies = admit(jobs, sent, state.buffers)
    measures = {**measure.forgetting(replies, request), **measure.utility(replies, request)}
    return Evaluation(measures, all_losses_non_finite(sent, replies), measure.tested(replies, request))


def absurd(run: Run, progress: Progress, metrics: Metrics, unusable: bool) -> str:
    """Return what shows that a model is useless, if so: no finite loss, or one that no training leads to."""
    if unusable:
        return sentence("losses_not_finite")
    in_use = run.conditions.guards is not None or run.conditions.floor is not None
    if not in_use and run.phases[progress.phase].stage is not Stage.PRETRAINING:
        return ""  # an experiment may go through large losses
    for key in ("loss_retained", "train_loss_retained"):
        now, first = float(metrics.get(key, 0)), progress.guarded.started.get(key, 0.0)
        if now > ABSURD * max(1.0, first):
            return sentence("loss_absurd", now=now, first=first)
    return ""


def discard(run: Run, start: Progress, metrics: Metrics, cause: str) -> tuple[Progress, Metrics]:
    """Return to the progress before a round whose model is useless."""
    state = diverged(run.phases[start.phase], start.state, cause)
    return replace(start, state=state), {
        **metrics,
        "round": state.round,
        "elapsed": start.elapsed_rounds,
        "distance": distance(state.params, run.request.params),
    }


def release(run: Run, progress: Progress, metrics: Metrics) -> Progress:
    """Release the targets that meet a stop rule; the phase ends when none is left."""
    targets = run.request.targets
    met = frozenset(
        target for target in targets if target in progress.finished or _meets(run, metrics, target)
    )
    progress = replace(progress, finished=met)
    if len(met) < len(targets):
        return progress
    reason = sentence("converged", rules=" or ".join(map(str, run.conditions.stop)))
    return replace(progress, state=progress.state.halt(Status.CONVERGED, reason))


def require_measured(run: Run, metrics: Metrics) -> None:
    """Refuse stop rules about measures that are never taken."""
    for rule in run.conditions.stop:
        for target in run.request.targets:
            rule.met(_measures_of(run, metrics, target), target)


def _meets(run: Run, metrics: Metrics, target: ClientId) -> bool:
    """Return whether a target meets a rule; it does not in a round in which it could not be measured."""
    try:
        return any(rule.met(_measures_of(run, metrics, target), target) for rule in run.conditions.stop)
    except NotMeasured:
        return False


def _measures_of(run: Run, metrics: Metrics, target: ClientId) -> Metrics:
    """Return the measures of one target: its own if targets have them, otherwise those of the model."""
    each = {key for key in metrics for one in run.request.targets if f"{key} {one}" in metrics}
    own = {key: metrics[f"{key} {target}"] for key in each if f"{key} {target}" in metrics}
    return {key: value for key, value in metrics.items() if key not in each} | own
