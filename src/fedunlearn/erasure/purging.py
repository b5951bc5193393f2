"""After the certificate: what a request needed is deleted, and a signed receipt says so."""

from __future__ import annotations

import shutil
from pathlib import Path
from shlex import quote

from ..core import FedUnlearnError
from ..runs import content_hash, locked, write
from ..runs.files import explained
from ..signing import sign
from .certificate import RECEIPT
from .certification import CERTIFICATE, MODEL, PAGE
from .desk import DAY, Case, Desk
from .keys import destroy
from .request_state import RequestState

KEPT = (CERTIFICATE, PAGE, MODEL, "purge.json")
"""The files that stay in the folder of a request; everything else is deleted."""


def due(desk: Desk, case: Case) -> bool:
    """Whether the time for which a certified request's files are kept is over."""
    certified = case.last(RequestState.CERTIFIED)
    waited = certified is not None and desk.clock() >= certified.time + desk.policy.keep_days * DAY
    return waited and case.state is RequestState.CERTIFIED


def purge(desk: Desk, request: str, *, withdrawn: bool = False) -> Case:
    """Delete what a request needed, destroy its key and sign a receipt; a second call finishes the first.

    What was encrypted with the key cannot be read any more, wherever copies of it are. A request that has not
    been answered is refused unless ``withdrawn`` says that the client no longer asks.
    """
    with locked(desk.folder / "work.lock"):
        desk.ledger.settle()
        case, place = desk.case(request), desk.place(request)
        if case.state is RequestState.PURGED:
            _check_kept(case, place)
            return case
        if not case.state.accepted:
            raise FedUnlearnError(
                f"request {request} is {case.state}: there is nothing to purge", code="finished"
            )
        if case.state is RequestState.CERTIFIED and case.last("installed") is None:
            raise FedUnlearnError(
                f"the model of request {request} is not in service yet: continue with: "
                f"fedunlearn erase {quote(str(desk.folder))} {request}",
                code="unfinished",
            )
        begun = case.last("purging")
        if begun is None and case.state is not RequestState.CERTIFIED and not withdrawn:
            raise FedUnlearnError(
                f"request {request} is {case.state}, so it has not been answered: purge it only if the "
                "client has withdrawn it (--withdrawn)",
                code="unfinished",
            )
        if begun is None:
            # What lies in folders depends on how often the run was killed.
            doomed = [path for path in place.glob("[!.]*") if path.name not in KEPT]
            received = case.last(RequestState.RECEIVED)
            assert received is not None
            begun = desk.ledger.append(
                request,
                "purging",
                key=received.fields["key"],
                files=len(doomed),
                withdrawn=case.last(RequestState.CERTIFIED) is None,
            )
        deleted = begun.fields["files"]
        destroy(place / "key")
        _delete(place)
        _delete_earlier(desk, case)
        named = next(
            (e.fields["certificate"] for e in reversed(case.entries) if "certificate" in e.fields), None
        )
        receipt = sign(
            RECEIPT,
            {
                "request": request,
                "withdrawn": begun.fields["withdrawn"],
                "certificate_sha256": named,
                "destroyed_key": begun.fields["key"],
                "deleted": deleted,
                "kept": [name for name in KEPT if (place / name).exists() or name == "purge.json"],
                "ledger_entry": begun.sha256,
                "time": begun.time,
            },
            desk.controller_key,
        )
        write(place / "purge.json", receipt.encode())
        digest = content_hash(receipt.encode())
        desk.ledger.append(request, RequestState.PURGED, files=deleted, receipt=digest)
        return desk.case(request)


def _delete_earlier(desk: Desk, case: Case) -> None:
    """Delete the model of the request before: it is the one that this request had to replace."""
    if case.attempt is None or case.last("installed") is None:
        return
    for other in desk.cases():
        certified = other.last(RequestState.CERTIFIED)
        if other.id != case.id and certified and certified.fields["model"] == case.attempt.model:
            path = desk.place(other.id) / MODEL
            with explained(path):
                path.unlink(missing_ok=True)


def _check_kept(case: Case, place: Path) -> None:
    """Refuse a certificate, receipt or model that is not as the ledger says; the model may be gone."""
    recorded = {name: value for entry in case.entries for name, value in entry.fields.items()}
    for name, field in ((CERTIFICATE, "certificate"), ("purge.json", "receipt"), (MODEL, "file")):
        path = place / name
        found = content_hash(path.read_bytes()) if path.exists() else None
        if found != recorded.get(field) and not (name == MODEL and found is None):
            raise FedUnlearnError(f"{path} is not as the ledger says: restore it from a copy", code="damaged")


def _delete(place: Path) -> None:
    for path in sorted(place.glob("*")):
        if path.name not in KEPT:
            with explained(path):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
