"""Signed documents, and the erasure request as the first of them.

A document is a DSSE envelope in canonical JSON with exactly one signature: by an Ed25519 key, or with SHA-384
by an ECDSA key on P-256, P-384 or P-521. A ``Path`` names a key file; ``str`` or ``bytes`` is the key itself.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Any

from ..core.errors import FedUnlearnError, require
from ..core.files import sync_folder
from .keys import KeySource as KeySource
from .keys import decoded, encoded, id_of, make_signature, read_key, verifies
from .keys import key_id as key_id
from .keys import new_key as new_key
from .keys import public_part as public_part

ERASURE_REQUEST = "application/vnd.fedunlearn.erasure-request.v1+json"
LARGEST_DOCUMENT, LARGEST_REQUEST = 1 << 20, 1 << 13  # characters
LONGEST_LIFETIME = 31 * 24 * 3600  # seconds
CLOCK_SKEW = 300  # seconds that the signer's clock may be ahead


class Refusal(StrEnum):
    """The reason for which a document is refused."""

    MALFORMED = "malformed"
    TOO_LARGE = "too-large"
    WRONG_KIND = "wrong-kind"
    NOT_ONE_SIGNATURE = "not-one-signature"
    UNKNOWN_KEY = "unknown-key"
    BAD_SIGNATURE = "bad-signature"
    BAD_FIELDS = "bad-fields"
    BAD_TIMES = "bad-times"
    LIFETIME_TOO_LONG = "lifetime-too-long"
    OTHER_CLIENT = "other-client"
    OTHER_FEDERATION = "other-federation"
    OTHER_MODEL = "other-model"
    NOT_YET_VALID = "not-yet-valid"
    EXPIRED = "expired"
    REPLAYED = "replayed"
    STILL_OPEN = "still-open"
    FORGOTTEN = "forgotten"


class Refused(FedUnlearnError):
    """A document that must not be acted upon."""

    def __init__(self, reason: Refusal, sentence: str) -> None:
        super().__init__(reason, sentence, code=reason)
        self.reason = reason

    def __str__(self) -> str:
        return str(self.args[1])


def sign(kind: str, payload: Mapping[str, Any], key: KeySource) -> str:
    """Sign a payload of JSON values with a private key; ``kind`` is the envelope's payloadType."""
    private = read_key(key, "private")
    require(bool(kind) and kind.isascii() and kind.isprintable(), "kind", kind, "a media type in ASCII")
    try:
        body = _canonical(dict(payload))
        _parsed(body)
    except (TypeError, ValueError, RecursionError) as error:
        raise FedUnlearnError(f"cannot sign the payload: it is not plain JSON ({error})") from None
    signature = {"keyid": id_of(private.public_key()), "sig": make_signature(private, _encoding(kind, body))}
    envelope = _canonical({"payload": encoded(body), "payloadType": kind, "signatures": [signature]}).decode()
    if len(envelope) > LARGEST_DOCUMENT:
        raise FedUnlearnError(f"cannot sign the payload: the document exceeds {LARGEST_DOCUMENT} characters")
    return envelope


def opened(
    envelope: str, kind: str, public_key: KeySource, *, largest: int = LARGEST_DOCUMENT
) -> dict[str, Any]:
    """Return the payload of an envelope of this kind, signed with this key; refuse any other."""
    public = read_key(public_key, "public")
    try:
        _check(len(envelope) <= largest, Refusal.TOO_LARGE, f"the document exceeds {largest} characters")
        document = _parsed(envelope.encode())
        body = decoded(document["payload"])
        found, signatures = document["payloadType"], document["signatures"]
        if not (isinstance(found, str) and isinstance(signatures, list) and len(document) == 3):
            raise ValueError
        _check(found == kind, Refusal.WRONG_KIND, f"the document is of kind {found!r:.100}, not {kind!r}")
        count = len(signatures)
        _check(count == 1, Refusal.NOT_ONE_SIGNATURE, f"the document has {count} signatures; it needs one")
        signer, signature = signatures[0]["keyid"], signatures[0]["sig"]
        if not (isinstance(signer, str) and isinstance(signature, str) and len(signatures[0]) == 2):
            raise ValueError
        ours = signer == id_of(public)
        _check(ours, Refusal.UNKNOWN_KEY, f"the document is signed with another key: {signer!r:.70}")
        fits = verifies(public, signature, _encoding(kind, body))
        _check(fits, Refusal.BAD_SIGNATURE, "the signature does not match: the document was edited or forged")
        payload = _parsed(body)
        if not isinstance(payload, dict):
            raise ValueError
        return payload
    except (TypeError, AttributeError, KeyError, ValueError, RecursionError):
        sentence = "the document is not a DSSE envelope of an object in canonical JSON: pass it on unchanged"
        raise Refused(Refusal.MALFORMED, sentence) from None


@dataclass(frozen=True)
class ErasureRequest:
    """A client's request to be forgotten; times are in seconds since 1970."""

    client: str
    federation: str
    model_sha256: str
    nonce: str
    issued: int
    expires: int
    scope: str = "client"

    def __post_init__(self) -> None:
        text = {name: value for name, value in vars(self).items() if isinstance(value, str)}
        for name, pattern, expected in (
            ("client", r".{1,200}", "1 to 200 printable characters"),
            ("federation", r".{1,200}", "1 to 200 printable characters"),
            ("model_sha256", r"[0-9a-f]{64}", "64 lower-case hexadecimal digits"),
            ("nonce", r"[0-9a-f]{32}", "32 lower-case hexadecimal digits"),
            ("scope", r"client", "'client'"),
        ):
            fine = re.fullmatch(pattern, text.get(name, "")) is not None and text[name].isprintable()
            problem = f"{name} = {getattr(self, name)!r:.100}: it must be {expected}"
            _check(fine, Refusal.BAD_FIELDS, problem)
        whole = type(self.issued) is int and type(self.expires) is int
        _check(whole, Refusal.BAD_FIELDS, "issued and expires must be whole seconds")
        ordered = 0 <= self.issued < self.expires < 1 << 40
        _check(ordered, Refusal.BAD_TIMES, "issued must be before expires, both after 1970 and not absurd")
        short = self.expires - self.issued <= LONGEST_LIFETIME
        _check(short, Refusal.LIFETIME_TOO_LONG, "the request is valid for over 31 days: sign a shorter one")


def request_erasure(
    client: str,
    federation: str,
    model_sha256: str,
    private_key: KeySource,
    *,
    valid_hours: float = 24,
    now: float | None = None,
) -> str:
    """Make and sign a request to forget ``client``; one run can use it."""
    fine = isinstance(valid_hours, int | float) and 1 / 3600 <= valid_hours <= LONGEST_LIFETIME / 3600
    require(fine, "valid_hours", valid_hours, "a number of hours, from one second to 31 days")
    issued = int(time.time() if now is None else now)
    expires = issued + int(valid_hours * 3600)
    request = ErasureRequest(client, federation, model_sha256, secrets.token_hex(16), issued, expires)
    return sign(ERASURE_REQUEST, asdict(request), private_key)


def check_request(
    document: str,
    *,
    client: str,
    federation: str | None,
    model_sha256: str | None,
    public_key: KeySource,
    now: float | None = None,
) -> ErasureRequest:
    """Return a request signed with this key for this client, federation and model, if it is valid now.

    Refuses any other; None is any federation or model. ``use_nonce`` refuses a second use.
    """
    payload = opened(document, ERASURE_REQUEST, public_key, largest=LARGEST_REQUEST)
    names = {field.name for field in fields(ErasureRequest)}
    _check(payload.keys() == names, Refusal.BAD_FIELDS, f"the request must have the keys {sorted(names)}")
    request = ErasureRequest(**payload)
    for reason, found, expected in (
        (Refusal.OTHER_CLIENT, request.client, client),
        (Refusal.OTHER_FEDERATION, request.federation, federation),
        (Refusal.OTHER_MODEL, request.model_sha256, model_sha256),
    ):
        _check(
            expected is None or found == expected, reason, f"the request names {found!r}, not {expected!r}"
        )
    at = time.time() if now is None else now
    begun = at >= request.issued - CLOCK_SKEW
    _check(begun, Refusal.NOT_YET_VALID, "the request was issued in the future: compare the clocks")
    _check(at < request.expires, Refusal.EXPIRED, "the request has expired: sign a new one")
    return request


def stated_client(document: str) -> str:
    """Return the client that a request names, unverified: its key is the one to check the request with."""
    return _stated(document, "client")


def stated_model(document: str) -> str:
    """Return the hash of the model that a request names, unverified."""
    return _stated(document, "model_sha256")


def _stated(document: str, field: str) -> str:
    try:
        _check(len(document) <= LARGEST_REQUEST, Refusal.TOO_LARGE, "the document is too large for a request")
        stated = _parsed(decoded(_parsed(document.encode())["payload"]))[field]
        if not isinstance(stated, str):
            raise TypeError
    except (TypeError, AttributeError, KeyError, ValueError, RecursionError):
        sentence = "the document is not a signed erasure request: make one with fedunlearn sign"
        raise Refused(Refusal.MALFORMED, sentence) from None
    return stated


def use_nonce(folder: Path, request: ErasureRequest, run: str) -> None:
    """Claim the nonce of a request for one run, durably; refuse a request that another run has claimed.

    The same run may claim it again after a crash. A kill leaves at most a hidden file that nothing reads.
    """
    claim, content = _claim(folder, request, run)
    temporary = folder / f".{claim.name}.{secrets.token_hex(8)}.partial"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            with open(temporary, "xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.link(temporary, claim)  # Unlike a rename, a link never replaces another claim.
        except FileExistsError:
            pass
        finally:
            temporary.unlink(missing_ok=True)
        sync_folder(folder)
        sync_folder(folder.parent)
        require_unused(folder, request, run)
    except OSError as error:
        raise FedUnlearnError(
            f"cannot record the request in {folder}: {error.strerror or error}; "
            "choose a folder that is writable, has free space and supports hard links",
            code="file",
        ) from error


def require_unused(folder: Path, request: ErasureRequest, run: str) -> None:
    """Refuse a request whose nonce another run has claimed."""
    claim, content = _claim(folder, request, run)
    ours = not claim.exists() or claim.read_bytes() == content
    _check(ours, Refusal.REPLAYED, "another run has used this request: sign a new one")


def _claim(folder: Path, request: ErasureRequest, run: str) -> tuple[Path, bytes]:
    """Return the file that claims a nonce for a run, and its content."""
    require(isinstance(run, str) and 0 < len(run) <= 200, "run", run, "a name of 1 to 200 characters")
    # The client is part of the name: no client can use up the nonce of another.
    identity = _canonical([request.federation, request.client, request.nonce])
    return folder / hashlib.sha256(identity).hexdigest(), _canonical({"run": run})


def _check(fine: bool, reason: Refusal, sentence: str) -> None:
    if not fine:
        raise Refused(reason, sentence)


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def _parsed(text: bytes) -> Any:
    """Read canonical JSON only: no duplicate keys, spaces, NaN or other spelling of a value."""
    value = json.loads(text.decode("ascii"))
    if _canonical(value) != text:
        raise ValueError("not canonical")
    return value


def _encoding(kind: str, body: bytes) -> bytes:
    """DSSE's pre-authentication encoding: the bytes that are signed."""
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind.encode(), len(body), body)
