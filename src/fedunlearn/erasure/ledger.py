"""The ledger of a desk: an append-only chain of typed events, without data, gradients or names."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..authority import KeySource, Refused, opened, public_part, sign
from ..core import FedUnlearnError
from ..record import locked, write

GENESIS = "0" * 64
HEAD = "application/vnd.fedunlearn.ledger-head.v1+json"
LARGEST_LINE = 1 << 14


def _code(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,63}", value) is not None


def _digest(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[0-9a-f]{32}|[0-9a-f]{64}", value) is not None


def _count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 53


def _number(value: Any) -> bool:
    return _count(value) or (type(value) is float and math.isfinite(value))


def _mapping(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: (
        isinstance(value, Mapping)
        and len(value) <= 64
        and all(_code(key) and fits(each) for key, each in value.items())
    )


FIELDS: Mapping[str, Mapping[str, Callable[[Any], bool]]] = {
    "received": {"document": _digest, "subject": _digest, "scope": _code, "deadline": _count},
    "refused": {"document": _digest, "reason": _code},
    "authenticated": {"signer": _digest},
    "admitted": {
        "model": _digest,
        "method": _code,
        "retained": _count,
        "rounds": _count,
        "plan": _digest,
        "key": _digest,
    },
    "unlearning": {"attempt": _count},
    "recovering": {"attempt": _count},
    "verified": {
        "stage": _code,
        "rounds": _count,
        "model": _digest,
        "measures": _mapping(_number),
        "guards": _mapping(_count),
        "verdict": _code,
    },
    "certified": {"claim": _code, "model": _digest, "certificate": _digest},
    "partial": {"claim": _code, "model": _digest, "certificate": _digest, "reason": _code},
    "no_direction": {"claim": _code, "model": _digest, "certificate": _digest, "reason": _code},
    "guard_stop": {"claim": _code, "model": _digest, "certificate": _digest, "reason": _code},
    "escalated": {"claim": _code, "model": _digest, "certificate": _digest, "reason": _code},
    "installed": {"model": _digest},
    "purging": {"key": _digest},
    "purged": {"files": _count, "bytes": _count, "receipt": _digest},
}
"""What each event may tell, and in which form: codes, digests and numbers only."""


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
    """A file to which entries are appended; its head is signed beside it after each of them."""

    def __init__(self, path: Path, key: KeySource, clock: Callable[[], float] = time.time) -> None:
        self.path = path
        self._key = key
        self._public = public_part(key)
        self._clock = clock
        self._entries: tuple[Entry, ...] = ()
        self._size = 0

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All entries; a damaged or shortened ledger is refused."""
        self._catch_up()
        return self._entries

    def of(self, request: str) -> tuple[Entry, ...]:
        """The entries about a request."""
        return tuple(entry for entry in self.entries if entry.request == request)

    def append(self, request: str, event: str, **fields: Any) -> Entry:
        """Appends an entry durably; nothing is done before it is written."""
        _check_fields(event, fields)
        with locked(self.path.with_name("ledger.lock"), wait=True):
            self._catch_up(mend=True)
            last = self._entries[-1] if self._entries else None
            body = {
                "number": 1 + (last.number if last else 0),
                "time": int(self._clock()),
                "request": request,
                "event": event,
                "fields": fields,
                "previous": last.sha256 if last else GENESIS,
            }
            line = _canonical(body)
            with self.path.open("ab") as file:
                file.write(line + b"\n")
                file.flush()
                os.fsync(file.fileno())
            self._catch_up()
            self._sign_head()
        return self._entries[-1]

    @property
    def head(self) -> tuple[str, int]:
        """Digest of the last entry, and the number of entries."""
        entries = self.entries
        return (entries[-1].sha256, len(entries)) if entries else (GENESIS, 0)

    def _catch_up(self, *, mend: bool = False) -> None:
        """Reads what has been appended since; whoever holds the lock removes a line that a kill cut off."""
        if not self.path.exists():
            if self._head_file.exists():
                raise FedUnlearnError(f"{self.path} is missing: restore it from a copy")
            if mend:
                write(self.path, b"")
            return
        with self.path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size < self._size:
                raise FedUnlearnError(f"{self.path} was shortened: restore it from a copy")
            file.seek(self._size)
            new = file.read()
        whole = new[: new.rfind(b"\n") + 1]
        if mend and len(whole) < len(new):
            os.truncate(self.path, self._size + len(whole))
        if whole or not self._size:
            self._entries = (*self._entries, *_parsed(self.path, whole, self._entries[-1:]))
            self._size += len(whole)
            self._check_head(mend)

    @property
    def _head_file(self) -> Path:
        return self.path.with_name("ledger.head.json")

    def _sign_head(self) -> None:
        last = self._entries[-1]
        head = sign(HEAD, {"head": last.sha256, "length": last.number}, self._key)
        write(self._head_file, head.encode())

    def _check_head(self, mend: bool) -> None:
        """The signed head must be that of the chain, or of all but the last entry, if a kill came between."""
        problem = f"{self.path} and its signed head {self._head_file.name} do not match: restore both"
        if not self._head_file.exists():
            if len(self._entries) > 1:
                raise FedUnlearnError(f"{self._head_file} is missing: restore it from a copy")
            if mend and self._entries:
                self._sign_head()
            return
        try:
            signed = opened(self._head_file.read_text(), HEAD, self._public)
        except (Refused, UnicodeDecodeError) as error:
            raise FedUnlearnError(f"{self._head_file} is damaged ({error}): restore it from a copy") from None
        length, found = signed.get("length"), len(self._entries)
        if length not in (found, found - 1) or head_at(self._entries, int(length)) != signed.get("head"):
            # A reader without the lock may see an older head than its entries.
            if not mend and type(length) is int and 0 < length < found:
                if head_at(self._entries, length) == signed.get("head"):
                    return
            raise FedUnlearnError(problem)
        if mend and length == found - 1:
            self._sign_head()


def read(path: Path) -> tuple[Entry, ...]:
    """The entries of a ledger file; a broken chain is refused, an incomplete last line ignored."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise FedUnlearnError(f"cannot read the ledger {path}: {error.strerror or error}") from None
    return _parsed(path, content[: content.rfind(b"\n") + 1], ())


def head_at(entries: tuple[Entry, ...], length: int) -> str:
    """The digest of the entry at which the ledger had this length."""
    if not 0 <= length <= len(entries):
        raise FedUnlearnError(
            f"the ledger has {len(entries)} entries, and {length} are named: it is shorter, or of another desk"
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
                f"{where} is damaged or was edited: restore the ledger from a copy"
            ) from None
        if body["number"] != number or body["previous"] != (last.sha256 if last else GENESIS):
            raise FedUnlearnError(
                f"{where} does not follow the entry before it, so one was edited, moved or removed: "
                "restore the ledger from a copy"
            )
        last = Entry(
            number,
            body["time"],
            body["request"],
            body["event"],
            body["fields"],
            body["previous"],
            hashlib.sha256(line).hexdigest(),
        )
        found.append(last)
    return tuple(found)


_KEYS = {"number", "time", "request", "event", "fields", "previous"}


def _check_fields(event: Any, fields: Mapping[str, Any]) -> None:
    known = FIELDS.get(event) if isinstance(event, str) else None
    if known is None:
        raise FedUnlearnError(f"{event!r} is no event of a ledger")
    for name, value in fields.items():
        if name not in known or not known[name](value):
            raise FedUnlearnError(f"the event {event!r} cannot tell {name} = {value!r:.80}")


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
