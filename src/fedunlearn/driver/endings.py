"""Endings: how a round, a phase and a run end, and how well the targets are forgotten by then."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..core import (
    ClientId,
    Failure,
    Guarded,
    Metrics,
    MissingReply,
    Outcome,
    Phase,
    Progress,
    Reason,
    Replies,
    Stage,
    State,
    Status,
)
from ..measures.metrics import metric
from .conditions import Run, from_scratch
from .gate import finite
from .guards import FLOOR
from .probes import Exchange
from .sentences import sentence

NAMED = 5
"""The clients that a sentence names, at most."""
CHANCE = 0.05
"""An ASR up to which a backdoor does not work; retrained models reach as much."""
LEFT = 0.1
"""The share of an ASR that may be left."""
SHOWN = 3
"""The test examples that a loss of accuracy must amount to: of a client with fewer, chance may explain it."""
MOVED = 0.1
"""The share by which a loss of the targets must change in unlearning."""

REMEDIES = {
    "remedy_away": {Reason.ABSENT, Reason.LATE},
    "remedy_failed": {Reason.FAILED, Reason.STALE},
    "remedy_guards": {Reason.NORM, Reason.REPLAY, Reason.COPY},
    "remedy_data": {*(Reason.SHAPE, Reason.DTYPE, Reason.NOT_FINITE, Reason.FIELD, Reason.UNASKED)},
}
"""The codes of the remedies for clients without a usable reply, with the reasons."""


def explained(missing: Mapping[ClientId, Failure]) -> str:
    """Name the clients without a usable reply, the reasons, and the remedies."""
    parts = []
    for remedy, reasons in REMEDIES.items():
        clients = [client for client, failure in missing.items() if failure.reason in reasons]
        if clients:
            names = ", ".join(clients[:NAMED]) + (" and others" if len(clients) > NAMED else "")
            first = missing[clients[0]]
            parts.append(f"{names} ({first.reason}: {first.detail}): {sentence(remedy)}")
    return "; ".join(parts)


def completed(phase: Phase, before: State, after: State) -> State:
    """Return the state after a round, or the one before it if the step is not finite."""
    if not finite(after.params):
        return diverged(phase, before, sentence("step_not_finite"))
    if after.status.failed:
        new = {} if after.diagnostics is before.diagnostics else after.diagnostics
        return replace(after, round=before.round, diagnostics=new)
    return replace(after, round=before.round + 1)


def incomplete(phase: Phase, before: State, missing: MissingReply, exchanges: Sequence[Exchange]) -> State:
    """End a round that cannot be completed: as diverged if no update came that was finite."""
    jobs, replies = (exchanges[-1].jobs, exchanges[-1].replies) if exchanges else ({}, Replies({}))
    failures = {client: failure for client, failure in replies.missing.items() if client in jobs}
    wild = [client for client, failure in failures.items() if failure.reason is Reason.NOT_FINITE]
    if not wild or len(wild) < len(failures):
        return replace(before, diagnostics={}).halt(Status.MISSING_REPLY, str(missing))
    facts = {"client": wild[0], "detail": failures[wild[0]].detail}
    if len(wild) == len(jobs) > 1:
        return diverged(phase, before, sentence("updates_not_finite", **facts))
    # Others, or no other client, could train at this rate: the client's data may be the cause as well.
    first = sentence("check_data", client=wild[0])
    return diverged(phase, before, sentence("update_not_finite", **facts), first)


def diverged(phase: Phase, state: State, cause: str, first: str = "") -> State:
    """End a phase with the last good model."""
    facts = {"cause": cause, "round": state.round + 1, "stage": phase.stage, "first": first, "lr": phase.lr}
    return replace(state, diagnostics={}).halt(Status.DIVERGED, sentence("diverged", **facts))


def judge(run: Run, progress: Progress, metrics: Metrics) -> Progress:
    """Judge, at the end of a phase, whether the targets are forgotten and what the others lose by it."""
    phase, guarded, state = run.phases[progress.phase], progress.guarded, progress.state
    later = [each.stage for each in run.phases[progress.phase + 1 :] if each.rounds]
    last = not {*later} - ({Stage.UNLEARNING} if guarded.stopped else set())
    if not run.request.targets or not (last or phase.stage is Stage.UNLEARNING):
        return progress
    verdict = unmoved(guarded, metrics, phase.stage)
    if verdict is not None:
        guarded = replace(guarded, unmoved_code=verdict[0], unmoved=verdict[1])
    if not last or phase.stage is Stage.PRETRAINING:
        return replace(progress, guarded=guarded)
    floor = FLOOR if run.conditions.floor is None else run.conditions.floor
    lost, harmed = worse(guarded, metrics, floor, from_scratch(phase))
    bad = _stopped_badly(guarded, metrics, floor) if guarded.stopped else ""
    if bad:
        state = state.halt(Status.GUARD_STOP, f"{guarded.stopped}; and {bad}")
    elif harmed and run.conditions.floor is not None:
        state = state.halt(Status.HARMED, lost)
    elif left := _left_over(guarded, metrics):
        guarded = replace(guarded, events={**guarded.events, left: 1})
    return replace(progress, state=state, guarded=replace(guarded, worse=lost))


def starting(metrics: Metrics) -> dict[str, float]:
    """Return the measures of targets and retained clients that a later model is compared with."""
    keys = ("asr", "loss_target", "train_loss_target", "loss_retained", "train_loss_retained")
    return {
        key: float(value) for key, value in metrics.items() if key in keys or key.split(" ")[0] == "r_acc"
    }


def worse(guarded: Guarded, metrics: Metrics, floor: float, new: bool = False) -> tuple[str, bool]:
    """Return what the retained clients lose by a model, if much, and whether it is more than the floor."""
    first = guarded.started
    if "r_acc" in first and "r_acc" in metrics:
        now, before = _accuracy(guarded, metrics, floor), _accuracy(guarded, first, floor)
        code, most_lost = "worse_r_acc", _most(guarded, metrics, floor)
        lost, much, most = before - now, min(0.03, floor), floor
    elif first.get("loss_retained", 0) > 0 and "loss_retained" in metrics:
        now, before = float(metrics["loss_retained"]), first["loss_retained"]
        code, most_lost = "worse_loss", ""
        lost, much, most = (now - before) / max(1.0, before), 0.1, 0.5
    else:
        return "", False
    if lost <= much + 1e-9:
        return "", False
    harmed = lost > most + 1e-9
    remedy = sentence("remedy_retrain" if new else "remedy_repair")
    remedy += sentence("remedy_floor") if harmed else ""
    measured = sentence(code, now=now, before=before, most=most_lost)
    return sentence("worse", measured=measured, remedy=remedy), harmed


def _accuracy(guarded: Guarded, metrics: Mapping[str, float | int | str], floor: float) -> float:
    """Return the mean accuracy of the clients whose test sets can show a loss of ``floor``.

    The others count together, by their examples, as one more client, if they can show it together or if there
    are no others.
    """
    found = _tested(guarded, metrics)
    small = [client for client in found if not _shows(guarded, client, floor)]
    if not small:
        return float(metrics["r_acc"])
    each = [accuracy for client, accuracy in found.items() if client not in small]
    count = sum(guarded.tests[client] for client in small)
    if not each or count * floor >= SHOWN:
        each.append(sum(guarded.tests[client] * found[client] for client in small) / count)
    return sum(each) / len(each)


def _tested(guarded: Guarded, metrics: Mapping[str, float | int | str]) -> dict[ClientId, float]:
    """Return the accuracies of the clients that also measured the first model."""
    keys = [key for key in guarded.started if key.startswith("r_acc ") and key in metrics]
    return {key.removeprefix("r_acc "): float(metrics[key]) for key in keys}


def _shows(guarded: Guarded, client: ClientId, lost: float) -> bool:
    """Return whether a loss of accuracy amounts to several test examples of a client."""
    return guarded.tests.get(client, math.inf) * lost >= SHOWN


def _most(guarded: Guarded, metrics: Metrics, floor: float) -> str:
    """Name the client that lost most of those that can show it, and the size of its test set."""
    now, before = _tested(guarded, metrics), _tested(guarded, guarded.started)
    lost = {client: before[client] - now[client] for client in now if _shows(guarded, client, floor)}
    most = max(lost, key=lambda client: lost[client], default="")
    if most not in guarded.tests:
        return ""
    count = guarded.tests[most]
    return sentence("worse_most", client=most, now=now[most], before=before[most], count=count)


def _stopped_badly(guarded: Guarded, metrics: Metrics, floor: float) -> str:
    """Return why a run of which guards ended a phase ends badly; empty if it does not."""
    if guarded.unmoved_code == "unmoved":
        return guarded.unmoved
    lost, harmed = worse(guarded, metrics, floor)
    if harmed:
        return lost
    before = _tested(guarded, guarded.started)
    for client, now in _tested(guarded, metrics).items():
        if now < before[client] - 3 * floor and _shows(guarded, client, 3 * floor):
            return sentence("worse_client", client=client, now=now, before=before[client])
    return ""


def unmoved(guarded: Guarded, metrics: Metrics, stage: Stage) -> tuple[str, str] | None:
    """Return a code and a sentence if the targets do not look forgotten at the end of a phase.

    Both are empty if they look forgotten; None if it is unknown. Losses of the targets count only if
    forgetting depends on the targets' work.
    """
    started, now = guarded.started, starting(metrics)
    if "asr" in started and "asr" in now and max(started["asr"], now["asr"]) > CHANCE:
        if now["asr"] <= max(started["asr"] / 2, CHANCE):
            return "", ""
        return "unmoved", sentence("backdoor_works", stage=stage, asr=_asr(started, now))
    if stage is not Stage.UNLEARNING or not guarded.helped:
        return None
    if "loss_target" in started and "loss_target" in now:
        after, before, code = now["loss_target"], started["loss_target"], "loss_not_risen"
        moved = after >= before + MOVED * abs(before)
    elif "train_loss_target" in started and "train_loss_target" in now:
        after, before, code = now["train_loss_target"], started["train_loss_target"], "loss_not_fallen"
        moved = after <= before - MOVED * abs(before)
    else:
        return "unmeasured", sentence("unmeasured")
    return ("", "") if moved else ("unmoved", sentence(code, now=after, before=before))


def _left_over(guarded: Guarded, metrics: Metrics) -> str:
    """Return the warning that a part of a backdoor is left that a retrained model would hardly have."""
    started, now = guarded.started, starting(metrics)
    if "asr" not in now or guarded.unmoved_code:
        return ""
    left = LEFT * started.get("asr", 0) < now["asr"] > 2 * CHANCE
    return sentence("backdoor_left", asr=_asr(started, now)) if left else ""


def _asr(started: Mapping[str, float], now: Mapping[str, float]) -> str:
    after, before = (metric("asr").text(value["asr"]) for value in (now, started))
    return f"ASR {after}, before {before}"


def outcome_of(run: Run, progress: Progress, rows: Sequence[Metrics]) -> Outcome:
    """Return how a run ended, from its last round."""
    state, guarded = progress.state, progress.guarded
    code = {guarded.unmoved_code: 1} if guarded.unmoved_code else {}
    return Outcome(
        state,
        Status.DONE if state.status is Status.RUNNING else state.status,
        state.reason,
        tuple(rows),
        tuple(client for client in run.request.retained if client not in progress.heard),
        guard_warnings(guarded),
        None if run.conditions.guards is None else {**guarded.codes, **code},
        run.request.targets,
        progress.missing,
    )


def guard_warnings(guarded: Guarded) -> tuple[str, ...]:
    """Return the warnings of an outcome: clients first, targets that are not forgotten last."""
    left_out = [
        sentence("absent", client=client, count=count, rounds=guarded.asked[client], detail=detail)
        for client, reasons in sorted(guarded.lost.items())
        for count, detail in reasons.values()
    ]
    events = [f"{event} ({count} times)" if count > 1 else event for event, count in guarded.events.items()]
    return (*left_out, *events, *filter(None, (guarded.stopped, guarded.worse, guarded.unmoved)))
