"""The desk that answers erasure requests: its folder, its settings, and how requests stand."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from ..core import ClientId, FedUnlearnError, did_you_mean
from ..runs import fingerprint, json_bytes, read_json, write
from .keys import Key, key_in, read_key
from .ledger import Entry, Ledger
from .settings import Policy, read_policy

DAY = 24 * 3600
SUPPRESSED = "suppressed.json"
"""Keyed hashes of the clients that were forgotten."""
NONCES = "nonces"


class Standing(StrEnum):
    """How a request stands."""

    RECEIVED = "received"
    REFUSED = "refused"
    AUTHENTICATED = "authenticated"
    ADMITTED = "admitted"
    UNLEARNING = "unlearning"
    VERIFIED = "verified"
    RECOVERING = "recovering"
    CERTIFIED = "certified"
    PARTIAL = "partial"
    NO_DIRECTION = "no_direction"
    GUARD_STOP = "guard_stop"
    ESCALATED = "escalated"
    PURGED = "purged"

    @property
    def ended(self) -> bool:
        """Whether nothing more is done unless somebody decides so."""
        return self in ENDS

    @property
    def failed(self) -> bool:
        """Whether the client waits for somebody's decision."""
        return self in FAILURES

    @property
    def open(self) -> bool:
        """Whether the client still waits for its erasure."""
        return self not in (Standing.REFUSED, Standing.CERTIFIED, Standing.PURGED)


FAILURES = (Standing.PARTIAL, Standing.NO_DIRECTION, Standing.GUARD_STOP, Standing.ESCALATED)
WORK = (Standing.ADMITTED, Standing.UNLEARNING, Standing.VERIFIED, Standing.RECOVERING)
ENDS = (Standing.REFUSED, Standing.CERTIFIED, *FAILURES, Standing.PURGED)

AFTER: dict[Standing | None, tuple[Standing, ...]] = {
    None: (Standing.RECEIVED, Standing.REFUSED),
    Standing.RECEIVED: (Standing.RECEIVED, Standing.AUTHENTICATED, Standing.REFUSED),
    Standing.REFUSED: (Standing.RECEIVED, Standing.REFUSED),
    Standing.AUTHENTICATED: (Standing.ADMITTED, Standing.PURGED),
    Standing.ADMITTED: (Standing.UNLEARNING, Standing.PURGED),
    Standing.UNLEARNING: (Standing.VERIFIED, Standing.RECOVERING, *FAILURES, Standing.PURGED),
    Standing.RECOVERING: (Standing.VERIFIED, *FAILURES, Standing.PURGED),
    Standing.VERIFIED: (
        Standing.VERIFIED,
        Standing.RECOVERING,
        Standing.CERTIFIED,
        *FAILURES,
        Standing.PURGED,
    ),
    **dict.fromkeys(FAILURES, (Standing.ADMITTED, Standing.PURGED)),
    Standing.CERTIFIED: (Standing.PURGED,),
    Standing.PURGED: (),
}
"""Which states may follow each."""

NEXT_STEPS = {
    Standing.RECEIVED: "hand the request in again: {erase}",
    Standing.REFUSED: "none; the client may sign a new request",
    Standing.AUTHENTICATED: "look at the plan, then {erase}",
    **dict.fromkeys(WORK, "continue with {erase}"),
    Standing.CERTIFIED: "send the certificate; fedunlearn purge",
    Standing.PARTIAL: "the client did not stay: wait for it and erase again, or retrain without it",
    Standing.NO_DIRECTION: "no step forgets without harm to others: erase again with another method",
    Standing.GUARD_STOP: "look at the warnings, then erase again with another method",
    Standing.ESCALATED: "decide: erase again with another method or more rounds, or withdraw the model",
    Standing.PURGED: "none",
}


@dataclass(frozen=True)
class Case:
    """A request as the ledger tells it."""

    id: str
    entries: tuple[Entry, ...]
    erase: str = field(default="fedunlearn erase", compare=False)
    """What answers it."""

    def __post_init__(self) -> None:
        before: Standing | None = None
        for entry in self.entries:
            if entry.event in _STATES:
                now = Standing(entry.event)
                if now not in AFTER[before]:
                    raise FedUnlearnError(
                        f"the ledger says that request {self.id} was {now} after it was {before}, which "
                        "cannot be: restore the ledger from a copy"
                    )
                before = now

    @property
    def standing(self) -> Standing:
        return Standing(next(entry.event for entry in reversed(self.entries) if entry.event in _STATES))

    @property
    def deadline(self) -> int | None:
        """When the client must have an answer, in seconds since 1970: handing in again gains no time."""
        return self.received.fields["deadline"] if self.received else None

    @property
    def received(self) -> Entry | None:
        """The first receipt."""
        return next((entry for entry in self.entries if entry.event == "received"), None)

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
        """Whether its model may still replace the one in production without anybody's decision."""
        return not self.purging and (
            self.standing in WORK or (self.standing is Standing.CERTIFIED and self.last("installed") is None)
        )

    @property
    def waiting(self) -> bool:
        """Whether its client can hand in no other."""
        return self.under_way or (
            self.standing.open and self.standing is not Standing.RECEIVED and not self.purging
        )

    @property
    def attempt(self) -> int:
        """How often a method has been tried."""
        return sum(entry.event == "unlearning" for entry in self.entries)

    @property
    def current(self) -> tuple[Entry, ...]:
        """The entries of the last attempt."""
        starts = [n for n, entry in enumerate(self.entries) if entry.event == "unlearning"]
        return self.entries[starts[-1] :] if starts else ()

    @property
    def next_step(self) -> str:
        if self.purging and self.standing is not Standing.PURGED:
            return "finish with fedunlearn purge"
        return NEXT_STEPS[self.standing].format(erase=self.erase)

    def last(self, event: str) -> Entry | None:
        return next((entry for entry in reversed(self.entries) if entry.event == event), None)


_STATES = frozenset(map(str, Standing))


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
        path, received = self.place(request) / "key", self.case(request).last("received")
        key = read_key(path)
        if received is None or key.id != received.fields["key"]:
            raise FedUnlearnError(f"{path} is not the key of request {request}: restore it from a copy")
        return key

    def document(self, request: str) -> str:
        """The signed request, as long as it has not been purged."""
        path, received = self.place(request) / "request.json", self.case(request).last("received")
        try:
            content = path.read_bytes()
        except OSError as error:
            raise FedUnlearnError(f"cannot read {path}: {error.strerror}; restore it from a copy") from None
        if received is None or hashlib.sha256(content).hexdigest() != received.fields["document"]:
            raise FedUnlearnError(f"{path} is not as it was received: restore it from a copy")
        return content.decode()

    def case(self, request: str) -> Case:
        entries = self.ledger.of(request)
        if not entries:
            known = sorted({entry.request for entry in self.ledger.entries})
            raise FedUnlearnError(f"there is no request {request!r}{did_you_mean(request, known)}")
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
            received = case.last("received")
            if (
                case.waiting
                and received
                and self.key(case.id).pseudonym(client) == received.fields["subject"]
            ):
                return case
        return None

    @property
    def _erase(self) -> str:
        """How a request is answered: the command reaches simulated federations only."""
        own = "the run of your ServerApp that calls erasure.erase (flwr run)"
        return "fedunlearn erase" if self.policy.simulation else own

    def forgotten(self, clients: Iterable[ClientId]) -> list[ClientId]:
        """Those clients that this desk has forgotten; it keeps no list of names, only keyed hashes."""
        hashes = self._suppressed()
        if not hashes:
            return []
        key = read_key(self.folder / "suppression.key")
        return sorted(client for client in clients if key.pseudonym(client) in hashes)

    def suppress(self, request: str, client: ClientId) -> None:
        """Leaves a client out of every later request; the ledger hears of the list before it is written."""
        hashes, key = self._suppressed(), key_in(self.folder / "suppression.key")
        case = self.case(request)
        told, certified = case.last("installing"), case.last("certified")
        left = f"{client} left {certified.fields['model']}" if certified else client
        hashes = sorted({*hashes, key.pseudonym(client), key.pseudonym(left)})
        digest = fingerprint([key.id, *hashes])
        if told is None:
            self.ledger.append(request, "installing", suppressed=digest)
        elif told.fields["suppressed"] != digest:
            raise FedUnlearnError(
                f"{self.folder / 'suppression.key'} is not as the ledger says: restore it from a copy"
            )
        write(self.folder / SUPPRESSED, json_bytes(hashes), private=True)

    def trained_since(self, client: ClientId) -> set[str]:
        """The models served since somebody trained one elsewhere after the desk had forgotten a client."""
        hashes = self._suppressed()
        key = read_key(self.folder / "suppression.key") if hashes else None
        entries = [e for e in self.ledger.entries if e.event in ("admitted", "installed")]
        installed = [e.fields["model"] for e in entries if e.event == "installed"]
        left = [m for m in installed if key and key.pseudonym(f"{client} left {m}") in hashes]
        known, since, anew = set[str](), set[str](), False
        for entry in entries:
            model = entry.fields["model"]
            anew = anew or (entry.event == "admitted" and model not in known)
            if entry.event == "installed" and model in (left or installed)[-1:]:
                since, anew = set(), False
            known.add(model)
            since |= {model} if anew else set()
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
                "restore both from a copy"
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
