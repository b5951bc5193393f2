"""The certificate of an answered request, from the ledger, the run and the audit."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core import FedUnlearnError, Outcome, Phase, Status, vectors
from ..core.hashes import content_hash, model_hash
from ..core.registry import method as methods
from ..runs import write
from ..runs.files import tensor_bytes
from ..signing import key_id, public_part
from .certificate import issue
from .certificate_page import certificate_page
from .desk import DAY, Attempt, Desk
from .evidence_entries import COARSE, guard_counts, this_environment
from .ledger import Entry
from .predicate import (
    CODE,
    Claimed,
    Deletion,
    Evidence,
    Kept,
    LedgerHead,
    ModelAfter,
    ModelBefore,
    Notices,
    Participants,
    Predicate,
    Procedure,
    RequestFacts,
    Retention,
    Safety,
    StageFacts,
)
from .request_state import RequestState
from .vocabulary import Artefact, Backups, EndState, GuardEvent, Purpose, Scope
from .work import Work

CERTIFICATE = "certificate.json"
PAGE = "certificate.html"
MODEL = "model.safetensors"
NOTICEABLE = 0.03
"""The accuracy that retained clients may lose without a word about it."""
RETRAINED = "retrained"
"""The folder of models that were retrained for the audit of a request."""
DELETED = (Artefact.ORIGINAL_MODEL, Artefact.CHECKPOINTS, Artefact.REQUEST, Artefact.KEY)
KEPT = (
    Kept(what=Artefact.CERTIFICATE, why=Purpose.ACCOUNTABILITY),
    Kept(what=Artefact.LEDGER, why=Purpose.ACCOUNTABILITY),
    Kept(what=Artefact.NONCE, why=Purpose.REPLAY),
)
KEPT_IF_CERTIFIED = (
    Kept(what=Artefact.MODEL_AFTER, why=Purpose.SERVICE),
    Kept(what=Artefact.SUPPRESSION, why=Purpose.SUPPRESSION),
)


def certify(work: Work, end: RequestState, outcome: Outcome, evidence: Evidence) -> tuple[str, Predicate]:
    """Sign the certificate of a request and write it, with the model if that may be used.

    Return the document and its predicate.
    """
    desk, case, place, policy = work.desk, work.case, work.place, work.desk.policy
    module = copy.deepcopy(work.model)
    vectors.load(module, outcome.state)
    content = tensor_bytes(module.state_dict())
    received, last, attempt = case.received, case.last(RequestState.RECEIVED), work.attempt
    assert received and last and case.deadline is not None
    closed = int(desk.clock())
    head, length = desk.ledger.head
    delete_by = closed + policy.keep_days * DAY
    predicate = Predicate(
        request=RequestFacts(
            id=case.id,
            pseudonym=last.fields["subject"],
            scope=Scope.CLIENT,
            legal_basis=policy.legal_basis,
            received=received.time,
            closed=max(closed, received.time),
            deadline=case.deadline,
            deadline_met=closed <= case.deadline if end is RequestState.CERTIFIED else None,
        ),
        model_before=ModelBefore(sha256=attempt.model),
        model_after=ModelAfter(
            sha256=model_hash(outcome.state),
            file_sha256=content_hash(content),
            parameters=outcome.params.numel(),
            buffers=len(outcome.state.buffers),
        ),
        procedure=Procedure(
            method=attempt.method,
            options={
                name: value
                for name, value in work.options.items()
                if isinstance(value, bool | int | float | str)
            },
            mode="guarded" if policy.guards.enabled else "faithful",
            stages=tuple(_stages(methods[attempt.method](policy.stages, **work.options), outcome)),
            seed=policy.seed,
            engine=work.engine,
            clients=attempt.retained,
        ),
        safety=_safety(outcome),
        evidence=evidence,
        claim=Claimed.of(EndState[end.name], evidence),
        retention=Retention(
            to_delete=tuple(_deletions(place, attempt, delete_by)) if end is RequestState.CERTIFIED else (),
            key_id=work.key.id,
            kept=(*KEPT_IF_CERTIFIED, *KEPT) if end is RequestState.CERTIFIED else KEPT,
            backups=Backups.EXPIRE if policy.backup_days else Backups.NOT_COVERED,
            backups_until=closed + policy.backup_days * DAY if policy.backup_days else None,
        ),
        environment=this_environment(),
        ledger=LedgerHead(head=head, length=length),
        notices=Notices(recipients_informed=policy.recipients),
    )
    document = issue(predicate, desk.controller_key)
    if end is RequestState.CERTIFIED:
        write(place / MODEL, content, private=True)
    write(place / CERTIFICATE, document.encode())
    signer = key_id(public_part(desk.controller_key))
    write(place / PAGE, certificate_page(predicate, signer, document).encode())
    return document, predicate


def check_words(method: str, engine: str, options: Mapping[str, Any]) -> None:
    """Refuse, before anything runs, names that a certificate cannot state."""
    for what, name in {"engine": engine, "method": method, **options}.items():
        if isinstance(name, str) and re.fullmatch(CODE, name) is None:
            raise FedUnlearnError(
                f"a certificate cannot state {what} = {name!r:.80}: use up to 64 lower-case letters, digits, "
                "dots, hyphens and underscores"
            )


def _deletions(place: Path, attempt: Attempt, by: int) -> Iterator[Deletion]:
    """Yield the files that a purge deletes."""
    history = (Artefact.HISTORY,) if attempt.history else ()
    retrained = (Artefact.RETRAINED_MODELS,) if (place / RETRAINED).exists() else ()
    for what in (*DELETED, *history, *retrained):
        yield Deletion(what=what, by=by)


def _stages(phases: Sequence[Phase], outcome: Outcome) -> Iterator[StageFacts]:
    for number, phase in enumerate(phases):
        rows = [row for row in outcome.metrics if row.get("phase") == number and row.get("round", 0)]
        if not rows:
            continue
        stopped = rows[-1].get("status")
        heard = [int(row.get("heard", 0)) for row in rows]
        yield StageFacts(
            stage=phase.stage,
            rounds=len(rows),
            planned=phase.rounds,
            lr=phase.lr,
            stop=Status(str(stopped)) if stopped else Status.DONE,
            participants=Participants(fewest=min(heard), most=max(heard)),
        )


def utility(outcome: Outcome) -> tuple[float, float] | None:
    """The retained clients' accuracy before and after a request; None if they did not measure it."""
    ends = outcome.metrics[0].get("r_acc"), outcome.metrics[-1].get("r_acc")
    return None if None in ends else (float(ends[0] or 0), float(ends[1] or 0))


def _safety(outcome: Outcome) -> Safety:
    refused, events = guard_counts(outcome.guards or {})
    found = {
        name: [float(row[name]) for row in outcome.metrics if name in row]
        for name in ("sine", "amplification", "max_cosine", "distance")
    }
    before, after = utility(outcome) or (None, None)
    if before is not None and after is not None and before - after > NOTICEABLE:
        events[GuardEvent.LOST] = 1
    return Safety(
        refused=refused,
        guard_events=events,
        min_sin=min(found["sine"], default=None),
        max_amplification=max(found["amplification"], default=None),
        max_abs_cos=max(found["max_cosine"], default=None),
        displacement=found["distance"][-1] if found["distance"] else None,
        accuracy_before=None if before is None else round(before, COARSE),
        accuracy_after=None if after is None else round(after, COARSE),
    )


def install(desk: Desk, certified: Entry) -> None:
    """Put the model of a certified request into production."""
    path = desk.place(certified.request) / MODEL
    content = path.read_bytes() if path.exists() else b""
    if content_hash(content) != certified.fields["file"]:
        raise FedUnlearnError(f"{path} is not the certified model: restore it from a copy")
    if desk.policy.model is not None:
        write(desk.folder / desk.policy.model, content, private=True)
