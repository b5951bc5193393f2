"""Every method ends in the same bits on every engine, whatever the number of workers."""

from __future__ import annotations

import time
from contextlib import ExitStack
from functools import cache

import pytest
import torch
from federations import SHAPES, SMALL, forget, holdings, network, same

from fedunlearn import Job, Outcome, Parallel, Sequential, flatten, method, objective
from fedunlearn.core.vectors import buffers
from fedunlearn.objectives import Minimise

METHODS = [entry.name for entry in method]


@cache
def oracle(how: str, name: str, rounds: int = 2) -> Outcome:
    return forget(how, name, Sequential(network(name), holdings(name, public=True)), rounds)


@pytest.fixture(scope="module")
def engine():
    """An engine for each model and number of workers, which all methods use one after the other."""
    with ExitStack() as engines:
        yield cache(
            lambda name, workers: engines.enter_context(
                Parallel(network(name), holdings(name, public=True), workers=workers)
            )
        )


@pytest.mark.parametrize("how", METHODS)
@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_worker_processes_change_no_bit(engine, workers, name, how):
    expected = oracle(how, name)
    assert not expected.status.failed
    assert same(forget(how, name, engine(name, workers)), expected)


@pytest.mark.parametrize("how", ["fedosd", "ewcsga"])
@pytest.mark.parametrize("name", SHAPES)
def test_worker_processes_change_no_bit_of_any_model(engine, name, how):
    assert same(forget(how, name, engine(name, 2), rounds=1), oracle(how, name, rounds=1))


@pytest.mark.parametrize("goal", ["fisher", "layer_inputs"])
@pytest.mark.parametrize("name", [*SMALL, *SHAPES])
def test_uploads_are_the_same_to_the_bit_on_every_engine(engine, name, goal):
    model, data = network(name), holdings(name, public=True)
    job = Job(flatten(model), goal, epochs=0, batch_size=4, seed=7)
    jobs = {"site-1": job, "site-3": job}
    expected = Sequential(model, data).train(jobs)
    replies = engine(name, 2).train(jobs)
    for client, reply in replies.items():
        assert reply.arrays.keys() == expected[client].arrays.keys() != set()
        for key, array in reply.arrays.items():
            assert array.dtype == expected[client].arrays[key].dtype
            assert torch.equal(array, expected[client].arrays[key])
        assert not reply.displacement.any()


@pytest.mark.parametrize("slow", ["site-0", "site-2", "site-4"])
def test_the_order_of_arrival_changes_no_bit(slow):
    model, data = network("mlp"), holdings("mlp")
    first = data[slow].train.x[0]
    model.register_forward_pre_hook(lambda _, x: time.sleep(0.1) if torch.equal(x[0][0], first) else None)
    with Parallel(model, data, workers=3) as federation:
        assert same(forget("fedosd", "mlp", federation), forget("fedosd", "mlp", Sequential(model, data)))


def test_jobs_may_differ_in_everything():
    data = holdings("batch norm")
    model = network("batch norm")
    jobs = {
        client: Job(
            flatten(model) * (1 + number),
            "uce" if number % 2 else "cross_entropy",
            arrays={"weight": torch.tensor(float(number)), "empty": torch.empty(0)},
            buffers={name: value + number for name, value in buffers(model).items()},
            lr=0.1 / (1 + number),
            epochs=1 + number,
            batch_size=2 + number,
            seed=number,
        )
        for number, client in enumerate(data)
    }
    expected = Sequential(model, data).train(jobs)
    with Parallel(model, data, workers=2) as federation:
        replies = federation.train(jobs)
    for client, reply in replies.items():
        assert torch.equal(reply.displacement, expected[client].displacement)
        assert reply.metrics == expected[client].metrics
        assert reply.examples == expected[client].examples
        assert reply.buffers.keys() == expected[client].buffers.keys()
        assert all(torch.equal(value, expected[client].buffers[key]) for key, value in reply.buffers.items())


def test_reduced_precision_is_the_same_on_both_engines_and_not_that_of_float32():
    data = holdings("cnn", public=True)
    expected = forget("fedosd", "cnn", Sequential(network("cnn"), data, precision="bf16"))
    with Parallel(network("cnn"), data, workers=2, precision="bf16") as federation:
        assert same(forget("fedosd", "cnn", federation), expected)
    gap = (expected.params - oracle("fedosd", "cnn").params).norm() / expected.params.norm()
    assert 0 < gap < 0.01


def test_an_upload_may_hold_one_tensor_under_two_names():
    @objective("test: twice", summary="test")
    def _twice(arrays):
        class Twice(Minimise):
            def upload(self, model, batches):
                seen = torch.arange(6.0).view(2, 3)
                return {"whole": seen, "again": seen, "turned": seen.T, "row": seen[1], "none": seen[:0]}

        return Twice()

    model, data = network("perceptron"), holdings("perceptron")
    jobs = {client: Job(flatten(model), "test: twice", lr=0.1, batch_size=4) for client in data}
    expected = Sequential(model, data).train(jobs)
    with Parallel(model, data, workers=2) as federation:
        replies = federation.train(jobs)
    for client, reply in replies.items():
        assert all(torch.equal(reply.arrays[key], array) for key, array in expected[client].arrays.items())
        assert len(reply.arrays) == 5
