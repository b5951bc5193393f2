"""The reception of a request: authenticated, or refused with a reason of its own."""

from __future__ import annotations

from ..core import ClientId, FedUnlearnError
from ..runs import content_hash, locked, write
from ..runs.files import explained, remove_partial
from ..signing import ErasureRequest, Refusal, Refused, check_request, key_id, stated_client, use_nonce
from .desk import DAY, NONCES, Case, Desk
from .keys import destroy, key_in
from .request_state import RequestState


def identify(document: str) -> str:
    """Return the ID of a request: the beginning of its digest, which nothing but the document reveals."""
    return content_hash(document.encode(errors="replace"))[:16]


def receive(desk: Desk, document: str, model_sha256: str | None = None) -> Case:
    """Register a signed request and authenticate it; one that is refused leaves a reason, and nothing else.

    ``model_sha256`` is the hash of the model in production; a request may also name one that this desk has
    served before. The same document again is the same request.
    """
    with locked(desk.folder / "reception.lock", wait=True):
        return _receive(desk, document, model_sha256)


def _receive(desk: Desk, document: str, model_sha256: str | None) -> Case:
    desk.ledger.settle()
    with explained(desk.folder / NONCES):
        remove_partial(desk.folder / NONCES)
    request, digest = identify(document), content_hash(document.encode(errors="replace"))
    known = desk.ledger.of(request)
    before = Case(request, known).state if known else None
    if before is not None and before.accepted:
        return Case(request, known)
    try:
        client = stated_client(document)
        if before is RequestState.REFUSED:
            examine(desk, document, model_sha256)
        if before is not RequestState.RECEIVED or not _has_key(desk, request):
            _begin(desk, request, digest, client)
        checked = examine(desk, document, model_sha256)
        use_nonce(desk.folder / NONCES, checked, request)
    except Refused as refusal:
        _forget_refused(desk, request)
        last = next(reversed(desk.ledger.of(request)), None)
        if last is None or (last.event, last.fields.get("reason")) != (RequestState.REFUSED, refusal.reason):
            desk.ledger.append(request, RequestState.REFUSED, document=digest, reason=str(refusal.reason))
        raise
    write(desk.place(request) / "request.json", document.encode(), private=True)
    signer = key_id(desk.folder / desk.policy.clients[client])
    desk.ledger.append(request, RequestState.AUTHENTICATED, signer=desk.key(request).pseudonym(signer))
    return desk.case(request)


def _has_key(desk: Desk, request: str) -> bool:
    """Whether the key is there; a kill may have left a refused request without it."""
    try:
        return bool(desk.key(request))
    except FedUnlearnError:
        return False


def _begin(desk: Desk, request: str, digest: str, client: ClientId) -> None:
    """Make the key of a request and record its receipt."""
    destroy(desk.place(request) / "key")
    key = key_in(desk.place(request) / "key")
    deadline = int(desk.clock()) + desk.policy.deadline_days * DAY
    subject = key.pseudonym(client)
    facts = {"document": digest, "subject": subject, "scope": "client", "deadline": deadline, "key": key.id}
    desk.ledger.append(request, RequestState.RECEIVED, **facts)


def examine(desk: Desk, document: str, model_sha256: str | None = None) -> ErasureRequest:
    """The request that a document states, if the desk would take it in; any other is refused."""
    request, client = identify(document), stated_client(document)
    if client not in desk.policy.clients:
        raise Refused(
            Refusal.UNKNOWN_KEY,
            f"no client of this desk is called {client!r:.100}: list its public key under [clients] in "
            "desk.toml",
        )
    checked = check_request(
        document,
        client=client,
        federation=desk.policy.federation,
        model_sha256=None,
        public_key=desk.folder / desk.policy.clients[client],
        now=desk.clock(),
    )
    served = desk.models() | ({model_sha256} if model_sha256 else set())
    anew = desk.trained_since(client) | (served - desk.models())
    if desk.forgotten([client]) and checked.model_sha256 not in anew:
        raise Refused(
            Refusal.FORGOTTEN,
            "this client has been forgotten already: where it has joined anew, its request names the model "
            "that was trained with it since",
        )
    if served and checked.model_sha256 not in served:
        raise Refused(
            Refusal.OTHER_MODEL,
            "the request names a model that this desk does not serve: sign a new one, with the model hash "
            "that fedunlearn requests prints (the hash of the file is another one)",
        )
    for other in desk.cases():
        received = other.last(RequestState.RECEIVED)
        if other.id == request or received is None or not other.waiting:
            continue
        if desk.key(other.id).pseudonym(client) == received.fields["subject"]:
            raise Refused(
                Refusal.STILL_OPEN, f"request {other.id} of this client is still open: finish it first"
            )
    return checked


def _forget_refused(desk: Desk, request: str) -> None:
    """Nothing of a refused request stays but its digest and the reason."""
    place = desk.place(request)
    if place.exists():
        (place / "request.json").unlink(missing_ok=True)
        destroy(place / "key")
        for leftover in place.iterdir():
            leftover.unlink()
        place.rmdir()
