"""Mistakes that newcomers make: each is refused, or warned of, in a sentence that names what they typed."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.codes import refused, warned
from torch import nn

import fedunlearn as fu
from fedunlearn.core.seeds import generator
from fedunlearn.data import load
from fedunlearn.driver.endings import worse

pytestmark = [
    pytest.mark.filterwarnings("ignore:the loss on the data to be forgotten has hardly risen"),
    pytest.mark.filterwarnings("ignore:these clients were never heard"),
    pytest.mark.filterwarnings("ignore:no page is written"),
]

SHORT = fu.Schedule(2, 0.05, 2, 0.05)
RETRAIN: dict[str, Any] = {"method": "retrain", "rounds": 4}


def ward(number: int, tests: int = 40) -> fu.ClientData:
    random = generator("first use", number)
    x = torch.randn(40 + tests, 6, generator=random)
    y = (x[:, 0] > 0).long()
    return fu.ClientData((x[:40], y[:40]), {"test": (x[40:], y[40:])})


def wards(**others: fu.ClientData) -> dict[str, fu.ClientData]:
    return {**{f"c{number}": ward(number) for number in range(4)}, **others}


def network() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))


def server(folder: Path, clients: Any = None, model: nn.Module | None = None, **options: Any) -> fu.Server:
    options = {"training": fu.LocalTraining(batch_size=10), "workers": 1, **options}
    return fu.Server(model or network(), clients or wards(), folder=folder, **options)


def trained(folder: Path, clients: Any = None) -> fu.Server:
    ours = server(folder, clients)
    ours.train(4, 0.3)
    return ours


def reordered() -> fu.ClientData:
    whole = ward(3)
    return fu.ClientData(whole.train.take(torch.arange(39, -1, -1)), whole.evaluations)


def grown() -> fu.ClientData:
    x, y = (torch.cat(parts) for parts in zip(ward(9).train, ward(3).train, strict=True))
    return fu.ClientData((x, y), ward(3).evaluations)


@pytest.mark.parametrize("other", [reordered, grown])
def test_positions_are_taken_in_the_data_of_training_alone(tmp_path, other):
    trained(tmp_path)
    ours = server(tmp_path, wards(c3=other()))
    for call in (
        lambda: ours.forget(examples={"c3": [1, 2]}, **RETRAIN),
        lambda: ours.compare(examples={"c3": [1, 2]}, rows={"retrain": {}}),
    ):
        with refused("changed", says=r"data of 'c3' is not that of 0-train, .*or train on it first"):
            call()
    assert not list(tmp_path.glob("1-*"))
    ours.train(2, 0.1)
    assert ours.forget(examples={"c3": [1, 2]}, floor=None, **RETRAIN).targets[0].startswith("c3#")
    again = server(tmp_path, wards(c3=other()))
    assert again.forget(examples={"c3": [3]}, floor=None, **RETRAIN).targets[0].startswith("c3#")


def test_positions_in_what_was_left_are_taken_too(tmp_path):
    trained(tmp_path).forget(examples={"c3": [0, 1]}, floor=None, **RETRAIN)
    left = fu.ClientData(ward(3).train.take(torch.arange(2, 40)), ward(3).evaluations)
    outcome = server(tmp_path, wards(c3=left)).forget(examples={"c3": [0]}, floor=None, **RETRAIN)
    (step,) = tmp_path.glob("2-forget-*")
    assert json.loads((step / "experiment.json").read_text())["request"]["examples"] == {
        outcome.targets[0]: [0]
    }


def test_forgotten_examples_cannot_join_anew(tmp_path):
    ours = trained(tmp_path)
    (part,) = ours.forget(examples={"c3": [0, 1]}, floor=None, **RETRAIN).targets
    with refused("unsuitable", says=f"'{part}' is a name of examples that were forgotten"):
        ours.rejoin(part)
    assert ours.forgotten == (part,)
    with refused("forgotten", says="'c3': position 1 has been forgotten already"):
        ours.forget(examples={"c3": [1, 5]}, **RETRAIN)


def test_an_audit_of_a_model_that_was_trained_further_is_refused(tmp_path):
    ours = trained(tmp_path)
    ours.forget("c1", floor=None, **RETRAIN)
    ours.audit()
    evidence = next(tmp_path.glob("1-forget-*/evidence.json"))
    before = evidence.read_bytes()
    ours.train(2, 0.1)
    with refused("other-model", says="has been trained further since c1 left it: audit right"):
        ours.audit()
    assert evidence.read_bytes() == before


def test_an_audit_of_a_client_that_has_left_is_refused_before_anything_is_trained(tmp_path):
    trained(tmp_path).forget("c1", floor=None, gone=True, **RETRAIN)
    left = {name: data for name, data in wards().items() if name != "c1"}
    with refused("absent", says=r"'c1' is not present, .*: give its data to audit$"):
        server(tmp_path, left).audit()
    assert not list(tmp_path.glob("*compare*"))


@pytest.mark.filterwarnings("ignore:this call repeats", "ignore:this script repeats")
def test_a_call_that_is_refused_leaves_no_trace(tmp_path):
    def script(*mistakes: Callable[[fu.Server], object]) -> str:
        ours = server(tmp_path)
        ours.train(4, 0.3)
        for mistake in mistakes:
            with refused("diverged", "history", "invalid", "not-forgotten", "unknown", "unsuitable"):
                mistake(ours)
        ours.forget("c1", floor=None, **RETRAIN)
        ours.rejoin("c1")
        ours.train(2, 0.1)
        return fu.module_hash(ours.model)

    first = script()
    again = script(
        lambda ours: ours.forget("c11"),
        lambda ours: ours.forget("c1", "retrian"),
        lambda ours: ours.forget("c2", "federaser"),
        lambda ours: ours.forget(examples={"c2": [99]}),
        lambda ours: ours.compare("c11", ["retrain"]),
        lambda ours: ours.train(3, 1e30),
        lambda ours: ours.rejoin("c11"),
    )
    assert again == first
    steps = json.loads((tmp_path / "server.json").read_text())
    assert [step["kind"] for step in steps] == ["train", "forget", "rejoin", "train"]


def test_joining_anew_twice_is_joining_anew_once(tmp_path):
    trained(tmp_path).forget("c1", floor=None, **RETRAIN)
    for _ in range(2):
        ours = server(tmp_path)
        ours.rejoin("c1")
        ours.rejoin("c1")
        assert "c1" in ours.clients
    assert len(json.loads((tmp_path / "server.json").read_text())) == 3
    with refused("not-forgotten", says="'c1' has joined anew, but has not trained since"):
        ours.forget("c1", **RETRAIN)
    ours.forget("c2", floor=None, **RETRAIN)
    with refused("not-forgotten", says=r"'c2x' has not been forgotten here.*did you mean 'c2'"):
        ours.rejoin("c2x")


def test_what_a_method_needs_is_named_with_the_call_that_gives_it(tmp_path):
    ours = trained(tmp_path)
    for method, call in (("federaser", r'history=\["norms"\]'), ("knot", "clusters=2"), ("sisa", "slices=2")):
        with refused("history", says=rf"{method} needs .* server\.train\(…, {call}"):
            ours.forget("c1", method)
    with refused("invalid", says="rows names no method: give several"):
        ours.compare("c1", schedule=SHORT)


@pytest.mark.wording
@pytest.mark.filterwarnings("default")
def test_a_warning_points_at_the_line_that_called(tmp_path):
    wild = fu.ClientData((torch.full((40, 6), 1e30), ward(0).train.y), {})
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        federation = fu.Sequential(network(), {"c0": ward(0), "c1": ward(1), "c2": ward(2), "c3": wild})
        elsewhere = fu.Server(network(), federation, folder=tmp_path / "elsewhere")
        elsewhere.train(1, 0.3)
        fu.forget(federation, network(), "c0", without=["c9"], method="retrain", rounds=1, floor=None)
        ours = trained(tmp_path / "ours")
        ours.compare("c1", {"retrain": {"rounds": 1}, "not": {}}, SHORT)
        ours.forget("c1", "not", SHORT, floor=None)
        ours = server(tmp_path / "ours")
        ours.train(1, 1e-9)
    assert len(found) > 5
    assert {each.filename for each in found} == {__file__}
    assert any("(row 'retrain')" in str(each.message) for each in found)


@pytest.mark.parametrize(("size", "raises"), [(1, False), (40, True)])
def test_a_client_with_one_test_example_does_not_decide_alone(tmp_path, size, raises):
    heard: list[fu.Event] = []
    clients = wards(c0=ward(0, tests=size))
    server(tmp_path, clients, listeners=[heard.append]).train(1, 0.1)
    guarded = heard[-1].progress.guarded
    assert guarded.tests == {"c0": size, "c1": 40, "c2": 40, "c3": 40}
    first = {"r_acc": 1.0, **{f"r_acc {client}": 1.0 for client in clients}}
    told, harmed = worse(replace(guarded, started=first), {**first, "r_acc": 0.75, "r_acc c0": 0.0}, 0.1)
    assert harmed == raises
    assert ("c0 lost most, 0.000 after 1.000 on 40 test examples" in told) == raises


def test_batches_of_one_are_refused_where_the_model_cannot_train_on_them(tmp_path):
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    ours = server(tmp_path, model=model, training=fu.LocalTraining(batch_size=1))
    with refused("invalid", says=r"batch of one example .*LocalTraining\(batch_size=…\)$"):
        ours.train(1, 0.1)
    assert not list(tmp_path.rglob("metrics.jsonl"))
    server(tmp_path, training=fu.LocalTraining(batch_size=1)).train(1, 0.1)


@pytest.mark.wording
@pytest.mark.parametrize(("scale", "lr", "warned"), [(1, 3.0, True), (255, 0.1, True), (1, 0.1, False)])
def test_a_model_that_predicts_one_class_is_warned_of(tmp_path, scale, lr, warned):
    data = load("fashion-demo", fraction=0.2)
    sites = {}
    for n in range(4):
        train, test = (each.take(torch.arange(n, len(each.y), 4)) for each in (data.train, data.test))
        sites[f"c{n}"] = fu.ClientData((scale * train.x, train.y), {"test": (scale * test.x, test.y)})
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(784, 32), nn.ReLU(), nn.Linear(32, 10))
    ours = server(tmp_path, sites, model, training=fu.LocalTraining(batch_size=20))
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        ours.train(5, lr)
    assert any("predicts the same class for all examples" in str(each.message) for each in found) == warned


def test_a_comparison_trains_as_long_as_training_unless_a_row_says_otherwise(tmp_path):
    ours = trained(tmp_path)
    rows = {"retrain": {}, "short": {"method": "retrain", "rounds": 2}}
    ours.compare("c1", rows, SHORT)
    told = {
        row: json.loads(next(tmp_path.rglob(f"{row}/experiment.json")).read_text())["options"] for row in rows
    }
    assert told == {"retrain": {"rounds": 4}, "short": {"rounds": 2}}


def test_a_rate_at_which_the_loss_only_rises_is_warned_of(tmp_path):
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))
    with warned("not-better", says="training has not made the model better"):
        server(tmp_path, model=model).train(5, 1e4)


def test_the_folder_of_another_federation_is_refused(tmp_path):
    trained(tmp_path)
    others = {f"ward-{number}": ward(number) for number in range(4)}
    with refused("occupied", says="0-train was made with c0, c1, c2, c3, none of which is here"):
        server(tmp_path, others)
