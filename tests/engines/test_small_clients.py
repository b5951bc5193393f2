"""Small clients train as one computation, to the bits of training one after the other."""

from __future__ import annotations

import pytest
import torch
from support.codes import warned
from torch import nn

from fedunlearn import Classification, Examples, Parallel, Sequential, Terms, flatten, train
from fedunlearn.client import Learner
from fedunlearn.client import perceptron as perceptrons
from fedunlearn.client.data import as_clients
from fedunlearn.client.learner import FEW
from fedunlearn.core.seeds import generator
from fedunlearn.core.threads import one_thread
from fedunlearn.engines.sequential import MANY, grouped

TERMS = Terms(lr=0.1, batch_size=100)
SIZES = [*range(1, 25), *[12] * 24, 31, FEW, FEW + 1, 90]


@pytest.fixture(autouse=True)
def alone():
    with one_thread():
        yield


def perceptron(*, seed: int = 1) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        layers = nn.Linear(112, 48), nn.ReLU(), nn.Linear(48, 32), nn.ReLU(), nn.Linear(32, 10)
        return nn.Sequential(nn.Flatten(), *layers)


def clients(sizes: list[int] = SIZES) -> dict[str, Examples]:
    random = generator("small clients")
    return {
        f"site-{number:02}": Examples(
            torch.randn(size, 7, 16, generator=random), torch.randint(0, 10, (size,), generator=random)
        )
        for number, size in enumerate(sizes)
    }


def test_a_group_gives_the_bits_of_each_client_alone():
    model, data = perceptron(), clients()
    job = train(flatten(model))
    learner = Learner(model, Classification())
    alone = {client: learner.perform(client, held, job, TERMS) for client, held in as_clients(data).items()}
    groups = grouped(learner, as_clients(data), dict.fromkeys(data, job), TERMS)
    assert max(map(len, groups)) > 5, "no group was formed, so nothing was compared"
    with Parallel(model, data, workers=2) as parallel:
        for engine in (Sequential(model, data), parallel):
            replies = engine.exchange(dict.fromkeys(data, job), TERMS)
            for client, expected in alone.items():
                assert torch.equal(replies[client].moved, expected.moved)
                assert replies[client].statistics == expected.statistics
                assert replies[client].examples == expected.examples


def test_only_one_plain_step_from_the_same_model_is_taken_together():
    model, data = perceptron(), clients([12] * MANY)
    learner, held, params = Learner(model, Classification()), as_clients(data), flatten(model)

    def most(job, terms=TERMS) -> int:
        jobs = job if isinstance(job, dict) else dict.fromkeys(data, job)
        return max(map(len, grouped(learner, held, jobs, terms)))

    assert most(train(params)) == 21
    assert most(train(params), Terms(batch_size=11)) == 1
    assert most(train(params), Terms(epochs=2)) == 1
    assert most(train(params, "uce")) == 1
    assert most(train(params, step="clipped", clip=1.0)) == 1
    assert most({client: train(params.clone()) for client in data}) == 1
    assert most({client: train(params, lr=0.1 * place) for place, client in enumerate(data, 1)}) == 1


def test_a_group_has_no_more_rows_than_one_product():
    model, data = perceptron(), clients([50] * (MANY + 1))
    job = dict.fromkeys(data, train(flatten(model)))
    sizes = [len(group) for group in grouped(Learner(model, Classification()), as_clients(data), job, TERMS)]
    assert sizes == [5] * 6 + [3]


def test_a_client_that_fails_does_not_take_its_group_along():
    model, data = perceptron(), clients([12] * MANY)
    job = train(flatten(model))
    expected = Sequential(model, data).exchange(dict.fromkeys(data, job), TERMS)
    broken = Sequential(model, data)
    data["site-01"].x.resize_(12, 99)  # after the engine has checked it
    with warned("no-reply", says="site-01 failed"):
        replies = broken.exchange(dict.fromkeys(data, job), TERMS)
    assert data.keys() - replies == {"site-01"}
    assert all(torch.equal(replies[client].moved, expected[client].moved) for client in replies)


def test_few_clients_train_alone():
    model, data = perceptron(), clients([12] * (MANY - 1))
    jobs = dict.fromkeys(data, train(flatten(model)))
    assert max(map(len, grouped(Learner(model, Classification()), as_clients(data), jobs, TERMS))) == 1


def test_where_the_library_gives_other_bits_clients_train_alone(monkeypatch):
    model, data = perceptron(), clients([12] * MANY)
    plain = torch.addmm

    def by_rows(bias, x, weight):
        return plain(bias, x, weight) * (1 + 1e-6 * (len(x) > 100))

    monkeypatch.setattr(torch, "addmm", by_rows)
    monkeypatch.setattr(perceptrons, "_agree", perceptrons._agree.__wrapped__)
    jobs = dict.fromkeys(data, train(flatten(model)))
    assert max(map(len, grouped(Learner(model, Classification()), as_clients(data), jobs, TERMS))) == 1
