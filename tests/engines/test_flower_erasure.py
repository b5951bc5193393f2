"""The whole way of an erasure request on Flower: a desk in the ServerApp, keys of the SuperNodes."""

from __future__ import annotations

import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from flwr.app import Context, RecordDict
from flwr.clientapp import ClientApp
from safetensors.torch import load_file
from support.codes import refused, warned
from support.erasures import controller_key, public_key
from support.federations import holdings, network
from support.flower_apps import FIRST, QUICK, Registered, existing, new_keys
from torch import nn

import fedunlearn as fu
from fedunlearn import ClientData, Sequential, request_erasure
from fedunlearn.core import Authorising, Federation, State
from fedunlearn.data import load as load_images
from fedunlearn.engines import flower, join
from fedunlearn.erasure import (
    Case,
    Claim,
    Desk,
    RequestState,
    against_retraining,
    erase,
    open_desk,
    plan_erasure,
    purge,
    receive,
    verify,
)
from fedunlearn.runs import read_metrics, read_tensors
from fedunlearn.signing import Refusal

EXAMPLE = Path(__file__).parents[2] / "examples" / "flower" / "erasure"
SITES = [f"site-{number}" for number in range(3)]
KEYS = {site: new_keys() for site in SITES}
TARGET = "site-2"
TRAINING = fu.LocalTraining(epochs=5, batch_size=20, decay=1.0)
SETTINGS = """
federation = "hospitals"
smallest = 32
controller_key = "controller.key"
model = "model.safetensors"
method = "fedosd"
[schedule]
unlearn_rounds = 3
unlearn_lr = 0.05
recover_rounds = 2
recover_lr = 0.05
pretrain_lr = 0.1
[training]
epochs = 5
batch_size = 20
decay = 1.0
[clients]
"""
pytestmark = [
    # True of few examples, and not the subject here.
    pytest.mark.filterwarnings("ignore:a step of unlearning was halved"),
    pytest.mark.filterwarnings("ignore:a step of unlearning was longer than 10% of the model, and cut"),
]


def build() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, 8), nn.ReLU(), nn.Linear(8, 10))


def held(number: int) -> ClientData:
    """A hundred images to learn, and others to test and to audit with."""
    images = load_images("fashion-demo").train
    x, y = images.x[number::3], images.y[number::3]
    sets = {"test": (x[100:150], y[100:150]), "audit": (x[150:250], y[150:250])}
    return ClientData((x[:100], y[:100]), sets)


def client_app() -> ClientApp:
    app = ClientApp()
    flower.serve(app, lambda context: flower.Site(build(), held(int(context.node_config["partition-id"]))))
    return app


def nodes(folder: Path, app: ClientApp | None = None, names: Sequence[str] = SITES) -> Registered:
    """Nodes that demand a request signed with their own key before they forget."""
    configs = [
        {"partition-id": number, "erasure-key": str(folder / "clients" / f"{site}.pub")}
        for number, site in enumerate(SITES)
    ]
    keys = [public for _, public in KEYS.values()]
    return Registered(app or client_app(), configs, names=names, keys=keys)


def connected(folder: Path) -> flower.FlowerFederation:
    return flower.connect(nodes(folder), build(), clients=3, patience=QUICK)


@pytest.fixture(scope="module")
def model() -> nn.Module:
    """The model in production."""
    federation = Sequential(build(), {site: held(number) for number, site in enumerate(SITES)})
    request = fu.Request(fu.flatten(build()), tuple(SITES), ())
    trained, module = fu.pretrain(request, federation, 4, 0.1, training=TRAINING), build()
    fu.core.vectors.load(module, State(trained.params))
    return module


def new_desk(folder: Path, settings: str = SETTINGS) -> Path:
    (folder / "clients").mkdir(parents=True)
    (folder / "controller.key").write_bytes(controller_key())
    for site, (_, public) in KEYS.items():
        (folder / "clients" / f"{site}.pub").write_bytes(public)
    listed = "\n".join(f'"{site}" = "clients/{site}.pub"' for site in SITES)
    (folder / "desk.toml").write_text(f"{settings}{listed}\n")
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return new_desk(tmp_path / "desk")


def signed(model: nn.Module, client: str = TARGET, key: str | None = None, **options: Any) -> str:
    return request_erasure(client, "hospitals", fu.module_hash(model), KEYS[key or client][0], **options)


def copy_of(model: nn.Module) -> nn.Module:
    module = build()
    module.load_state_dict(model.state_dict())
    return module


def answered(
    desk: Desk,
    request: str,
    federation: Federation,
    model: nn.Module,
    listener: Callable[[Any], None] = lambda event: None,
    **options: Any,
) -> Case:
    auditor = against_retraining(desk, request, federation, model, rounds=4)
    return erase(desk, request, federation, copy_of(model), auditor=auditor, listeners=[listener], **options)


class Crash(Exception):
    """Ends a run at any point."""


def crash_at(number: int) -> Callable[[Any], None]:
    """A listener that crashes after so many rounds; unlearning has three, and recovery two."""

    def listener(event: Any) -> None:
        if event.metrics["elapsed"] == number:
            raise Crash

    return listener


@pytest.fixture(scope="module")
def expected(model: nn.Module, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The hash of the model after, on the sequential engine."""
    desk = open_desk(new_desk(tmp_path_factory.mktemp("sequential") / "desk"))
    case = receive(desk, signed(model), fu.module_hash(model))
    federation = Sequential(build(), {site: held(number) for number, site in enumerate(SITES)})
    return str(after(answered(desk, case.id, federation, model)))


def after(case: Case) -> str:
    return str(case.entries[-1].fields["model"])


def predicate(desk: Desk, case: Case) -> Any:
    document = (desk.place(case.id) / "certificate.json").read_text()
    return verify(document, public_key(), ledger=desk.folder / "ledger.jsonl").predicate


def test_a_request_ends_in_the_same_model_as_a_simulated_one(folder, model, expected):
    desk, federation = open_desk(folder), connected(folder)
    assert plan_erasure(desk, TARGET, federation, model).ready
    case = answered(
        desk, receive(desk, signed(model), fu.module_hash(model)).id, federation, model, engine="flower"
    )
    assert after(case) == expected
    assert federation.authorised == TARGET
    told = predicate(desk, case)
    assert told.procedure.engine == "flower"
    assert told.model_before.sha256 == fu.module_hash(model)
    assert told.model_after.sha256 == expected


def test_retraining_in_the_federation_makes_a_verdict_possible(folder, model):
    desk, federation = open_desk(folder), connected(folder)
    case = answered(desk, receive(desk, signed(model)).id, federation, model)
    told = predicate(desk, case)
    assert told.claim.claim is not Claim.PROCESS_ONLY
    measured = {str(entry.measure) for entry in told.evidence.entries}
    assert {"auc", "auc-before", "retained-accuracy"} <= measured
    assert "retrained-models" in {str(each.what) for each in told.retention.to_delete}
    models = sorted((desk.place(case.id) / "retrained").glob("*/*/model.safetensors"))
    assert [path.parent.parent.name for path in models] == ["1", "2"]
    first, second = (read_tensors(path, desk.key(case.id))[0] for path in models)
    assert any(not torch.equal(first[name], second[name]) for name in first)
    with refused("damaged"):
        read_tensors(models[0])
    rounds = [row for path in models for row in read_metrics(path.parent) if row["round"]]
    assert len(rounds) == 8
    assert all(row["bytes_down"] == row["bytes_up"] for row in rounds)  # no step is tried, as in training
    purge(desk, case.id)
    assert not (desk.place(case.id) / "retrained").exists()


def test_without_retraining_the_claim_is_about_the_process(folder, model):
    desk, federation = open_desk(folder), connected(folder)
    case = erase(desk, receive(desk, signed(model)).id, federation, copy_of(model))
    assert predicate(desk, case).claim.claim is Claim.PROCESS_ONLY


@pytest.mark.parametrize("number", [1, 3, 5])
def test_a_run_that_is_submitted_again_continues(number, folder, model, expected):
    document = signed(model)
    case = receive(open_desk(folder), document, fu.module_hash(model))
    with pytest.raises(Crash):
        answered(open_desk(folder), case.id, connected(folder), model, crash_at(number))
    desk = open_desk(folder)
    again = receive(desk, document, fu.module_hash(model))
    assert again.id == case.id
    asked: list[int] = []
    ended = answered(desk, case.id, connected(folder), model, lambda event: asked.append(1))
    assert after(ended) == expected
    assert len(asked) == 5 - number
    assert len([entry for entry in ended.entries if entry.event == "unlearning"]) == 1


def test_an_audit_that_is_interrupted_continues(folder, model, expected, monkeypatch):
    desk = open_desk(folder)
    case = receive(desk, signed(model), fu.module_hash(model))
    federation = connected(folder)

    def gone(*arguments: Any, **options: Any) -> None:
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr("fedunlearn.erasure.retraining.audit", gone)
        with pytest.raises(Crash):
            answered(desk, case.id, federation, model)
    made = {path: path.stat().st_mtime_ns for path in desk.place(case.id).glob("retrained/*/*/model.*")}
    assert len(made) == 2
    ended = answered(open_desk(folder), case.id, connected(folder), model)
    assert after(ended) == expected
    assert {path: path.stat().st_mtime_ns for path in made} == made


def test_a_request_that_was_in_time_is_answered_after_it_has_expired(folder, model, expected):
    """Nodes that check requests themselves go by their own clocks; these do not."""
    then = time.time() - 10 * 24 * 3600
    grid = Registered(
        client_app(),
        [{"partition-id": number} for number in range(3)],
        names=SITES,
        keys=[public for _, public in KEYS.values()],
    )
    early = open_desk(folder, clock=lambda: then + 60)
    case = receive(early, signed(model, now=then), fu.module_hash(model))
    federation = flower.connect(grid, build(), clients=3, patience=QUICK)
    assert after(answered(open_desk(folder), case.id, federation, model)) == expected
    with refused("expired") as caught:
        receive(open_desk(folder), signed(model, "site-1", now=then), fu.module_hash(model))
    assert caught.value.reason is Refusal.EXPIRED


def test_a_node_that_checks_requests_refuses_one_that_has_expired(folder, model):
    then = time.time() - 10 * 24 * 3600
    case = receive(open_desk(folder, clock=lambda: then + 60), signed(model, now=then))
    with warned("no-reply", says="refused the job: the request has expired"):
        ended = answered(open_desk(folder), case.id, connected(folder), model)
    assert ended.state is RequestState.PARTIAL


def test_a_request_about_a_model_of_the_past_is_answered(folder, model, expected):
    """A client cannot know that another request has changed the model since it signed."""
    desk, document = open_desk(folder), signed(model, "site-1")
    answered(desk, receive(desk, signed(model), fu.module_hash(model)).id, connected(folder), model)
    now = build()
    now.load_state_dict(load_file(folder / "model.safetensors"))
    assert fu.module_hash(now) == expected != fu.module_hash(model)
    federation = connected(folder)
    erase(desk, receive(desk, document, expected).id, federation, now)
    assert federation.authorised == "site-1"


def test_nobody_can_ask_in_the_name_of_another(folder, model):
    desk = open_desk(folder)
    with refused("unknown-key") as caught:
        receive(desk, signed(model, TARGET, key="site-1"), fu.module_hash(model))
    assert caught.value.reason is Refusal.UNKNOWN_KEY


def test_the_desk_and_the_federation_must_know_the_same_key(folder, model, expected):
    """A SuperNode was registered with a new key, and the desk still has the old one."""
    desk, grid = open_desk(folder), nodes(folder)
    renewed = new_keys()
    grid.keys[2] = renewed[1]
    case = receive(desk, signed(model), fu.module_hash(model))
    federation = flower.connect(grid, build(), clients=3, patience=QUICK)
    with refused("unknown-key", says="signed with another key") as caught:
        answered(desk, case.id, federation, model)
    assert caught.value.code == "unknown-key"
    assert desk.case(case.id).state is RequestState.AUTHENTICATED
    assert not (desk.place(case.id) / "run").exists()
    assert after(answered(desk, case.id, connected(folder), model)) == expected


def test_a_node_that_is_not_registered_cannot_be_forgotten(folder, model):
    desk, app = open_desk(folder), ClientApp()

    def load(context: Context) -> flower.Site:
        number = int(context.node_config["partition-id"])
        return flower.Site(build(), held(number), name=f"site-{number}")

    flower.serve(app, load)
    federation = flower.connect(nodes(folder, app, names=()), build(), clients=3, patience=QUICK)
    case = receive(desk, signed(model), fu.module_hash(model))
    with refused("client", says="told its name itself"):
        answered(desk, case.id, federation, model)


def test_a_client_that_is_gone_is_forgotten_without_it(tmp_path, model):
    folder = new_desk(tmp_path / "desk", SETTINGS.replace("fedosd", "fast-retrain"))
    desk, grid = open_desk(folder), nodes(folder)
    case = receive(desk, signed(model), fu.module_hash(model))
    grid.gone.add(FIRST + 2)
    federation = flower.connect(grid, build(), clients=2, patience=QUICK)
    with refused("absent", says="nobody is online under the name 'site-2'"):
        answered(desk, case.id, federation, model)
    ended = answered(desk, case.id, federation, model, gone=True)
    assert ended.state is RequestState.CERTIFIED
    assert predicate(desk, ended).claim.claim is Claim.PROCESS_ONLY


def test_a_federation_with_a_local_member_is_shown_the_request(folder, model, expected):
    desk, federation = open_desk(folder), connected(folder)
    joined = join(federation, Sequential(build(), {"house": held(0).evaluations["test"]}))
    case = receive(desk, signed(model), fu.module_hash(model))
    erase(desk, case.id, joined, copy_of(model))
    assert federation.authorised == joined.authorised == TARGET
    simulated = (Sequential(build(), {site: held(number)}) for number, site in enumerate(SITES[:2]))
    assert not isinstance(join(*simulated), Authorising)


@pytest.mark.filterwarnings("ignore:no retained client reports a loss, so no step is tried")
def test_an_app_with_its_own_training_is_certified_for_the_process(tmp_path):
    settings = SETTINGS.replace("fedosd", "fast-retrain").replace("smallest = 32", "smallest = 0")
    folder = new_desk(tmp_path / "desk", settings)
    desk, own = open_desk(folder), network("perceptron")
    grid = nodes(folder, existing("perceptron"))
    federation = flower.connect_existing(grid, own, clients=3, patience=QUICK)
    case = receive(desk, signed(own), fu.module_hash(own))
    with warned("not-audited", says="the model was not audited: these clients cannot be audited"):
        ended = erase(desk, case.id, federation, own)
    assert ended.state is RequestState.CERTIFIED
    assert federation.authorised == TARGET
    assert predicate(desk, ended).claim.claim is Claim.PROCESS_ONLY


@pytest.mark.filterwarnings("ignore:no retained client reports a loss, so no step is tried")
def test_an_app_with_its_own_training_is_audited_where_it_also_serves(tmp_path):
    """Its sites train with their own code, and answer the questions of an audit with ours."""
    settings = SETTINGS.replace("fedosd", "retrain").replace("smallest = 32", "smallest = 0")
    desk, own = open_desk(new_desk(tmp_path / "desk", settings)), network("perceptron")
    app, data = existing("perceptron"), holdings("perceptron")

    def site(context: Context) -> flower.Site:
        held = data[f"site-{context.node_config['partition-id']}"]
        return flower.Site(network("perceptron"), fu.ClientData(held.train, {"audit": held.train}))

    flower.serve(app, site)
    grid = nodes(desk.folder, app)
    federation = flower.connect_existing(grid, own, clients=3, patience=QUICK)
    served = flower.connect(grid, own, clients=3, patience=QUICK)

    retrained = network("perceptron")
    fu.core.vectors.load(retrained, State(fu.flatten(own) * 0.5))

    def auditor(after: State, before: State) -> fu.Evidence:
        return fu.audit(served, after, targets=TARGET, retrained=retrained, original=before)

    case = receive(desk, signed(own), fu.module_hash(own))
    ended = erase(desk, case.id, federation, own, auditor=auditor)
    assert ended.state is RequestState.CERTIFIED
    assert predicate(desk, ended).claim.claim is not Claim.PROCESS_ONLY


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[ModuleType, ModuleType]]:
    """The modules of the example: server and client."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    from desk_app import client_app, server_app

    yield server_app, client_app
    for name in [name for name in sys.modules if name.startswith("desk_app")]:
        del sys.modules[name]


def test_the_example(app, tmp_path, capsys):
    server_app, example_client = app
    folder, request = tmp_path / "desk", tmp_path / "request.json"
    new_desk(folder)
    for site in SITES:
        (folder / "clients" / f"{site}.pub").rename(folder / "clients" / f"{site}.key.pub")
    shutil.copy(EXAMPLE / "desk.toml", folder)
    configs = [{"partition-id": number} for number in range(3)]
    keys = [public for _, public in KEYS.values()]

    def run(mode: str) -> str:
        config = {"desk": str(folder), "mode": mode, "request": str(request), "clients": 3}
        grid = Registered(example_client.app, configs, names=SITES, keys=keys, run_config=config)
        context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=config)
        server_app.app(grid, context)
        return capsys.readouterr().out

    before = run("train").split()[1]
    request.write_text(request_erasure(TARGET, "hospitals", before, KEYS[TARGET][0]))
    assert "Evidence: at most BEHAVIOURALLY_EQUIVALENT." in run("plan")
    assert not (folder / "ledger.jsonl").exists()
    for _ in range(2):  # answered, and told again
        assert "is purged" in run("erase")
    desk = open_desk(folder)
    (case,) = desk.cases()
    certificate = predicate(desk, case)
    assert certificate.claim.claim is Claim.BEHAVIOURALLY_EQUIVALENT
    assert certificate.model_before.sha256 == before
    assert sorted(path.name for path in desk.place(case.id).iterdir()) == [
        "certificate.html",
        "certificate.json",
        "model.safetensors",
        "purge.json",
    ]


@pytest.mark.parametrize("name", ["desk.toml", "server_app.py"])
def test_the_page_shows_the_example(name):
    page = (EXAMPLE.parents[2] / "docs" / "erasure" / "flower.md").read_text()
    shown = re.findall(rf'^```\w+ title="{re.escape(name)}"\n(.*?)^```$', page, re.MULTILINE | re.DOTALL)
    assert shown == [next(EXAMPLE.rglob(name)).read_text()]
