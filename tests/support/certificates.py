"""A certificate with its keys, model file and ledger, as a controller would make them."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from cryptography.hazmat.primitives.asymmetric import ed25519
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from fedunlearn.core import Reason, Stage, State, Status
from fedunlearn.erasure import predicate as a
from fedunlearn.erasure import vocabulary as v
from fedunlearn.erasure.certificate import file_sha256, issue
from fedunlearn.erasure.certificate_page import certificate_page
from fedunlearn.erasure.evidence_entries import this_environment
from fedunlearn.evidence import Verdict
from fedunlearn.runs import model_hash, write_state
from fedunlearn.signing import key_id

RECEIVED = 1_790_000_000
DAY = 86_400
REQUEST = "er-2026-0007"


@dataclass(frozen=True)
class Certified:
    """A certificate and everything that it is checked against."""

    document: str
    predicate: a.Predicate
    private: bytes
    public: bytes
    model: Path
    ledger: Path

    @property
    def page(self) -> str:
        return certificate_page(self.predicate, key_id(self.public), self.document)


def keys(seed: int) -> tuple[bytes, bytes]:
    made = ed25519.Ed25519PrivateKey.from_private_bytes(hashlib.sha256(b"%d" % seed).digest())
    return (
        made.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
        made.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
    )


def canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def chained(events: list[dict[str, Any]]) -> bytes:
    """A ledger of these events."""
    content, previous = b"", "0" * 64
    for number, event in enumerate(events, 1):
        line = canonical({"number": number, "previous": previous, **event})
        content, previous = content + line + b"\n", hashlib.sha256(line).hexdigest()
    return content


def events(count: int = 12) -> list[dict[str, Any]]:
    """The events of a request in which unlearning was tried several times."""
    kinds: list[tuple[str, dict[str, Any]]] = [
        ("received", {"subject": "5f1c" * 8, "scope": "client", "deadline": RECEIVED + 30 * DAY}),
        ("authenticated", {"signer": "ab" * 16}),
        ("admitted", {"method": "fedosd", "retained": 9, "model": "0b" * 32}),
    ]
    kinds += [("unlearning", {"attempt": number}) for number in range(1, count - 2)]
    return [
        {"time": RECEIVED + 60 * number, "request": REQUEST, "event": event, "fields": fields}
        for number, (event, fields) in enumerate(kinds)
    ]


def recorded(document: str, number: int) -> dict[str, Any]:
    """The event that records a certificate."""
    digest = hashlib.sha256(document.encode()).hexdigest()
    fields = {"claim": "PROCESS_ONLY", "certificate": digest}
    return {"time": RECEIVED + 60 * number, "request": REQUEST, "event": "certified", "fields": fields}


def membership(verdict: Verdict | None = Verdict.EQUIVALENT) -> tuple[a.Entry, ...]:
    """A membership test with this verdict and its control; none for None."""
    low, high, level = {
        Verdict.EQUIVALENT: (-0.019, 0.027, 0.9),
        Verdict.UNDER: (0.031, 0.092, 0.95),
        Verdict.OVER: (-0.12, -0.058, 0.95),
        Verdict.INCONCLUSIVE: (-0.048, 0.071, 0.9),
        Verdict.NO_SIGNAL: (-0.02, 0.03, 0.9),
        None: (0.0, 0.0, 0.9),
    }[verdict]
    middle = round((low + high) / 2, 3)

    def entry(measure: v.Measure, value: float, found: Verdict, span: a.Range) -> a.Entry:
        return a.Entry(
            measure=measure,
            definition=measure.page,
            value=value,
            interval=a.Range(low=value - 0.023, high=value + 0.023, level=0.9),
            reference=0.493,
            difference=round(value - 0.493, 3),
            difference_interval=span,
            margin=0.05,
            n=v.Bucket.THOUSANDS,
            verdict=found,
            computed_by=v.Role.TARGET,
        )

    if verdict is None:
        return ()
    control = Verdict.INCONCLUSIVE if verdict is Verdict.NO_SIGNAL else Verdict.UNDER
    before = a.Range(low=0.111, high=0.179, level=0.95)
    return (
        entry(v.Measure.AUC, 0.493 + middle, verdict, a.Range(low=low, high=high, level=level)),
        entry(v.Measure.AUC_BEFORE, 0.638, control, before),
    )


def more_entries() -> tuple[a.Entry, ...]:
    def entry(measure: v.Measure, value: float | None, reference: float | None, **more: Any) -> a.Entry:
        more.setdefault("computed_by", v.Role.TARGET)
        return a.Entry(measure=measure, definition=measure.page, value=value, reference=reference, **more)

    few = {"n": v.Bucket.HUNDREDS}
    return (
        entry(
            v.Measure.AUC_HARDEST,
            0.512,
            0.497,
            difference=0.015,
            difference_interval=a.Range(low=-0.071, high=0.101, level=0.9),
            **few,
        ),
        entry(v.Measure.AUC_LOSSES, 0.507, None, interval=a.Range(low=0.484, high=0.53, level=0.9)),
        entry(v.Measure.TPR_1, 0.011, 0.012, interval=a.Range(low=0.006, high=0.02, level=0.95)),
        entry(v.Measure.JS_FORGOTTEN, 0.104, 0.098),
        entry(v.Measure.JS_UNSEEN, 0.1, 0.097),
        entry(
            v.Measure.PROBE,
            0.81,
            0.8,
            interval=a.Range(low=0.78, high=0.84, level=0.95),
            difference=0.01,
            difference_interval=a.Range(low=-0.03, high=0.05, level=0.95),
            **few,
        ),
        entry(
            v.Measure.CANARIES, 0.53, 0.5, interval=a.Range(low=0.41, high=0.65, level=0.9), n=v.Bucket.TENS
        ),
        entry(v.Measure.TOW, 0.962, 0.971, computed_by=v.Role.ALL),
        entry(v.Measure.RETAINED_MEAN, 0.86, 0.87, difference=-0.01, computed_by=v.Role.RETAINED),
        entry(v.Measure.RETAINED_WORST, 0.79, 0.82, difference=-0.03, computed_by=v.Role.RETAINED),
        entry(v.Measure.RELEARN_POSTTRAINING, None, None, computed_by=v.Role.RETAINED),
        entry(v.Measure.RELEARN_FINETUNING, 6.0, 7.0),
    )


def predicate(
    after: a.ModelAfter,
    ledger: a.LedgerHead,
    *,
    end_state: v.EndState = v.EndState.CERTIFIED,
    verdict: Verdict | None = Verdict.EQUIVALENT,
    grade: v.Grade = v.Grade.G1,
    late: bool = False,
    method: str = "fedosd",
) -> a.Predicate:
    untested = (
        v.NotTested.BACKDOOR,
        v.NotTested.SINGLE_EXAMPLES,
        v.NotTested.OTHER_ATTACKS,
        v.NotTested.COPIES,
    )
    if verdict is None:
        untested = (v.NotTested.EVERYTHING, *untested)
    evidence = a.Evidence(
        grade=grade,
        entries=(*membership(verdict), *more_entries()) if verdict is not None else (),
        not_tested=untested,
    )
    closed = RECEIVED + (40 if late else 3) * DAY
    whole = end_state is v.EndState.CERTIFIED
    return a.Predicate(
        request=a.RequestFacts(
            id=REQUEST,
            pseudonym="5f1c" * 8,
            scope=v.Scope.CLIENT,
            legal_basis=v.LegalBasis.GDPR_17_1_B,
            received=RECEIVED,
            closed=closed,
            deadline=RECEIVED + 30 * DAY,
            deadline_met=not late,
        ),
        model_before=a.ModelBefore(sha256="0b" * 32),
        model_after=after,
        procedure=a.Procedure(
            method=method,
            options={"objective": "uce", "project": True, "decay": 0.999},
            mode="guarded",
            stages=(
                a.StageFacts(
                    stage=Stage.UNLEARNING,
                    rounds=20 if whole else 7,
                    planned=100,
                    lr=4e-4,
                    stop=Status.CONVERGED if whole else Status.GUARD_STOP,
                    participants=a.Participants(fewest=8, most=9),
                ),
                a.StageFacts(
                    stage=Stage.POSTTRAINING,
                    rounds=100 if whole else 0,
                    planned=100,
                    lr=1e-2,
                    stop=Status.DONE,
                    participants=a.Participants(fewest=7, most=9),
                ),
            ),
            seed=1,
            engine="flower",
            clients=9,
        ),
        safety=a.Safety(
            refused={Reason.NORM: 2, Reason.REPLAY: 1},
            guard_events={v.GuardEvent.HALVED: 3, v.GuardEvent.SHORTENED: 1, v.GuardEvent.LOST: 1},
            min_sin=0.143,
            max_amplification=6.99,
            max_abs_cos=2.1e-10,
            displacement=4.73,
            accuracy_before=0.87,
            accuracy_after=0.81,
        ),
        evidence=evidence,
        claim=a.Claimed.of(end_state, evidence),
        retention=a.Retention(
            to_delete=(
                a.Deletion(what=v.Artefact.ORIGINAL_MODEL, by=closed + 7 * DAY),
                a.Deletion(what=v.Artefact.CHECKPOINTS, by=closed + 7 * DAY),
                a.Deletion(what=v.Artefact.KEY, by=closed + 7 * DAY),
            ),
            key_id="c4" * 32,
            kept=(
                a.Kept(what=v.Artefact.MODEL_AFTER, why=v.Purpose.SERVICE),
                a.Kept(what=v.Artefact.LEDGER, why=v.Purpose.ACCOUNTABILITY),
                a.Kept(what=v.Artefact.CERTIFICATE, why=v.Purpose.ACCOUNTABILITY),
                a.Kept(what=v.Artefact.NONCE, why=v.Purpose.REPLAY),
            ),
            backups=v.Backups.EXPIRE,
            backups_until=closed + 90 * DAY,
        ),
        environment=this_environment(),
        ledger=ledger,
        notices=a.Notices(recipients_informed=9),
    )


def certified(folder: Path, *, seed: int = 1, length: int = 12, **kind: Any) -> Certified:
    """A certificate in a folder, signed with key number ``seed``."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(seed)
    state = State(
        torch.randn(500, generator=generator), buffers={"mean": torch.randn(4, generator=generator)}
    )
    model, ledger = folder / "model.safetensors", folder / "ledger.jsonl"
    write_state(model, state)
    ledger.write_bytes(chained(events(length)))
    last = ledger.read_bytes().splitlines()[-1]
    after = a.ModelAfter(sha256=model_hash(state), file_sha256=file_sha256(model), parameters=500, buffers=1)
    head = a.LedgerHead(head=hashlib.sha256(last).hexdigest(), length=length)
    stated = predicate(after, head, **kind)
    private, public = keys(seed)
    document = issue(stated, private)
    ledger.write_bytes(chained([*events(length), recorded(document, length)]))
    return Certified(document, stated, private, public, model, ledger)
