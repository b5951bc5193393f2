"""Every kind of work gives the same bits on every engine, whatever the number of workers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import cycle

import pytest
import torch
from support.codes import refused, warned
from support.federations import forget, holdings, network, same
from torch import nn
from torch.utils.data import DataLoader, Dataset, RandomSampler

from fedunlearn import (
    Classification,
    ClientData,
    Examples,
    Job,
    Parallel,
    Replies,
    Sequential,
    Terms,
    flatten,
    train,
    work,
)
from fedunlearn.core import Reason, registry
from fedunlearn.core.vectors import buffers

WORKERS = (1, 2, 3)
TASK = Classification(input="x")


class Pairs(Dataset):
    def __init__(self, examples: Examples) -> None:
        self._examples = examples

    def __len__(self) -> int:
        return len(self._examples.y)

    def __getitem__(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self._examples.x[number], self._examples.y[number]


class Entries(Pairs):
    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        x, y = super().__getitem__(number)
        return {"x": x, "labels": y}


DATA = {
    "tensors": lambda examples: examples,
    "dict": lambda examples: {"x": examples.x, "labels": examples.y},
    "dataset": Pairs,
    "loader of dicts": lambda examples: DataLoader(Entries(examples), batch_size=3, shuffle=True),
}


def held(name: str, kind: str) -> dict[str, ClientData]:
    return {
        client: ClientData(
            DATA[kind](data.train), {set: DATA[kind](part) for set, part in data.evaluations.items()}
        )
        for client, data in holdings(name).items()
    }


def every_work(name: str) -> dict[str, Job]:
    """A job for each loss with plain steps and with another rule, for each rule, each work, and measuring."""
    params = flatten(network(name))
    arrays = {
        "teacher": params * 0.5,
        "centre": params * 0.9,
        "anchor": params * 1.1,
        "fisher": params.square(),
        "mask": params > 0,
        "origin": params * 0.8,
    }
    settings = {
        "clip": 1.0,
        "radius": 0.5 * float(params.norm()),
        "penalty": 10.0,
        "temperature": 2.0,
        "margin": 5.0,
        "proxies": 2,
    }
    losses, steps, works = (
        [entry.name for entry in names if not entry.name.startswith("test")]
        for names in (registry.loss, registry.step, registry.work)
    )
    pairs = {(loss, "plain") for loss in losses} | {("task", step) for step in steps}
    pairs |= set(zip(losses, cycle(step for step in steps if step != "plain"), strict=False))
    jobs = {
        f"train {loss}, {step}": train(params, loss, step, arrays=arrays, **settings)
        for loss, step in sorted(pairs)
    }
    return jobs | {work: Job(work, params, buffers={}) for work in ("measure", *works)}


def assert_identical(replies: Replies, expected: Replies) -> None:
    assert replies.keys() == expected.keys() != set()
    for client, reply in replies.items():
        other = expected[client]
        assert (reply.displacement is None) == (other.displacement is None)
        if reply.displacement is not None:
            assert reply.displacement.any()
            assert torch.equal(reply.displacement, other.displacement)
        assert reply.statistics == other.statistics
        assert reply.examples == other.examples
        for sent, wanted in ((reply.arrays, other.arrays), (reply.buffers, other.buffers)):
            assert sent.keys() == wanted.keys()
            assert all(torch.equal(value, wanted[key]) for key, value in sent.items())
            assert all(value.dtype == wanted[key].dtype for key, value in sent.items())


@pytest.mark.parametrize(
    ("name", "kind", "workers"),
    [
        ("perceptron", "tensors", 1),
        ("perceptron", "dict", 3),
        ("convolution", "tensors", 2),
        ("convolution", "dict", 3),
        ("convolution", "dataset", 2),
        ("convolution", "loader of dicts", 3),
        ("batch norm", "tensors", 3),
        ("calls view", "tensors", 2),
        ("counts and draws", "tensors", 1),
    ],
)
def test_worker_processes_change_no_bit_of_any_work(name, kind, workers):
    """The fused passes, dropout, buffers, a fixed memory layout, and a model that changes with every call."""
    oracle = Sequential(network(name), held(name, kind), task=TASK)
    with Parallel(network(name), held(name, kind), workers=workers, task=TASK) as engine:
        works = list(every_work(name).items())[:: 1 if kind == "tensors" else 3]  # the rest is not about data
        for number, (what, job) in enumerate(works):
            jobs, epochs = dict.fromkeys(("site-0", "site-2", "site-4"), job), 1 + number % 2
            terms = Terms(0.1, 0.9, epochs, batch_size=4, seed=(7, number), shuffle=number % 3 > 0)
            expected = oracle.exchange(jobs, terms)
            assert not expected.missing
            try:
                assert_identical(engine.exchange(jobs, terms), expected)
            except AssertionError as error:
                raise AssertionError(f"{what} with {epochs} epochs") from error


def test_the_data_may_come_in_any_form():
    """Tensors, dicts and datasets are batched alike; a loader brings its own batches."""
    job = train(flatten(network("convolution")))
    expected, *others = (
        Sequential(network("convolution"), held("convolution", kind), task=TASK)
        .exchange({"site-3": job}, Terms(batch_size=4))["site-3"]
        .displacement
        for kind in ("tensors", "dict", "dataset")
    )
    for other in others:
        assert torch.allclose(other, expected, atol=1e-6)


@pytest.mark.parametrize("how", ["fedosd", "ewcsga"])
@pytest.mark.parametrize("name", ["perceptron", "convolution", "batch norm", "lenet5"])
def test_a_whole_run_ends_in_the_same_bits(name, how):
    data, epochs = holdings(name, 4), 1 + (how == "ewcsga")
    expected = forget(how, name, Sequential(network(name), data), epochs=epochs)
    assert not expected.status.failed
    with Parallel(network(name), data, workers=2) as federation:
        assert same(forget(how, name, federation, epochs=epochs), expected)


@pytest.mark.parametrize("slow", ["site-0"])
def test_the_order_of_arrival_changes_no_bit(slow):
    model, data = network("mlp"), holdings("mlp")
    first = data[slow].train.x[0]
    model.register_forward_pre_hook(lambda _, x: time.sleep(0.03) if torch.equal(x[0][0], first) else None)
    with Parallel(model, data, workers=3) as federation:
        assert same(forget("fedosd", "mlp", federation), forget("fedosd", "mlp", Sequential(model, data)))


def test_jobs_may_differ_in_everything():
    data = holdings("batch norm")
    model = network("batch norm")
    jobs = {
        client: train(
            flatten(model) * (1 + number),
            "uce" if number % 2 else "task",
            arrays={"weight": torch.tensor(float(number)), "empty": torch.empty(0)},
            lr=0.1 / (1 + number),
            effort=(1 + number % 4) / 4,
        )
        for number, client in enumerate(data)
    }
    jobs = {
        client: Job(
            job.work,
            job.params,
            job.arrays,
            job.config,
            {name: value + number for name, value in buffers(model).items()},
        )
        for number, (client, job) in enumerate(jobs.items())
    }
    jobs["site-3"] = Job("measure", jobs["site-3"].params, buffers={})
    jobs["site-4"] = Job("layer_inputs", jobs["site-4"].params, buffers={})
    terms = Terms(epochs=3, batch_size=4, seed=(1, 2, 3), exchange=1)
    expected = Sequential(model, data).exchange(jobs, terms)
    with Parallel(model, data, workers=2) as federation:
        assert_identical(federation.exchange(jobs, terms), expected)


def test_a_client_that_is_not_here_is_reported_missing():
    model, data = network("perceptron"), holdings("perceptron")
    job = train(flatten(model))
    with Parallel(model, data, workers=2) as parallel:
        for federation in (Sequential(model, data), parallel):
            replies = federation.exchange({"site-1": job, "stranger": job})
            assert set(replies) == {"site-1"}
            assert replies.missing["stranger"].reason == "absent"


def test_reduced_precision_is_the_same_on_both_engines_and_not_that_of_float32():
    data = holdings("cnn", 4)
    plain, reduced = (Sequential(network("cnn"), data, precision=p) for p in ("fp32", "bf16"))
    expected = forget("fedosd", "cnn", reduced)
    with Parallel(network("cnn"), data, workers=2, precision="bf16") as federation:
        assert same(forget("fedosd", "cnn", federation), expected)
    gap = (expected.params - forget("fedosd", "cnn", plain).params).norm() / expected.params.norm()
    assert 0 < gap < 0.01


def test_a_work_of_ones_own_may_return_one_tensor_under_two_names():
    @work("test: twice", summary="test")
    def _twice(task, model, batches):
        seen = torch.arange(6.0).view(2, 3)
        return {"whole": seen, "again": seen, "turned": seen.T, "row": seen[1], "none": seen[:0]}

    model, data = network("perceptron"), holdings("perceptron")
    jobs = dict.fromkeys(data, Job("test: twice", flatten(model)))
    expected = Sequential(model, data).exchange(jobs)
    with Parallel(model, data, workers=2) as federation:
        replies = federation.exchange(jobs)
    assert_identical(replies, expected)
    assert all(len(reply.arrays) == 5 for reply in replies.values())


class Failing(Pairs):
    """Fails when it is read to the end, once its disk is gone."""

    gone = False

    def __getitem__(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        if self.gone and number == len(self) - 1:
            raise OSError("the disk is gone")
        return super().__getitem__(number)


def engines(name: str, data: dict[str, ClientData], **options) -> Iterator:
    yield Sequential(network(name), data, **options)
    for workers in WORKERS:
        with Parallel(network(name), data, workers=workers, **options) as federation:
            yield federation


@pytest.mark.parametrize("name", ["perceptron", "batch norm"])
def test_a_client_that_fails_is_missing_on_every_engine_and_the_others_answer(name, monkeypatch):
    """The data of one fails; of another, a batch of one example, where BatchNorm needs two."""
    data = holdings(name)
    data["site-1"] = ClientData(Failing(data["site-1"].train))
    job = train(flatten(network(name)))
    found = []
    for federation in engines(name, data):
        with monkeypatch.context() as later:
            later.setattr(Failing, "gone", True)
            with warned("no-reply", says=r"site-1 failed with OSError: the disk is gone .* missing"):
                found.append(federation.exchange(dict.fromkeys(data, job), Terms(batch_size=4)))
    monkeypatch.setattr(Failing, "gone", True)
    with refused("data", says=r"site-1, set 'train': it cannot be read, .*the disk is gone"):
        Sequential(network(name), data)
    for replies in found:
        assert_identical(replies, found[0])
        assert replies.keys() == data.keys() - replies.missing.keys()
        assert replies.missing == found[0].missing
        assert {failure.reason for failure in replies.missing.values()} == {Reason.FAILED}
        assert "(test_parity.py, line" in replies.missing["site-1"].detail
        assert all("\n" not in failure.detail for failure in replies.missing.values())


def test_a_batch_of_one_makes_a_client_with_batch_norm_missing():
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    data = holdings("mlp")
    jobs = dict.fromkeys(data, train(flatten(model)))
    for federation in (Sequential(model, data), parallel := Parallel(model, data, workers=2)):
        with warned("no-reply", says="failed with ValueError: Expected more than 1 value per channel"):
            replies = federation.exchange(jobs, Terms(batch_size=4))
        assert replies.missing.keys() == {"site-1", "site-3"}
    parallel.close()


def test_a_loss_that_nobody_knows_ends_the_run_on_every_engine():
    data = holdings("perceptron")
    job = train(flatten(network("perceptron")), "no such loss")
    for federation in engines("perceptron", data):
        with refused("unknown", says="unknown loss 'no such loss'"):
            federation.exchange(dict.fromkeys(data, job), Terms())


def test_loaders_that_start_processes_are_refused_where_clients_are_processes():
    data = holdings("perceptron")
    loader = DataLoader(Pairs(data["site-1"].train), num_workers=2)
    data["site-1"] = ClientData(data["site-1"].train, {"test": loader})
    with refused("invalid", says=r"site-1, set 'test': its DataLoader .*num_workers=0") as caught:
        Parallel(network("perceptron"), data, workers=2)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("owner", ["loader", "sampler"])
def test_a_loader_with_a_generator_of_its_own_follows_the_seed_of_the_job(owner):
    """Neither the engine nor what the generator drew before, as after a restart, may matter."""

    def loader(examples: Examples) -> DataLoader:
        random, pairs = torch.Generator().manual_seed(5), Pairs(examples)
        if owner == "loader":
            return DataLoader(pairs, batch_size=2, shuffle=True, generator=random)
        return DataLoader(pairs, batch_size=2, sampler=RandomSampler(pairs, generator=random))

    data = {c: ClientData(loader(held.train)) for c, held in holdings("perceptron").items()}
    jobs = dict.fromkeys(data, train(flatten(network("perceptron"))))
    found = [
        federation.exchange(jobs, Terms(seed=seed))
        for federation in engines("perceptron", data)
        for seed in ((1,), (2,), (1,))
    ]
    for first, other, again in zip(found[::3], found[1::3], found[2::3], strict=True):
        assert_identical(first, found[0])
        assert_identical(again, found[0])
        assert not torch.equal(other["site-4"].moved, first["site-4"].moved)
