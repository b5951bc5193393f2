"""Who may ask to be forgotten: signed requests on a federation whose SuperNodes are registered with keys."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message
from support.codes import refused, says, warned
from support.federations import network
from support.flower_apps import CLIENTS, QUICK, Registered, existing, new_keys, served

from fedunlearn import (
    Reply,
    Schedule,
    Terms,
    flatten,
    forget,
    key_id,
    module_hash,
    request_erasure,
    train,
)
from fedunlearn.core import Failure
from fedunlearn.engines import flower
from fedunlearn.engines.flower import wire
from fedunlearn.engines.flower.client import fingerprint
from fedunlearn.signing import ERASURE_REQUEST, Refusal, Refused, opened, sign

NAME, FEDERATION, TARGET = "perceptron", "hospitals", "site-1"
SCHEDULE = Schedule(2, 0.02, 1, 0.02)
FEDOSD: dict[str, Any] = {"method": "fedosd", "schedule": SCHEDULE}
pytestmark = pytest.mark.filterwarnings(
    # True of two rounds, and not the subject here.
    "ignore:the targets' backdoor still works after"
)


KEYS = {client: new_keys() for client in CLIENTS}
PUBLIC = [public for _, public in KEYS.values()]
STRANGER = new_keys()


@pytest.fixture(scope="module")
def public(tmp_path_factory) -> Path:
    """The files with the public keys that nodes name in their configuration."""
    folder = tmp_path_factory.mktemp("keys")
    for client, (_, key) in KEYS.items():
        (folder / client).write_bytes(key)
    return folder


def nodes(public: Path | None, app: Any = None, names: tuple[str, ...] = CLIENTS) -> Registered:
    configs = [
        {"partition-id": number, **({"erasure-key": str(public / f"site-{number}")} if public else {})}
        for number in range(5)
    ]
    return Registered(app or served(NAME), configs, names=names, keys=PUBLIC)


def connected(public: Path | None) -> flower.FlowerFederation:
    return flower.connect(nodes(public), network(NAME), clients=5, patience=QUICK)


def document(**changes: Any) -> str:
    key = changes.pop("key", KEYS[TARGET][0])
    given = {
        "client": TARGET,
        "federation": FEDERATION,
        "model_sha256": module_hash(network(NAME)),
        **changes,
    }
    return request_erasure(
        given.pop("client"), given.pop("federation"), given.pop("model_sha256"), key, **given
    )


def edited(change: Callable[[dict[str, Any]], None], key: bytes | None = None) -> str:
    """A request whose payload was changed after signing, or signed again by another key."""
    signed = document()
    payload = opened(signed, ERASURE_REQUEST, KEYS[TARGET][1])
    change(payload)
    if key is not None:
        return sign(ERASURE_REQUEST, payload, key)
    envelope = json.loads(signed)
    envelope["payload"] = base64.b64encode(canonical(payload).encode()).decode()
    return canonical(envelope)


def canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def authorise(federation: flower.FlowerFederation, request: str, folder: Path) -> Any:
    return federation.authorise(
        TARGET, request, name=FEDERATION, model=network(NAME), folder=folder, ledger=folder.parent / "ledger"
    )


def test_a_signed_request_is_carried_out_on_both_sides(public, tmp_path):
    federation, model = connected(public), network(NAME)
    request = authorise(federation, document(), tmp_path / "run")
    assert request.client == TARGET
    outcome = forget(federation, model, [request.client], tmp_path / "run", **FEDOSD)
    assert not outcome.status.failed
    assert module_hash(model) != module_hash(network(NAME))


FORGERIES: dict[str, tuple[Callable[[], str], Refusal]] = {
    "another node's key": (lambda: document(key=KEYS["site-2"][0]), Refusal.UNKNOWN_KEY),
    "an unregistered key": (lambda: document(key=STRANGER[0]), Refusal.UNKNOWN_KEY),
    "for another client": (lambda: document(client="site-2"), Refusal.OTHER_CLIENT),
    "for another federation": (lambda: document(federation="banks"), Refusal.OTHER_FEDERATION),
    "for another model": (lambda: document(model_sha256="0" * 64), Refusal.OTHER_MODEL),
    "expired": (lambda: document(now=time.time() - 48 * 3600), Refusal.EXPIRED),
    "from the future": (lambda: document(now=time.time() + 3600), Refusal.NOT_YET_VALID),
    "with a later expiry": (
        lambda: edited(lambda payload: payload.update(expires=payload["expires"] + 60)),
        Refusal.BAD_SIGNATURE,
    ),
    "with another client": (
        lambda: edited(lambda payload: payload.update(client="site-2")),
        Refusal.BAD_SIGNATURE,
    ),
    "with another nonce": (
        lambda: edited(lambda payload: payload.update(nonce="0" * len(payload["nonce"]))),
        Refusal.BAD_SIGNATURE,
    ),
    "of the target, signed by another": (
        lambda: edited(lambda payload: None, STRANGER[0]),
        Refusal.UNKNOWN_KEY,
    ),
    "with another scope": (
        lambda: edited(lambda payload: payload.update(scope="everybody"), KEYS[TARGET][0]),
        Refusal.BAD_FIELDS,
    ),
    "with a field more": (
        lambda: edited(lambda payload: payload.update(more=1), KEYS[TARGET][0]),
        Refusal.BAD_FIELDS,
    ),
    "without a signature": (
        lambda: json.dumps(
            {**json.loads(document()), "signatures": []}, sort_keys=True, separators=(",", ":")
        ),
        Refusal.NOT_ONE_SIGNATURE,
    ),
    "of another kind": (
        lambda: sign("text/plain", opened(document(), ERASURE_REQUEST, KEYS[TARGET][1]), KEYS[TARGET][0]),
        Refusal.WRONG_KIND,
    ),
    "empty": (lambda: "", Refusal.MALFORMED),
    "no JSON": (lambda: "{" * 500, Refusal.MALFORMED),
    "of a megabyte": (lambda: document() + " " * 2**20, Refusal.TOO_LARGE),
}


@pytest.mark.parametrize("what", FORGERIES)
def test_a_forged_request_is_refused_by_the_server_before_anybody_is_asked(what, public, tmp_path):
    make, reason = FORGERIES[what]
    grid = nodes(public)
    federation = flower.connect(grid, network(NAME), clients=5, patience=QUICK)
    asked = len(grid.pushed)
    with pytest.raises(Refused) as caught:
        authorise(federation, make(), tmp_path / "run")
    assert caught.value.reason is reason
    assert len(grid.pushed) == asked
    assert not list(tmp_path.iterdir())


SEEN_BY_THE_SERVER_ALONE = {"for another model", "for another federation"}
"""A client sees the model of each round, and the federation where its configuration names it: see below."""


@pytest.mark.parametrize("what", [*sorted(FORGERIES.keys() - SEEN_BY_THE_SERVER_ALONE), "none at all"])
def test_a_target_refuses_to_forget_for_a_server_that_checks_nothing(what, public):
    request = "" if what == "none at all" else FORGERIES[what][0]()
    params = flatten(network(NAME))
    jobs = {TARGET: ("", train(params, "uce")), "site-1#other": ("", train(params))}
    head = wire.Head("token", fingerprint(network(NAME)), request)
    message = wire.pack_jobs(jobs, Terms(), head, wire.Arrays())
    grid = nodes(public)
    node = next(node.node_id for node in grid.get_nodes() if node.name == TARGET)
    (reply,) = grid.send_and_receive([Message(message, node, wire.JOB)])
    read = wire.unpack_replies(reply.content, "token")
    assert isinstance(read[TARGET], Failure)
    assert says(read[TARGET].detail, "refused the job")
    assert isinstance(read["site-1#other"], Reply)  # ordinary training needs no request


def test_a_node_checks_the_federation_that_its_configuration_names(public, tmp_path):
    configs = [
        {"partition-id": n, "erasure-key": str(public / f"site-{n}"), "federation": "banks"} for n in range(5)
    ]
    grid = Registered(served(NAME), configs, names=CLIENTS, keys=PUBLIC)
    federation = flower.connect(grid, network(NAME), clients=5, patience=QUICK)
    authorise(federation, document(), tmp_path / "run")
    with (
        warned("no-reply", says="the request names 'hospitals', not 'banks'"),
        refused("missing_reply"),
    ):
        forget(federation, network(NAME), [TARGET], tmp_path / "run", **FEDOSD)


def test_a_request_is_used_once_and_a_resubmission_is_no_replay(public, tmp_path):
    request = document()
    for _ in range(2):
        authorise(connected(public), request, tmp_path / "run")
    ledger = tmp_path / "ledger"
    for place in (tmp_path / "another run", tmp_path / "elsewhere" / "run"):
        with refused("replayed") as caught:
            connected(public).authorise(
                TARGET, request, name=FEDERATION, model=network(NAME), folder=place, ledger=ledger
            )
        assert caught.value.reason is Refusal.REPLAYED


def test_an_unedited_request_passes(public, tmp_path):
    """The forgeries above fail for what was edited."""
    assert authorise(connected(public), edited(lambda payload: None), tmp_path / "run").client == TARGET


@pytest.mark.parametrize("how", ["fedosd", "puf", "retrain"])
def test_nobody_else_can_be_unlearned_with_a_request(how, public, tmp_path):
    federation = connected(None)
    authorise(federation, document(), tmp_path / "run")
    for targets in (["site-2"], ["site-1", "site-2"]):
        with refused("unsuitable", says=r"site-2 has not asked to be forgotten: .* by site-1"):
            forget(federation, network(NAME), targets, tmp_path / "run", method=how, schedule=SCHEDULE)


def test_a_name_that_a_node_told_itself_is_no_authority(public, tmp_path):
    """A node without a registered name cannot take the place of one that is away."""
    grid = nodes(public, names=("site-0", "", "site-2", "site-3", "site-4"))
    with warned("absent", says="has no registered name"):
        federation = flower.connect(grid, network(NAME), clients=4, patience=QUICK)
    assert TARGET not in federation.present()
    with refused("absent", says="nobody is online under the name 'site-1'"):
        authorise(federation, document(), tmp_path / "run")
    told = flower.connect(nodes(public, names=()), network(NAME), clients=5, patience=QUICK)
    with refused("client", says="told its name itself"):
        authorise(told, document(), tmp_path / "run")


def test_retained_clients_need_no_request_to_train(public, tmp_path):
    """The target's node has no key; that of a retained client demands requests, for forgetting alone."""
    configs = [
        {"partition-id": n, **({"erasure-key": str(public / f"site-{n}")} if n != 1 else {})}
        for n in range(5)
    ]
    grid = Registered(served(NAME), configs, names=CLIENTS, keys=PUBLIC)
    federation = flower.connect(grid, network(NAME), clients=5, patience=QUICK)
    assert not forget(federation, network(NAME), [TARGET], tmp_path, **FEDOSD).status.failed


@pytest.mark.filterwarnings("ignore:no retained client reports a loss, so no step is tried")
@pytest.mark.filterwarnings("ignore:the targets' own unlearning loss has hardly fallen")
def test_an_existing_app_checks_requests_in_its_handler(public, tmp_path):
    def federation() -> flower.ExistingApp:
        grid = nodes(public, existing(NAME))
        return flower.connect_existing(grid, network(NAME), clients=5, patience=QUICK)

    with warned("no-reply", says="site-1 failed with"), refused("missing_reply"):
        forget(federation(), network(NAME), [TARGET], tmp_path / "without", **FEDOSD)
    allowed = federation()
    authorise(allowed, document(), tmp_path / "with")
    assert not forget(allowed, network(NAME), [TARGET], tmp_path / "with", **FEDOSD).status.failed


def test_nodes_that_are_registered_without_a_name_are_known_by_their_keys(public):
    known = {key_id(KEYS[client][1]): f"hospital {client}" for client in CLIENTS}
    federation = flower.connect(nodes(public, names=()), network(NAME), clients=5, patience=QUICK, keys=known)
    assert federation.present() == {f"hospital {client}" for client in CLIENTS}


def test_a_client_that_is_not_online_cannot_be_authorised(tmp_path):
    with refused("absent", says="nobody is online under the name 'site-9'; known: "):
        connected(None).authorise(
            "site-9", document(), name=FEDERATION, model=network(NAME), folder=tmp_path, ledger=tmp_path
        )
