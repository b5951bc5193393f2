"""Answering a request: unlearning, recovery, verification, certificate. Every step can be repeated."""

from __future__ import annotations

import copy
import hashlib
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from ..attestation import verdict_of
from ..auditing import Evidence, audit
from ..authority import stated_client
from ..core import (
    Authorising,
    Event,
    Federation,
    FedUnlearnError,
    History,
    Listener,
    Metrics,
    Outcome,
    Stage,
    State,
    Status,
    vectors,
)
from ..core.hashes import model_hash
from ..evidence import Verdict
from ..record import locked, read_tensors
from ..server import ForgettingFailed, forget, read_history, remove_rows
from .admission import Work, admit, admitted_history, admitted_model, chosen_method, overtaken
from .certifying import MODEL, certify, install
from .desk import Case, Desk, Standing
from .findings import evidence_entries

Auditor = Callable[[State, State], Evidence]
"""Compares the model after the request with the one before it."""

MEASURES = ("asr", "forget_acc", "forget_loss", "r_acc", "r_acc_worst", "r_loss", "distance", "coverage")
"""What the ledger tells of a stage: means over clients, never a value of an example."""


def erase(
    desk: Desk,
    request: str,
    federation: Federation,
    model: nn.Module,
    *,
    history: Path | History | None = None,
    auditor: Auditor | None = None,
    gone: bool = False,
    engine: str = "own",
    build: Callable[[], nn.Module] | None = None,
    listeners: Sequence[Listener] = (),
) -> Case:
    """Answers a request that ``receive`` has authenticated; the same call continues after a crash.

    ``model`` is the one in production and becomes the certified one; if the request fails, it stays.
    ``auditor`` compares the two beside retrained models; without it, the client measures the model itself and
    no verdict is possible.
    ``history`` is the file that ``flower.Recording`` wrote, or what it holds: the request keeps an encrypted
    copy, and the rows of the client are deleted from the file. ``gone`` says that the client has left: then
    only methods that do not ask it can run.
    """
    with locked(desk.folder / "work.lock"):
        desk.ledger.settle()
        case = desk.case(request)
        if case.standing in (Standing.RECEIVED, Standing.REFUSED):
            raise FedUnlearnError(f"request {request} is {case.standing}: {case.next_step}")
        if case.purging:
            done = case.standing is Standing.PURGED
            raise FedUnlearnError(
                f"request {request} is {'purged' if done else 'being purged: ' + case.next_step}"
            )
        client = stated_client(desk.document(request))
        work = Work(desk, request, client, federation, model, "", gone, engine)
        if not case.last("certified"):
            _authorise(work)
        if case.standing is Standing.AUTHENTICATED or overtaken(work):
            admit(work, read_history(history) if isinstance(history, Path) else history, build)
        if isinstance(history, Path):
            remove_rows(history, [client])
        if not work.case.last("certified"):
            original = admitted_model(work)
            work = replace(work, method=chosen_method(work))
            _unlearn(work, original, auditor, build, listeners)
        return _put_into_service(work)


def _put_into_service(work: Work) -> Case:
    """The model of a certified request replaces the one in production, and the client takes part no more."""
    case = work.case
    if (certified := case.last("certified")) is not None and case.last("installed") is None:
        work.desk.suppress(work.request, work.client)
        install(work.desk, certified)
        work.tell("installed", model=certified.fields["model"])
    if certified is not None:
        work.model.load_state_dict(read_tensors(work.place / MODEL)[0])
    return work.case


def _authorise(work: Work) -> None:
    """Shows the request to the federation, which checks it against the key that the client's node has there.

    The request must have been valid, and about a model that the desk served, when the desk authenticated it:
    a run that takes longer is not cut off. A client that is gone is not asked for anything.
    """
    authenticated = work.case.last("authenticated")
    if isinstance(work.federation, Authorising) and not work.gone and authenticated is not None:
        work.federation.authorise(
            work.client,
            work.desk.document(work.request),
            name=work.desk.policy.federation,
            model=None,
            folder=work.place / "run",
            ledger=work.desk.folder / "nonces" / "federation",
            now=authenticated.time,
        )


def _unlearn(
    work: Work,
    original: State,
    auditor: Auditor | None,
    build: Callable[[], nn.Module] | None,
    listeners: Sequence[Listener],
) -> None:
    """Runs the method, unless this attempt has ended, and tells what was found."""
    desk, policy = work.desk, work.desk.policy
    case = work.case
    if case.standing is Standing.ADMITTED or case.standing.ended:
        work.tell("unlearning", attempt=case.attempt + 1)
    vectors.load(work.model, original)
    try:
        outcome = forget(
            work.federation,
            copy.deepcopy(work.model),
            work.client,
            work.place / "run",
            method=work.method,
            schedule=policy.stages,
            history=admitted_history(work),
            training=policy.local_training,
            participation=policy.taking_part,
            build=build,
            seed=policy.seed,
            gone=work.gone,
            guards=policy.guards.guards(),
            without=desk.forgotten(work.federation.present()),
            cipher=work.key,
            listeners=listeners,
            witnesses=[lambda event: _follow(work, event)],
            **policy.options,
        )
    except ForgettingFailed as failure:
        outcome = failure.outcome
        if outcome.status is Status.MISSING_REPLY and not _target_missing(work, outcome):
            raise
    _conclude(work, original, outcome, auditor)


def _follow(work: Work, event: Event) -> None:
    """Tells when unlearning has ended and recovery begins; once in each attempt, whatever is repeated."""
    phase, state = event.phases[event.progress.phase], event.progress.state
    ended = state.round == phase.rounds or state.status is not Status.RUNNING
    told = {entry.event for entry in work.case.current}
    follows = any(each.stage is Stage.POSTTRAINING for each in event.phases[event.progress.phase :])
    if phase.stage is Stage.UNLEARNING and ended and not state.status.failed:
        if "verified" not in told:
            work.tell("verified", **_found(event.metrics, state, "unlearning"))
        if follows and "recovering" not in told:
            work.tell("recovering", attempt=work.case.attempt)
    elif phase.stage is Stage.POSTTRAINING and "recovering" not in told:
        work.tell("recovering", attempt=work.case.attempt)


def _found(metrics: Metrics, state: State, stage: str) -> dict[str, Any]:
    return {
        "stage": stage,
        "rounds": int(metrics["elapsed"]),
        "model": model_hash(state),
        "measures": {name: float(metrics[name]) for name in MEASURES if name in metrics},
    }


def _target_missing(work: Work, outcome: Outcome) -> bool:
    """Whether the run lacks the client that asked, and not somebody else."""
    named = re.search(rf"(?<![\w-]){re.escape(work.client)}(?![\w-])", outcome.reason)
    return named is not None or work.client not in work.federation.present()


def _conclude(work: Work, original: State, outcome: Outcome, auditor: Auditor | None) -> None:
    """Collects the evidence, issues the certificate that follows from it, and tells how the request ended."""
    evidence = None if outcome.status.failed else _evidence(work, original, outcome.state, auditor)
    told = {entry.fields.get("stage") for entry in work.case.current if entry.event == "verified"}
    if not outcome.status.failed and "end" not in told:
        verdict = str((evidence and evidence.verdict) or "none").replace(" ", "-")
        found = _found(outcome.metrics[-1], outcome.state, "end")
        work.tell("verified", **found, guards=dict(outcome.guards or {}), verdict=verdict)
    module = copy.deepcopy(work.model)
    vectors.load(module, outcome.state)
    end = _end(outcome, evidence)
    document, predicate = certify(
        work.desk,
        work.case,
        outcome=outcome,
        evidence=evidence,
        end=end,
        model=module,
        method=work.method,
        client=work.client,
        engine=work.engine,
    )
    digest = hashlib.sha256(document.encode()).hexdigest()
    after, claim = predicate.model_after, str(predicate.claim.claim)
    more = {"file": after.file_sha256} if end is Standing.CERTIFIED else {"reason": _reason(outcome, end)}
    work.tell(end, claim=claim, model=after.sha256, certificate=digest, **more)


def _evidence(work: Work, original: State, after: State, auditor: Auditor | None) -> Evidence | None:
    """What the clients find about the model; None where the client that asked is not there to measure."""
    if work.gone or work.client not in work.federation.present():
        return None
    if auditor is not None:
        return auditor(after, original)
    try:
        return audit(work.federation, after, targets=work.client, original=original)
    except FedUnlearnError as error:
        warnings.warn(f"the model was not audited: {error}", stacklevel=2)
        return None


def _end(outcome: Outcome, evidence: Evidence | None) -> Standing:
    failed = {
        Status.NO_DIRECTION: Standing.NO_DIRECTION,
        Status.GUARD_STOP: Standing.GUARD_STOP,
        Status.MISSING_REPLY: Standing.PARTIAL,
        Status.DIVERGED: Standing.ESCALATED,
    }
    if outcome.status in failed:
        return failed[outcome.status]
    remembered = verdict_of(evidence_entries(evidence)[0]) is Verdict.UNDER
    return Standing.ESCALATED if remembered or _unforgotten(outcome) else Standing.CERTIFIED


def _reason(outcome: Outcome, end: Standing) -> str:
    if outcome.status.failed:
        return str(outcome.status)
    return "not-forgotten" if _unforgotten(outcome) else "under-forgotten"


def _unforgotten(outcome: Outcome) -> bool:
    """Whether the measures of the run say that the client is not forgotten."""
    return "unmoved" in (outcome.guards or {})
