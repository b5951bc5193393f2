"""Every method ends in the same bits on every engine, whatever the number of workers."""

from __future__ import annotations

import time
from functools import cache

import pytest
import torch
from federations import SHAPES, forget, holdings, network, same

from fedunlearn import Job, Outcome, Parallel, Sequential, flatten, method
from fedunlearn.vectors import buffers


@cache
def oracle(how: str, name: str) -> Outcome:
    return forget(how, name, Sequential(network(name), holdings(name)))


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("how", [entry.name for entry in method])
def test_worker_processes_change_no_bit(how, name, workers):
    with Parallel(network(name), holdings(name), workers=workers) as federation:
        assert same(forget(how, name, federation), oracle(how, name))


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
    expected = forget("fedosd", "cnn", Sequential(network("cnn"), holdings("cnn"), precision="bf16"))
    with Parallel(network("cnn"), holdings("cnn"), workers=2, precision="bf16") as federation:
        assert same(forget("fedosd", "cnn", federation), expected)
    gap = (expected.params - oracle("fedosd", "cnn").params).norm() / expected.params.norm()
    assert 0 < gap < 0.01
