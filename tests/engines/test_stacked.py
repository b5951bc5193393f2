"""Federations in a stack come to what each comes to by itself, up to rounding."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from federations import TRAINING, holdings, network
from torch import nn

from fedunlearn import (
    Classification,
    ClientData,
    Examples,
    FedUnlearnError,
    Job,
    Outcome,
    Request,
    Schedule,
    Sequential,
    State,
    flatten,
    train,
    unlearn,
)
from fedunlearn.client.audit import audit_job
from fedunlearn.core import History, Reason, Terms, requirements
from fedunlearn.core.registry import method as methods
from fedunlearn.core.seeds import generator
from fedunlearn.core.vectors import shapes
from fedunlearn.driver import Participation, course, in_lockstep
from fedunlearn.engines import Stacked
from fedunlearn.engines.stacked import order
from fedunlearn.methods.fedavg import Pretraining

NUMBERS = (3, 0, 7)
MODEL = network("perceptron")
DATA = holdings("perceptron")
STACKABLE = [
    entry.name
    for entry in methods
    if not requirements.needs(methods[entry.name](Schedule(1, 0.1, 1, 0.1))) & {"cluster", "public", "slice"}
]


def start(number: int) -> State:
    return State(
        flatten(MODEL) + 0.1 * torch.randn(len(flatten(MODEL)), generator=generator("start", number))
    )


def request(number: int) -> Request:
    return Request(
        start(number).params,
        tuple(DATA),
        ("site-2",),
        lambda purpose: State(start(number).params * 0.5),
        shapes=shapes(MODEL),
        seed=number,
    )


def own(number: int) -> Sequential:
    """The federation of this number, as an ordinary one."""
    held = {
        client: ClientData(each.train.take(order(5, number, client, len(each.train.y))), each.evaluations)
        for client, each in DATA.items()
    }
    return Sequential(MODEL, held)


def stacked() -> Stacked:
    return Stacked(MODEL, DATA, NUMBERS, seed=5)


def phases(how: str):
    return methods[how](Schedule(2, 0.05, 2, 0.05))


def wanted(how: str, number: int, federation) -> Request:
    """With the history that the method needs."""
    needed = requirements.recorded(phases(how))
    if not needed:
        return request(number)
    trained = unlearn(
        [Pretraining(2, 0.05, tuple(needed))], request(number), federation, training=TRAINING
    ).state
    return replace(request(number).starting_from(trained), history=History.from_tensors(trained.memory))


def together(how: str, **settings) -> list[Outcome]:
    stack = stacked()
    return in_lockstep(
        [
            course(
                phases(how),
                wanted(how, number, stack.member(place)),
                stack.member(place),
                training=TRAINING,
                seed=number,
                **settings,
            )
            for place, number in enumerate(NUMBERS)
        ],
        stack.exchange,
    )


@pytest.mark.parametrize("how", STACKABLE)
def test_every_method_comes_to_the_same_as_alone(how):
    for number, found in zip(NUMBERS, together(how), strict=True):
        expected = unlearn(
            phases(how), wanted(how, number, own(number)), own(number), training=TRAINING, seed=number
        )
        assert found.status == expected.status
        torch.testing.assert_close(found.params, expected.params, rtol=1e-4, atol=1e-6)
        assert not torch.equal(found.params, start(number).params)


def test_the_same_stack_gives_the_same_bits():
    for one, other in zip(together("fedosd"), together("fedosd"), strict=True):
        assert torch.equal(one.params, other.params)


def test_each_federation_may_draw_other_clients():
    settings = {"participation": Participation(share=0.4)}
    outcomes = together("finetune", **settings)
    for number, found in zip(NUMBERS, outcomes, strict=True):
        expected = unlearn(
            phases("finetune"), request(number), own(number), training=TRAINING, seed=number, **settings
        )
        torch.testing.assert_close(found.params, expected.params, rtol=1e-4, atol=1e-6)


def test_federations_see_their_examples_in_other_orders():
    stack, job = stacked(), train(flatten(MODEL))
    replies = stack.exchange({place: ({"site-4": job}, Terms(0.1, batch_size=4)) for place in range(3)})
    moved = [replies[place]["site-4"].moved for place in range(3)]
    assert not torch.equal(moved[0], moved[1])
    assert not torch.equal(moved[1], moved[2])
    torch.testing.assert_close(moved[0], moved[1], rtol=1, atol=0.05)


@pytest.mark.parametrize("config", [{}, {"loss": "uce"}, {"lr": 0.5, "effort": 0.5}])
def test_a_job_comes_to_the_same_as_alone(config):
    terms = Terms(0.1, batch_size=4, epochs=3)
    job = train(flatten(MODEL), **config)
    replies = stacked().exchange({place: (dict.fromkeys(DATA, job), terms) for place in range(3)})
    for place, number in enumerate(NUMBERS):
        expected = own(number).exchange(dict.fromkeys(DATA, job), terms)
        assert [*replies[place]] == [*expected]
        for client, reply in replies[place].items():
            torch.testing.assert_close(reply.moved, expected[client].moved, rtol=1e-4, atol=1e-6)
            ours, theirs = (each.statistics["train"]["loss"] for each in (reply, expected[client]))
            assert ours.count == theirs.count
            assert ours.total == pytest.approx(theirs.total, rel=1e-5)


def test_jobs_that_choose_examples_themselves_see_them_in_their_own_order():
    """Canaries are the last examples of a client, and a lesson is drawn by place."""
    x, y = torch.randn(60, 6, generator=generator("examples")), torch.arange(60) % 3
    sets = {"audit": Examples(x[:40] + 1, y[:40]), "canary-in": Examples(x[-9:], y[-9:])}
    data = {"site-0": ClientData(Examples(x, y), sets)}
    model = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3))
    stack, alone, terms = Stacked(model, data, (3, 0)), Sequential(model, data), Terms(0.1, batch_size=4)
    for job in (
        train(flatten(model), lesson=20, draw=1),
        Job("relearn", flatten(model), config={"lesson": 20, "draw": 1}),
        audit_job(State(flatten(model)), compare=True),
    ):
        (expected,) = alone.exchange({"site-0": job}, terms).values()
        (found,) = stack.member(1).exchange({"site-0": job}, terms).values()
        assert (found.examples, found.statistics) == (expected.examples, expected.statistics)
        assert found.displacement is None or torch.equal(found.displacement, expected.displacement)
        assert {name: array.tolist() for name, array in found.arrays.items()} == {
            name: array.tolist() for name, array in expected.arrays.items()
        }


def test_log_odds_are_those_of_the_label():
    states, examples = [start(number) for number in NUMBERS], DATA["site-4"].train
    odds = stacked().log_odds(states, examples)
    for state, row in zip(states, odds, strict=True):
        weight, bias, last, end = (
            part.view(shape)
            for part, shape in zip(
                state.params.split([s.numel() for s in shapes(MODEL).values()]),
                shapes(MODEL).values(),
                strict=True,
            )
        )
        logits = (examples.x.flatten(1) @ weight.T + bias).relu() @ last.T + end
        p = logits.double().softmax(1)[torch.arange(len(examples.y)), examples.y]
        torch.testing.assert_close(row, (p / (1 - p)).log(), rtol=1e-4, atol=1e-5)


def test_a_client_that_is_unknown_is_absent():
    replies = stacked().exchange({0: ({"nobody": train(flatten(MODEL))}, Terms())})
    assert replies[0].missing["nobody"].reason is Reason.ABSENT


def test_other_models_and_data_are_refused():
    with pytest.raises(FedUnlearnError, match="only perceptrons train side by side"):
        Stacked(network("convolution"), holdings("convolution"), (0, 1))
    held = {"x": torch.zeros(4, 6), "labels": torch.zeros(4, dtype=torch.int64)}
    model = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 2))
    with pytest.raises(FedUnlearnError, match="site-0 trains on a dict"):
        Stacked(model, {"site-0": held}, (0, 1), task=Classification(input="x"))
