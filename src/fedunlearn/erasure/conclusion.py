"""The conclusion of a request: its evidence, its final state and its certificate."""

from __future__ import annotations

from typing import Any

from ..auditing import audit
from ..core import FedUnlearnError, Metrics, Outcome, State, Status
from ..core.errors import warn
from ..core.hashes import content_hash, model_hash
from ..evidence import Evidence, Verdict
from .certification import certify, utility
from .evidence_entries import evidence_entries
from .predicate import Evidence as Tested
from .predicate import verdict_of
from .request_state import RequestState
from .vocabulary import Grade, Measure
from .work import Auditor, Work

MEASURES = (
    *("asr", "forget_acc", "loss_target", "r_acc", "r_acc_worst"),
    *("loss_retained", "distance", "coverage"),
)
"""The measures of a stage in the ledger: means over clients, never a value of an example."""
ENDS = {
    Status.NO_DIRECTION: RequestState.NO_DIRECTION,
    Status.GUARD_STOP: RequestState.GUARD_STOP,
    Status.MISSING_REPLY: RequestState.PARTIAL,
    Status.DIVERGED: RequestState.ESCALATED,
    Status.HARMED: RequestState.ESCALATED,
}
"""The final state of a request by the status of its failed run."""


def conclude(work: Work, before: State, outcome: Outcome, auditor: Auditor | None) -> None:
    """Collect the evidence, issue the certificate that follows from it, and record the final state."""
    evidence = None if outcome.status.failed else _evidence(work, before, outcome.state, auditor)
    stages = {
        entry.fields.get("stage") for entry in work.case.current if entry.event == RequestState.VERIFIED
    }
    if not outcome.status.failed and "end" not in stages:
        verdict = str((evidence and evidence.verdict) or "none").replace(" ", "-")
        measured = found(outcome.metrics[-1], outcome.state, "end")
        if accuracies := utility(outcome):
            measured["measures"]["r_acc_before"] = accuracies[0]
        work.record(RequestState.VERIFIED, **measured, guards=dict(outcome.guards or {}), verdict=verdict)
    entries, untested = evidence_entries(evidence, work.client)
    grade = Grade.G3 if evidence is None else Grade.G1
    tested = Tested(grade=grade, entries=entries, not_tested=untested)
    reason = _reason(outcome, tested, work.desk.policy.floor)
    end = RequestState.CERTIFIED if not reason else ENDS.get(outcome.status, RequestState.ESCALATED)
    document, predicate = certify(work, end, outcome, tested)
    digest = content_hash(document.encode())
    after, claim = predicate.model_after, str(predicate.claim.claim)
    more = {"file": after.file_sha256} if end is RequestState.CERTIFIED else {"reason": reason}
    work.record(end, claim=claim, model=after.sha256, certificate=digest, **more)


def found(metrics: Metrics, state: State, stage: str) -> dict[str, Any]:
    """Return the facts that the ledger records at the end of a stage."""
    return {
        "stage": stage,
        "rounds": int(metrics["elapsed"]),
        "model": model_hash(state),
        "measures": {name: float(metrics[name]) for name in MEASURES if name in metrics},
    }


def target_missing(work: Work, outcome: Outcome) -> bool:
    """Whether a run lacks the client that asked, and not another one."""
    missing = work.client in outcome.missing or work.client not in work.federation.present()
    return missing and work.attempt.asks and not work.gone


def _evidence(work: Work, before: State, after: State, auditor: Auditor | None) -> Evidence | None:
    """Return what the clients measure of the model; None if the client that asked is absent."""
    if work.gone or work.client not in work.federation.present():
        return None
    if auditor is not None:
        return auditor(after, before)
    try:
        return audit(work.federation, after, targets=work.client, original=before)
    except FedUnlearnError as error:
        warn(f"the model was not audited: {error}", "not-audited")
        return None


def _reason(outcome: Outcome, tested: Tested, floor: float) -> str:
    """Return the code of why the model cannot be certified; empty if it can."""
    if outcome.status.failed:
        return str(outcome.status)
    if "unmoved" in (outcome.guards or {}):
        return "not-forgotten"
    if verdict_of(tested.entries) is Verdict.UNDER:
        return "under-forgotten"
    means = [entry.difference or 0 for entry in tested.entries if entry.measure is Measure.RETAINED_MEAN]
    return "harmed" if min(means, default=0) < -floor - 1e-9 else ""
