"""Batches drawn anew: when, and to the same bits on every engine, after a resume and in older folders."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from support.federations import forget, holdings, network, same
from support.flower_apps import connected
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import fedunlearn as fu
from fedunlearn.client.data import batches
from fedunlearn.core import Terms
from fedunlearn.core.seeds import generator
from fedunlearn.engines.flower.wire import Arrays, Head, pack_jobs, text, unpack_jobs
from fedunlearn.erasure.settings import DeskTraining
from fedunlearn.experiment import check, prepare
from fedunlearn.experiment.references import retraining
from fedunlearn.server.steps import Step

pytestmark = pytest.mark.filterwarnings("ignore:no client has a 'test' set")

X = torch.randn(25, 4, generator=generator("shuffled inputs"))
Y = torch.randint(0, 3, (25,), generator=generator("shuffled labels"))
SHUFFLED = Terms(batch_size=4, seed=(1, 0, 0), shuffle=True)


class Named(Dataset):
    def __len__(self) -> int:
        return 25

    def __getitem__(self, number: int) -> dict[str, Tensor]:
        return {"input": X[number], "labels": Y[number]}


def model() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))


def moved(data: object, terms: Terms, module: nn.Module | None = None) -> Tensor:
    module = module or model()
    replies = fu.Sequential(module, {"a": data}).exchange({"a": fu.train(fu.flatten(module))}, terms)
    assert replies["a"].statistics["train"]["loss"].count == 25 * terms.epochs
    return replies["a"].moved


def test_an_order_is_drawn_by_seed_client_phase_round_exchange_and_epoch():
    own = SHUFFLED.order("a", 0, 25)
    assert sorted(own.tolist()) == list(range(25)) != own.tolist()
    assert torch.equal(own, SHUFFLED.order("a", 0, 25))
    others = [SHUFFLED.order("b", 0, 25), SHUFFLED.order("a", 1, 25)]
    for change in ({"seed": (2, 0, 0)}, {"seed": (1, 1, 0)}, {"seed": (1, 0, 1)}, {"exchange": 1}):
        others.append(replace(SHUFFLED, **change).order("a", 0, 25))
    assert not any(torch.equal(own, other) for other in others)
    assert SHUFFLED.order("a", 0, 4) is None  # one batch
    assert Terms().order("a", 0, 900) is None


@pytest.mark.parametrize("epochs", [1, 2])
@pytest.mark.parametrize(
    "data",
    [{"input": X, "labels": Y}, TensorDataset(X, Y), Named(), (X.numpy(), Y.numpy())],
    ids=["dict", "dataset", "dataset of dicts", "arrays"],
)
def test_every_form_of_data_is_shuffled_alike(data, epochs):
    terms = replace(SHUFFLED, epochs=epochs)
    expected = moved((X, Y), terms)
    assert torch.allclose(moved(data, terms), expected, atol=1e-7)
    assert not torch.allclose(moved((X, Y), replace(terms, shuffle=False)), expected, atol=1e-4)


def test_one_example_that_is_left_joins_the_batch_before_and_batchnorm_trains():
    lengths = [len(batch.y) for batch in batches(fu.Examples(X, Y), 4, torch.arange(25))]
    assert lengths == [4, 4, 4, 4, 4, 5]
    assert [len(batch.y) for batch in batches(fu.Examples(X, Y), 1, torch.arange(25))] == [1] * 25
    assert [len(batch.y) for batch in batches(fu.Examples(X, Y), 4)] == [4] * 6 + [1]
    assert moved((X, Y), SHUFFLED, nn.Sequential(model(), nn.BatchNorm1d(3))).any()


def test_a_loader_that_shuffles_follows_the_seed_of_the_job():
    for own in (None, torch.Generator()):
        loader = DataLoader(TensorDataset(X, Y), batch_size=5, shuffle=True, generator=own)
        first = moved(loader, SHUFFLED)
        torch.manual_seed(99)
        assert torch.equal(moved(loader, SHUFFLED), first)
        assert not torch.equal(moved(loader, replace(SHUFFLED, seed=(1, 0, 1))), first)


@pytest.mark.parametrize("how", ["fedosd", "fast-retrain"])
def test_a_shuffled_run_ends_in_the_same_bits_everywhere(how):
    data = holdings("convolution")
    expected = forget(how, "convolution", fu.Sequential(network("convolution"), data), epochs=2)
    assert same(forget(how, "convolution", connected("convolution"), epochs=2), expected)
    with fu.Parallel(network("convolution"), data, workers=2) as engine:
        assert same(forget(how, "convolution", engine, epochs=2), expected)


def test_nodes_of_another_version_take_the_terms_as_they_know_them():
    jobs = {"a": ("", fu.train(fu.flatten(model())))}
    content = pack_jobs(jobs, SHUFFLED, Head("token", "model"), Arrays())
    assert unpack_jobs(content)[1] == SHUFFLED
    told = text(content, "jobs")
    assert told["terms"].keys() == asdict(Terms()).keys() - {"shuffle"}
    del told["shuffle"]
    content.config_records["jobs"]["json"] = json.dumps(told)
    assert unpack_jobs(content)[1] == replace(SHUFFLED, shuffle=False)


def server(folder: Path, shuffle: bool = True, **options: object) -> fu.Server:
    clients = {f"site-{number}": (X[number::3], Y[number::3]) for number in range(3)}
    training = fu.LocalTraining(batch_size=3, shuffle=shuffle)
    return fu.Server(model(), clients, folder=folder, training=training, workers=1, **options)


def interrupting(event: fu.Event) -> None:
    if event.metrics["elapsed"] == 3:
        raise KeyboardInterrupt


def test_a_server_shuffles_and_continues_to_the_same_bits(tmp_path):
    expected = server(tmp_path / "straight").train(6, 0.1).params
    assert not torch.equal(server(tmp_path / "fixed", shuffle=False).train(6, 0.1).params, expected)
    with pytest.raises(KeyboardInterrupt):
        server(tmp_path / "resumed", listeners=[interrupting]).train(6, 0.1)
    assert torch.equal(server(tmp_path / "resumed").train(6, 0.1).params, expected)


@pytest.mark.wording
def test_a_run_that_an_older_version_began_goes_on_unshuffled(tmp_path, monkeypatch):
    expected = server(tmp_path / "straight", shuffle=False).train(6, 0.1).params
    with monkeypatch.context() as older:
        ours = Step.config

        def without(self: Step, *given: object) -> dict[str, object]:
            config = ours(self, *given)
            del config["training"]["shuffle"]
            return config

        older.setattr(Step, "config", without)
        with pytest.raises(KeyboardInterrupt):
            server(tmp_path / "old", listeners=[interrupting]).train(6, 0.1)
    assert torch.equal(server(tmp_path / "old").train(6, 0.1).params, expected)
    again = server(tmp_path / "straight")
    said = r"does not repeat 0-train \(training.shuffle was False and is True\)"  # recorded: a setting
    with pytest.warns(UserWarning, match=said):
        assert not torch.equal(again.train(6, 0.1).params, expected)
    assert (tmp_path / "straight" / "1-train").exists()


def test_two_retrainings_that_start_alike_see_other_batches(tmp_path):
    for shuffle in (True, False):
        ours = server(tmp_path / str(shuffle), shuffle, build=model)
        ours.train(3, 0.1)
        rows = {f"r{number}": {"method": "retrain", "rounds": 3, "number": number} for number in (1, 2)}
        one, two = ours.compare("site-1", rows).values()
        assert torch.equal(one.params, two.params) is not shuffle


def test_experiments_shuffle_if_they_say_so_and_desks_unless_they_deny_it():
    plain, shuffled = (check({"training": values}, "test") for values in ({}, {"shuffle": True}))
    assert not prepare(plain).training.shuffle
    assert prepare(shuffled).training.shuffle
    assert "shuffle" not in plain.model_dump()["training"]
    assert check(shuffled.model_dump(), "test") == shuffled
    assert len({retraining(prepare(plain), number).identity for number in (1, 2)}) == 2
    assert fu.LocalTraining(**dict(DeskTraining())).shuffle
    assert "shuffle" not in DeskTraining().model_dump()  # older requests go on
    assert DeskTraining(shuffle=False).model_dump()["shuffle"] is False


def test_a_client_whose_labels_are_sorted_learns_as_if_they_were_mixed(tmp_path):
    x = torch.randn(900, 10, generator=generator("sorted labels"))
    y = x[:, :5].argmax(1)
    order = y[:600].argsort()
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 5))
    reached = {}
    for shuffle in (True, False):
        for name, train in (("mixed", (x[:600], y[:600])), ("sorted", (x[order], y[order]))):
            held = fu.ClientData(train, {"test": (x[600:], y[600:])})
            ours = fu.Server(
                network,
                {"a": held},
                folder=tmp_path / f"{name}-{shuffle}",
                training=fu.LocalTraining(batch_size=10, shuffle=shuffle),
                workers=1,
            )
            reached[name, shuffle] = ours.train(5, 0.5, evaluate_every=5).metrics[-1]["r_acc"]
    assert reached["sorted", False] < 0.75
    assert min(reached["mixed", False], reached["mixed", True], reached["sorted", True]) > 0.84
