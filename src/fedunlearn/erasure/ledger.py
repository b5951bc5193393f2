"""The ledger of a desk: an append-only chain of typed events, without data, gradients or names."""

from __future__ import annotations

import json
import math
import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core import FedUnlearnError
from ..runs import content_hash, locked, write
from ..runs.files import explained
from ..signing import KeySource, Refused, opened, public_part, sign
from .request_state import FAILURES, RequestState

GENESIS = "0" * 64
HEAD = "application/vnd.fedunlearn.ledger-head.v1+json"
LARGEST_LINE = 1 << 14
ATTEMPTS = 50


def _code(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,63}", value) is not None


def _digest(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[0-9a-f]{32}|[0-9a-f]{64}", value) is not None


def _count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 53


def _flag(value: Any) -> bool:
    return type(value) is bool


def _number(value: Any) -> bool:
    return _count(value) or (type(value) is float and math.isfinite(value))


def _mapping(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: (
        isinstance(value, Mapping)
        and len(value) <= 64
        and all(_code(key) and fits(each) for key, each in value.items())
    )


_FAILED = {"claim": _code, "model": _digest, "certificate": _digest, "reason": _code}
FIELDS: Mapping[str, Mapping[str, Callable[[Any], bool]]] = {
    RequestState.RECEIVED: {
        "document": _digest,
        "subject": _digest,
        "scope": _code,
        "deadline": _count,
        "key": _digest,
    },
    RequestState.REFUSED: {"document": _digest, "reason": _code},
    RequestState.AUTHENTICATED: {"signer": _digest},
    RequestState.ADMITTED: {
        "model": _digest,
        "method": _code,
        "retained": _count,
        "rounds": _count,
        "plan": _digest,
        "settings": _digest,
        "history": _digest,
        "asks": _flag,
    },
    RequestState.UNLEARNING: {"attempt": _count},
    RequestState.RECOVERING: {"attempt": _count},
    RequestState.VERIFIED: {
        "stage": _code,
        "rounds": _count,
        "model": _digest,
        "measures": _mapping(_number),
        "guards": _mapping(_count),
        "verdict": _code,
    },
    RequestState.CERTIFIED: {"claim": _code, "model": _digest, "certificate": _digest, "file": _digest},
    **dict.fromkeys(FAILURES, _FAILED),
    "installing": {"suppressed": _digest},
    "installed": {"model": _digest},
    "purging": {"key": _digest, "files": _count, "withdrawn": _flag},
    RequestState.PURGED: {"files": _count, "receipt": _digest},
}
"""The fields of each event and their forms: codes, digests and numbers only."""


@dataclass(frozen=True)
class Entry:
    """One line of a ledger."""

    number: int
    time: int
    request: str
    event: str
    fields: Mapping[str, Any]
    previous: str
    sha256: str
    """Of the line's bytes: what the next entry names as the one before it."""


class Ledger:
    """A file to which entries are appended; a separate signed head states its end.

    The head announces an entry before it is appended and confirms it afterwards. So a kill in between is
    not mistaken for an entry that was removed or added.
    """

    def __init__(self, path: Path, key: KeySource, clock: Callable[[], float] = time.time) -> None:
        self.path = path
        self._key = key
        self._public = public_part(key)
        self._clock = clock
        self._entries: tuple[Entry, ...] = ()
        self._size = 0

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All entries; a damaged, shortened or extended ledger is refused."""
        for left in reversed(range(ATTEMPTS)):
            before = self._head_bytes()
            try:
                self._read_on()
                self._require_head(before)
            except FedUnlearnError:
                # Another process may be appending just now.
                if not left or self._head_bytes() == before:
                    raise
            else:
                break
        return self._entries

    def of(self, request: str) -> tuple[Entry, ...]:
        """The entries about a request."""
        return tuple(entry for entry in self.entries if entry.request == request)

    @property
    def head(self) -> tuple[str, int]:
        """Digest of the last entry, and the number of entries."""
        entries = self.entries
        return head_at(entries, len(entries)), len(entries)

    def append(self, request: str, event: str, **fields: Any) -> Entry:
        """Append an entry durably; nothing is done before it is written."""
        _check_fields(event, fields)
        with locked(self.path.with_name("ledger.lock"), wait=True):
            self._remove_torn_line()
            previous, length = self.head
            line = _canonical(
                {
                    "number": length + 1,
                    "time": int(self._clock()),
                    "request": request,
                    "event": event,
                    "fields": fields,
                    "previous": previous,
                }
            )
            self._sign_head(previous, length, announced=content_hash(line))
            with explained(self.path), self.path.open("ab") as file:
                file.write(line + b"\n")
                file.flush()
                os.fsync(file.fileno())
            self._read_on()
            self._sign_head(self._entries[-1].sha256, length + 1)
        return self._entries[-1]

    def settle(self) -> None:
        """Confirm an entry that a kill left announced and written, so that its removal is noticed."""
        with locked(self.path.with_name("ledger.lock"), wait=True):
            head, length = self.head
            if length and opened(self._head_bytes().decode(), HEAD, self._public)["length"] < length:
                self._sign_head(head, length)

    def _remove_torn_line(self) -> None:
        """Remove an incomplete line that a kill left; call it only while holding the lock."""
        if not self.path.exists():
            return
        with explained(self.path), self.path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            start = file.seek(max(0, size - LARGEST_LINE - 2))
            tail = file.read()
        whole = start + tail.rfind(b"\n") + 1
        if whole < size and (start == 0 or b"\n" in tail):
            with explained(self.path):
                os.truncate(self.path, whole)

    def _read_on(self) -> None:
        """Read the entries that were appended since the last look."""
        if not self.path.exists():
            content = b""
        else:
            with self.path.open("rb") as file:
                if os.fstat(file.fileno()).st_size < self._size:
                    raise FedUnlearnError(
                        f"{self.path} was shortened: restore it from a copy", code="damaged"
                    )
                file.seek(self._size)
                content = file.read()
        whole = content[: content.rfind(b"\n") + 1]
        self._entries = (*self._entries, *_parsed(self.path, whole, self._entries[-1:]))
        self._size += len(whole)

    @property
    def _head_file(self) -> Path:
        return self.path.with_name("ledger.head.json")

    def _head_bytes(self) -> bytes:
        return self._head_file.read_bytes() if self._head_file.exists() else b""

    def _sign_head(self, head: str, length: int, announced: str = "") -> None:
        signed = sign(HEAD, {"head": head, "length": length, "announced": announced}, self._key)
        write(self._head_file, signed.encode())

    def _require_head(self, content: bytes) -> None:
        """The entries must end at the signed head, or with the one entry that it announces."""
        found = len(self._entries)
        if not content:
            if found:
                raise FedUnlearnError(f"{self._head_file} is missing: restore it from a copy", code="damaged")
            return
        try:
            signed = opened(content.decode(), HEAD, self._public)
        except (Refused, UnicodeDecodeError) as error:
            raise FedUnlearnError(
                f"{self._head_file} is damaged ({error}): restore it from a copy", code="damaged"
            ) from None
        length, head, announced = signed["length"], signed["head"], signed["announced"]
        ends = found >= length and head_at(self._entries, length) == head
        if not ends or [entry.sha256 for entry in self._entries[length:]] not in ([], [announced]):
            raise FedUnlearnError(
                f"{self.path} does not end as its signed head {self._head_file.name} says: entries were "
                "removed or added; restore both from a copy",
                code="damaged",
            )


def read(path: Path) -> tuple[Entry, ...]:
    """The entries of a ledger file; a broken chain is refused, an incomplete last line ignored."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise FedUnlearnError(
            f"cannot read the ledger {path}: {error.strerror or error}", code="file"
        ) from None
    return _parsed(path, content[: content.rfind(b"\n") + 1], ())


def head_at(entries: tuple[Entry, ...], length: int) -> str:
    """The digest of the entry at which the ledger had this length."""
    if not 0 <= length <= len(entries):
        raise FedUnlearnError(
            f"the ledger has {len(entries)} entries, and {length} are named: it was shortened, or it is "
            "that of another desk",
            code="damaged",
        )
    return entries[length - 1].sha256 if length else GENESIS


def _parsed(path: Path, content: bytes, before: tuple[Entry, ...]) -> tuple[Entry, ...]:
    last = before[-1] if before else None
    found: list[Entry] = []
    for line in content.split(b"\n")[:-1]:
        number = 1 + (last.number if last else 0)
        where = f"{path}, entry {number}"
        try:
            if len(line) > LARGEST_LINE:
                raise ValueError
            body = json.loads(line)
            if _canonical(body) != line or body.keys() != _KEYS:
                raise ValueError
            _check_fields(body["event"], body["fields"])
        except (ValueError, TypeError, AttributeError, RecursionError, FedUnlearnError):
            raise FedUnlearnError(
                f"{where} is damaged or was edited: restore the ledger from a copy", code="damaged"
            ) from None
        if body["number"] != number or body["previous"] != (last.sha256 if last else GENESIS):
            raise FedUnlearnError(
                f"{where} does not follow the entry before it, so one was edited, moved or removed: "
                "restore the ledger from a copy",
                code="damaged",
            )
        last = Entry(
            number,
            body["time"],
            body["request"],
            body["event"],
            body["fields"],
            body["previous"],
            content_hash(line),
        )
        found.append(last)
    return tuple(found)


_KEYS = {"number", "time", "request", "event", "fields", "previous"}


def _check_fields(event: Any, fields: Mapping[str, Any]) -> None:
    known = FIELDS.get(event) if isinstance(event, str) else None
    if known is None:
        raise FedUnlearnError(f"unknown ledger event {event!r}", code="unknown")
    for name, value in fields.items():
        if name not in known or not known[name](value):
            raise FedUnlearnError(f"event {event!r} cannot record {name} = {value!r:.80}")


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
