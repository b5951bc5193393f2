"""The desk that answers erasure requests: its folder, its settings, and how requests stand."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from ..core import ClientId, Federation, FedUnlearnError, did_you_mean
from ..runs import content_hash, fingerprint, json_bytes, read_json, write
from .keys import Key, key_in, read_key
from .ledger import Entry, Ledger
from .request_state import FIRST, RequestState
from .settings import Policy, read_policy

DAY = 24 * 3600
SUPPRESSED = "suppressed.json"
"""Keyed hashes of the clients that were forgotten."""
NONCES = "nonces"


@dataclass(frozen=True)
class Attempt:
    """An attempt to answer a request, as it was admitted."""

    method: str
    settings: str
    """A digest of what decides the result, except for the model and the clients."""
    model: str
    """The hash of the model before."""
    retained: int
    """The number of retained clients."""
    asks: bool
    """Whether the method asks the client."""
    history: str | None
    """The digest of the encrypted history; None without one."""


@dataclass(frozen=True)
class Case:
    """A request as the ledger records it."""

    id: str
    entries: tuple[Entry, ...]
    erase: str = field(default="fedunlearn erase", compare=False)
    """The call that answers it."""

    def __post_init__(self) -> None:
        before: RequestState | None = None
        for now in self._states():
            if now not in (FIRST if before is None else before.next):
                raise FedUnlearnError(
                    f"the ledger says that request {self.id} was {now} after it was {before}, which "
                    "cannot be: restore the ledger from a copy",
                    code="damaged",
                )
            before = now

    def _states(self) -> list[RequestState]:
        return [state for entry in self.entries for state in RequestState if state == entry.event]

    @property
    def state(self) -> RequestState:
        return self._states()[-1]

    @property
    def deadline(self) -> int | None:
        """When the client must have an answer, in seconds since 1970: handing in again gains no time."""
        return self.received.fields["deadline"] if self.received else None

    @property
    def received(self) -> Entry | None:
        """The first receipt."""
        return next((entry for entry in self.entries if entry.event == RequestState.RECEIVED), None)

    @property
    def purging(self) -> bool:
        """Whether its files are being deleted, or have been."""
        return self.last("purging") is not None

    @property
    def withdrawn(self) -> bool:
        """Whether it was purged without an answer, because the client no longer asked."""
        purging = self.last("purging")
        return purging is not None and bool(purging.fields["withdrawn"])

    @property
    def under_way(self) -> bool:
        """Whether its model may still replace the one in production without a further decision."""
        return not self.purging and (
            self.state.under_way or (self.state is RequestState.CERTIFIED and self.last("installed") is None)
        )

    @property
    def waiting(self) -> bool:
        """Whether its client can hand in no other."""
        return self.under_way or (self.state.open and self.state.accepted and not self.purging)

    @property
    def attempt(self) -> Attempt | None:
        """The last attempt that was admitted."""
        admitted = self.last(RequestState.ADMITTED)
        if admitted is None:
            return None
        facts: dict[str, Any] = {each.name: admitted.fields.get(each.name) for each in fields(Attempt)}
        return Attempt(**facts)

    @property
    def attempts(self) -> int:
        """The number of attempts that began."""
        return sum(entry.event == RequestState.UNLEARNING for entry in self.entries)

    @property
    def current(self) -> tuple[Entry, ...]:
        """The entries of the last attempt."""
        starts = [n for n, entry in enumerate(self.entries) if entry.event == RequestState.UNLEARNING]
        return self.entries[starts[-1] :] if starts else ()

    @property
    def next_step(self) -> str:
        if self.purging and self.state is not RequestState.PURGED:
            return "finish with fedunlearn purge"
        return self.state.advice.format(erase=self.erase)

    def last(self, event: str) -> Entry | None:
        return next((entry for entry in reversed(self.entries) if entry.event == event), None)


@dataclass(frozen=True)
class Desk:
    """A folder in which requests are answered."""

    folder: Path
    policy: Policy
    ledger: Ledger = field(compare=False)
    clock: Callable[[], float] = time.time

    @property
    def controller_key(self) -> Path:
        return self.folder / self.policy.controller_key

    def place(self, request: str) -> Path:
        """The folder of a request."""
        return self.folder / "requests" / request

    def key(self, request: str) -> Key:
        """The key of a request, as long as it has not been destroyed."""
        path, received = self.place(request) / "key", self.case(request).last(RequestState.RECEIVED)
        key = read_key(path)
        if received is None or key.id != received.fields["key"]:
            raise FedUnlearnError(
                f"{path} is not the key of request {request}: restore it from a copy", code="damaged"
            )
        return key

    def document(self, request: str) -> str:
        """The signed request, as long as it has not been purged."""
        path, received = self.place(request) / "request.json", self.case(request).last(RequestState.RECEIVED)
        try:
            content = path.read_bytes()
        except OSError as error:
            raise FedUnlearnError(
                f"cannot read {path}: {error.strerror}; restore it from a copy", code="file"
            ) from None
        if received is None or content_hash(content) != received.fields["document"]:
            raise FedUnlearnError(f"{path} is not as it was received: restore it from a copy", code="damaged")
        return content.decode()

    def case(self, request: str) -> Case:
        entries = self.ledger.of(request)
        if not entries:
            known = sorted({entry.request for entry in self.ledger.entries})
            raise FedUnlearnError(
                f"there is no request {request!r}{did_you_mean(request, known)}", code="unknown"
            )
        return Case(request, entries, self._erase)

    def cases(self) -> list[Case]:
        """All requests in the order of their first entries."""
        entries = self.ledger.entries
        by_request: dict[str, list[Entry]] = {}
        for entry in entries:
            by_request.setdefault(entry.request, []).append(entry)
        return [Case(request, tuple(found), self._erase) for request, found in by_request.items()]

    def waiting_case(self, client: ClientId) -> Case | None:
        """The request of a client that the desk has authenticated and not ended; None without one."""
        for case in self.cases():
            received = case.last(RequestState.RECEIVED)
            if (
                case.waiting
                and received
                and self.key(case.id).pseudonym(client) == received.fields["subject"]
            ):
                return case
        return None

    @property
    def _erase(self) -> str:
        """The call that answers a request: the command reaches simulated federations only."""
        own = "the run of your ServerApp that calls erasure.erase (flwr run)"
        return "fedunlearn erase" if self.policy.simulation else own

    def forgotten(self, clients: Iterable[ClientId]) -> list[ClientId]:
        """Those clients that this desk has forgotten; it keeps no list of names, only keyed hashes."""
        hashes = self._suppressed()
        if not hashes:
            return []
        key = read_key(self.folder / "suppression.key")
        return sorted(client for client in clients if key.pseudonym(client) in hashes)

    def left_out(self, federation: Federation, client: ClientId) -> list[ClientId]:
        """The forgotten clients that are present, except for the one that a request is about."""
        return self.forgotten(federation.present() - {client})

    def suppress(self, request: str, client: ClientId) -> None:
        """Leave a client out of every later request; the ledger announces the list before it is written."""
        hashes, key = self._suppressed(), key_in(self.folder / "suppression.key")
        case = self.case(request)
        announced, certified = case.last("installing"), case.last(RequestState.CERTIFIED)
        left = f"{client} left {certified.fields['model']}" if certified else client
        hashes = sorted({*hashes, key.pseudonym(client), key.pseudonym(left)})
        digest = fingerprint([key.id, *hashes])
        if announced is None:
            self.ledger.append(request, "installing", suppressed=digest)
        elif announced.fields["suppressed"] != digest:
            raise FedUnlearnError(
                f"{self.folder / 'suppression.key'} is not as the ledger says: restore it from a copy",
                code="damaged",
            )
        write(self.folder / SUPPRESSED, json_bytes(hashes), private=True)

    def trained_since(self, client: ClientId) -> set[str]:
        """Return the models served since one was trained elsewhere after the desk had forgotten a client."""
        hashes = self._suppressed()
        key = read_key(self.folder / "suppression.key") if hashes else None
        entries = [e for e in self.ledger.entries if e.event in ("admitted", "installed")]
        installed = [e.fields["model"] for e in entries if e.event == "installed"]
        left = [m for m in installed if key and key.pseudonym(f"{client} left {m}") in hashes]
        known, since, retrained = set[str](), set[str](), False
        for entry in entries:
            model = entry.fields["model"]
            retrained = retrained or (entry.event == RequestState.ADMITTED and model not in known)
            if entry.event == "installed" and model in (left or installed)[-1:]:
                since, retrained = set(), False
            known.add(model)
            since |= {model} if retrained else set()
        return since

    def _suppressed(self) -> list[str]:
        """The keyed hashes, refused unless they are as the ledger says, or as it announces them."""
        path, confirmed, announced = self.folder / SUPPRESSED, "", {}
        for entry in self.ledger.entries:
            if entry.event == "installing":
                announced[entry.request] = entry.fields["suppressed"]
            elif entry.event == "installed":
                confirmed = announced.pop(entry.request, confirmed)
        hashes = read_json(path) if path.exists() else []
        found = fingerprint([read_key(self.folder / "suppression.key").id, *hashes]) if hashes else ""
        if found not in (confirmed, *announced.values()):
            raise FedUnlearnError(
                f"{path} does not list the clients that were forgotten, or suppression.key is not its key: "
                "restore both from a copy",
                code="damaged",
            )
        return hashes

    def models(self) -> set[str]:
        """The hashes of all models that this desk has served."""
        return {
            entry.fields["model"] for entry in self.ledger.entries if entry.event in ("admitted", "installed")
        }


def open_desk(folder: Path | str, *, clock: Callable[[], float] = time.time) -> Desk:
    """The desk in a folder that holds a ``desk.toml``."""
    place = Path(folder)
    policy = read_policy(place)
    return Desk(place, policy, Ledger(place / "ledger.jsonl", place / policy.controller_key, clock), clock)
