"""The erasure certificate: an in-toto Statement v1 in a DSSE envelope, signed with the controller's key."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ..core import FedUnlearnError
from ..core.hashes import content_hash
from ..signing import LARGEST_DOCUMENT, KeySource, Refusal, Refused, key_id, opened, sign
from .ledger import head_at, read
from .predicate import KIND, PREDICATE_TYPE, STATEMENT_TYPE, Predicate, Statement

RECEIPT = "application/vnd.fedunlearn.purge-receipt.v1+json"
"""The kind of document that a purge signs."""


@dataclass(frozen=True)
class Verified:
    """A certificate that has passed every check that was asked for."""

    predicate: Predicate
    key_id: str
    checked: tuple[str, ...]
    """The checks that passed, in sentences."""
    unchecked: tuple[str, ...]
    """The checks that were not made, and the options for them."""


def issue(predicate: Predicate, key: KeySource) -> str:
    """Sign a certificate with the controller's private key; its subject is the model after."""
    after = predicate.model_after
    subject = {
        "name": "model-after",
        "digest": {"sha256": after.file_sha256},
        "annotations": {"model_sha256": after.sha256},
    }
    payload = {
        "_type": STATEMENT_TYPE,
        "subject": [subject],
        "predicateType": PREDICATE_TYPE,
        "predicate": predicate.model_dump(mode="json", exclude_none=True),
    }
    parsed(payload)
    return sign(KIND, payload, key)


def verify(
    document: str,
    public_key: KeySource,
    *,
    model: Path | None = None,
    ledger: Path | None = None,
    receipt: Path | None = None,
) -> Verified:
    """Check signature and fields and, if given, the file of the model after, the ledger and the receipt.

    Raises ``FedUnlearnError`` with one sentence at the first check that fails.
    """
    payload = opened(document, KIND, public_key)
    try:
        predicate = parsed(payload).predicate
    except FedUnlearnError as error:
        raise Refused(Refusal.BAD_FIELDS, str(error)) from None
    signer = key_id(public_key)
    checked = [
        f"The signature is by the key {signer}, and the document is unchanged.",
        "The fields are complete, and the claim follows from them.",
    ]
    unchecked = []
    if model is None:
        unchecked.append("Whether your model is the certified one: pass its file with --model.")
    else:
        checked.append(_check_model(model, predicate))
    if ledger is None:
        unchecked.append("Whether the ledger has the events behind the certificate: pass it with --ledger.")
    else:
        checked.append(_check_ledger(ledger, predicate, document))
    if receipt is None:
        unchecked.append("Whether the files of the request were purged: pass the receipt with --receipt.")
    else:
        checked.append(_check_receipt(receipt, document, public_key, ledger))
    return Verified(predicate, signer, tuple(checked), tuple(unchecked))


def parsed(payload: Any) -> Statement:
    """The statement in a payload of JSON values; any other payload is refused."""
    try:
        return Statement.model_validate_json(json.dumps(payload, allow_nan=False))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the statement"
        problem = first["msg"].removeprefix("Value error, ")
        raise FedUnlearnError(f"the document is not an erasure certificate: {where}: {problem}") from None
    except (TypeError, ValueError, RecursionError):
        raise FedUnlearnError("the document is not an erasure certificate: it is not plain JSON") from None


def read_certificate(path: Path) -> str:
    """Return the document in a file, unverified."""
    try:
        with path.open("rb") as file:
            return file.read(LARGEST_DOCUMENT + 1).decode()
    except OSError as error:
        raise FedUnlearnError(f"cannot read {path}: {error.strerror or error}", code="file") from None
    except UnicodeDecodeError:
        raise FedUnlearnError(f"{path} is not an erasure certificate: it is not text") from None


def file_sha256(path: Path) -> str:
    """SHA-256 of the bytes of a file."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise FedUnlearnError(f"cannot read {path}: {error.strerror or error}", code="file") from None


def _check_model(path: Path, predicate: Predicate) -> str:
    found, certified = file_sha256(path), predicate.model_after
    if found != certified.file_sha256:
        raise Refused(
            Refusal.OTHER_MODEL,
            f"{path} is not the certified model, perhaps because a later request replaced it: the SHA-256 of "
            f"the file is {found}, and the certificate names {certified.file_sha256}",
        )
    return f"{path} is the model after: the SHA-256 of the file matches."


def _check_receipt(path: Path, document: str, public_key: KeySource, ledger: Path | None) -> str:
    text = read_certificate(path)
    receipt = opened(text, RECEIPT, public_key)
    if receipt.get("certificate_sha256") != content_hash(document.encode()):
        raise Refused(Refusal.BAD_FIELDS, f"{path} is the receipt of another certificate")
    digest = content_hash(text.encode())
    if ledger is not None and not any(entry.fields.get("receipt") == digest for entry in read(ledger)):
        raise FedUnlearnError(
            f"{ledger} does not record the purge of {path}: copy the ledger again", code="damaged"
        )
    return f"{path} says that {receipt['deleted']} files and folders were deleted, and their key destroyed."


def _check_ledger(path: Path, predicate: Predicate, document: str) -> str:
    entries, stated = read(path), predicate.ledger
    if not path.read_bytes().endswith(b"\n"):
        raise FedUnlearnError(f"{path} ends within an entry: copy the ledger again", code="damaged")
    if head_at(entries, stated.length) != stated.head:
        raise FedUnlearnError(
            f"{path} is not the ledger of the certificate: entry {stated.length} has another SHA-256 than "
            "the certificate names",
            code="damaged",
        )
    if not any(entry.request == predicate.request.id for entry in entries[: stated.length]):
        raise FedUnlearnError(f"{path} has no entry of the request {predicate.request.id}", code="damaged")
    digest = content_hash(document.encode())
    if not any(entry.fields.get("certificate") == digest for entry in entries[stated.length :]):
        raise FedUnlearnError(
            f"{path} does not record this certificate: copy the ledger again, or ask the controller why",
            code="damaged",
        )
    return f"{path} is unbroken, and records the certificate after the {stated.length} entries that it names."
