from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support.closed_form import DIMENSION, Quadratics, drive, fresh, jobs_of, request
from support.codes import refused, says

from fedunlearn import (
    History,
    LocalTraining,
    Replies,
    Reply,
    Request,
    Schedule,
    State,
    Status,
    Terms,
    method,
    train,
    unlearn,
)
from fedunlearn.methods.federaser import CalibratedReplay, LayerwiseReplay

Q = {c: (10 + n) / 49 for n, c in [(0, "site-0"), (2, "site-2"), (3, "site-3"), (4, "site-4")]}
"""Shares of the retained clients, by the examples that ``Quadratics`` gives them."""


def lengths(round: int) -> dict[str, float]:
    return {client: float(request().history.of("norms", client)[round].norm()) for client in Q}


def replay(rounds: int = 8, lr: float = 0.05, federation: Quadratics | None = None, **options: object):
    heard = []
    phase = CalibratedReplay(rounds, lr, **options)
    outcome = unlearn([phase], request(), federation or Quadratics(), listeners=[heard.append])
    return outcome, [event.progress.state.params for event in heard]


def test_each_step_is_at_most_as_long_as_the_recorded_ones():
    _, models = replay()
    models[0] = request().history.shared["norms"]
    for number in range(8):
        bound = sum(Q[client] * length for client, length in lengths(number).items())
        assert 0 < float((models[number + 1] - models[number]).norm()) <= bound * (1 + 1e-6)


def test_where_all_clients_agree_a_step_is_exactly_as_long():
    class Agreeing(Quadratics):
        def gradient(self, client, params):
            return super().gradient("site-0", params) * len(client)

    _, models = replay(federation=Agreeing())
    for number in range(1, 8):
        bound = sum(Q[client] * length for client, length in lengths(number).items())
        assert float((models[number + 1] - models[number]).norm()) == pytest.approx(bound, rel=1e-5)


@pytest.mark.parametrize("lr", [1e-6, 3.0, 1e6])
def test_the_learning_rate_of_one_local_step_does_not_matter(lr):
    assert torch.allclose(replay(lr=lr)[0].params, replay()[0].params, atol=1e-4)


def test_it_begins_where_pre_training_began():
    jobs = jobs_of(CalibratedReplay(8, 0.05), request(), State(request().params))
    assert set(jobs) == set(request().retained)
    assert all(torch.equal(job.params, fresh("pre-training").params) for job in jobs.values())


@pytest.mark.parametrize(
    ("rounds", "replayed"),
    [(4, [0, 2, 4, 6]), (2, [0, 4]), (3, [0, 2, 5]), (5, [0, 1, 3, 4, 6]), (8, range(8))],
)
def test_recorded_rounds_are_taken_at_equal_intervals(rounds, replayed):
    one = {client: torch.eye(DIMENSION)[0] for client in Q}
    for number, recorded in enumerate(replayed):
        state = State(request().params, round=number)
        replies = Replies({client: Reply(vector, 1) for client, vector in one.items()})
        _, after = drive(CalibratedReplay(rounds, 0.05), request(), state, replies)
        begun = state.params if number else request().history.shared["norms"]
        expected = sum(lengths(recorded).values()) / 4
        assert float((begun - after.params)[0]) == pytest.approx(expected, rel=1e-5)


def test_it_ends_when_all_recorded_rounds_are_replayed():
    outcome, models = replay(rounds=12)
    assert outcome.status is Status.CONVERGED
    assert says(outcome.reason, "8 recorded rounds")
    assert len(models) == 1 + 8
    assert torch.equal(outcome.params, replay()[0].params)


def test_layer_by_layer_each_tensor_keeps_its_length():
    asked = request()
    vector = torch.randn(DIMENSION, generator=torch.Generator().manual_seed(1))
    replies = Replies({"site-0": Reply(vector, 1)})
    _, after = drive(LayerwiseReplay(8, 0.05), asked, State(asked.params, round=3), replies)
    step = asked.pieces(asked.params - after.params)
    assert [float(piece.norm()) for piece in step.values()] == pytest.approx(
        asked.history.of("norms", "site-0")[3].tolist(), rel=1e-5
    )
    _, whole = drive(CalibratedReplay(8, 0.05), asked, State(asked.params, round=3), replies)
    assert float((asked.params - whole.params).norm()) == pytest.approx(lengths(3)["site-0"], rel=1e-5)


def test_clients_that_did_not_move_now_or_then_are_left_out():
    asked, state = request(), State(request().params, round=2)

    def replayed(asked: Request, replies: dict[str, Reply]) -> torch.Tensor:
        return drive(CalibratedReplay(8, 0.05), asked, state, Replies(replies))[1].params

    moved = {client: Reply(torch.ones(DIMENSION), 1) for client in Q}
    only = {"site-0": moved["site-0"]}
    expected = replayed(asked, only)
    still = only | {client: Reply(torch.zeros(DIMENSION), 1) for client in Q if client != "site-0"}
    assert torch.equal(replayed(asked, still), expected)
    norms = {c: row if c == "site-0" else row * 0 for c, row in asked.history.rows["norms"].items()}
    poor = replace(asked, history=History({"norms": norms}, asked.history.shared))
    assert torch.equal(replayed(poor, moved), expected)


@pytest.mark.parametrize("effort", [0, -1, 1.5])
def test_an_effort_that_is_none_is_refused(effort):
    with refused("invalid", says="effort"):
        method["federaser"](Schedule(), effort=effort)


@pytest.mark.parametrize(
    ("effort", "epochs", "passes"),
    [(1.0, 3, 3), (0.5, 3, 2), (0.5, 4, 2), (0.1, 5, 1), (0.7, 10, 7), (0.71, 10, 8), (1 / 3, 3, 1)],
)
def test_effort_is_a_share_of_the_local_epochs_rounded_up(effort, epochs, passes):
    class Counting(Quadratics):
        def perform(self, client, job, terms):
            assert terms.passes(job) == passes
            return super().perform(client, job, terms)

    phase = CalibratedReplay(1, 0.05, effort=effort)
    outcome = unlearn([phase], request(), Counting(), training=LocalTraining(epochs=epochs))
    assert not outcome.status.failed
    assert Terms(epochs=epochs).passes(train(request().params)) == epochs
