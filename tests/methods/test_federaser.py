from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from closed_form import DIMENSION, Quadratics, fresh, request

from fedunlearn import FedUnlearnError, Replies, Reply, Schedule, State, Status, method, unlearn
from fedunlearn.methods.federaser import CalibratedReplay

Q = {c: (10 + n) / 49 for n, c in [(0, "site-0"), (2, "site-2"), (3, "site-3"), (4, "site-4")]}
"""Shares of the retained clients, by the examples that ``Quadratics`` gives them."""


def lengths(round: int) -> dict[str, float]:
    return {client: float(request().recorded("norms", client)[round].norm()) for client in Q}


def replay(rounds: int = 8, lr: float = 0.05, federation: Quadratics | None = None, **options: object):
    heard = []
    phase = CalibratedReplay(rounds, lr, **options)
    outcome = unlearn([phase], request(), federation or Quadratics(), listeners=[heard.append])
    return outcome, [event.progress.state.params for event in heard]


def test_each_step_is_at_most_as_long_as_the_recorded_ones():
    _, models = replay()
    models[0] = request().history["norms"]
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
    jobs = CalibratedReplay(8, 0.05).ask(request(), State(request().params))
    assert set(jobs) == set(request().retained)
    assert all(torch.equal(job.params, fresh("pre-training").params) for job in jobs.values())


@pytest.mark.parametrize(("rounds", "replayed"), [(4, [0, 2, 4, 6]), (2, [0, 4]), (8, range(8))])
def test_recorded_rounds_are_taken_at_equal_intervals(rounds, replayed):
    one = {client: torch.eye(DIMENSION)[0] for client in Q}
    for number, recorded in enumerate(replayed):
        state = State(request().params, round=number)
        replies = Replies({client: Reply(vector, 1) for client, vector in one.items()})
        after = CalibratedReplay(rounds, 0.05).tell(request(), state, replies)
        begun = state.params if number else request().history["norms"]
        expected = sum(lengths(recorded).values()) / 4
        assert float((begun - after.params)[0]) == pytest.approx(expected, rel=1e-5)


def test_it_ends_when_all_recorded_rounds_are_replayed():
    outcome, models = replay(rounds=12)
    assert outcome.status is Status.CONVERGED
    assert "8 recorded rounds" in outcome.reason
    assert len(models) == 1 + 8
    assert torch.equal(outcome.params, replay()[0].params)


def test_layer_by_layer_each_tensor_keeps_its_length():
    asked = request()
    vector = torch.randn(DIMENSION, generator=torch.Generator().manual_seed(1))
    replies = Replies({"site-0": Reply(vector, 1)})
    after = CalibratedReplay(8, 0.05, layerwise=True).tell(asked, State(asked.params, round=3), replies)
    step = asked.pieces(asked.params - after.params)
    assert [float(piece.norm()) for piece in step.values()] == pytest.approx(
        asked.recorded("norms", "site-0")[3].tolist(), rel=1e-5
    )
    whole = CalibratedReplay(8, 0.05).tell(asked, State(asked.params, round=3), replies)
    assert float((asked.params - whole.params).norm()) == pytest.approx(lengths(3)["site-0"], rel=1e-5)


def test_clients_that_did_not_move_now_or_then_are_left_out():
    asked, state = request(), State(request().params, round=2)
    moved = {client: Reply(torch.ones(DIMENSION), 1) for client in Q}
    only = {"site-0": moved["site-0"]}
    expected = CalibratedReplay(8, 0.05).tell(asked, state, Replies(only)).params
    still = only | {client: Reply(torch.zeros(DIMENSION), 1) for client in Q if client != "site-0"}
    assert torch.equal(CalibratedReplay(8, 0.05).tell(asked, state, Replies(still)).params, expected)
    history = dict(asked.history)
    for client in Q:
        if client != "site-0":
            history[f"norms {client}"] = history[f"norms {client}"] * 0
    poor = replace(asked, history=history)
    assert torch.equal(CalibratedReplay(8, 0.05).tell(poor, state, Replies(moved)).params, expected)


@pytest.mark.parametrize("effort", [0, -1, 1.5])
def test_an_effort_that_is_none_is_refused(effort):
    with pytest.raises(FedUnlearnError, match="effort"):
        method["federaser"](Schedule(), effort=effort)


def test_effort_is_a_share_of_the_local_epochs():
    phase = CalibratedReplay(8, 0.05, effort=0.5)
    assert {job.effort for job in phase.ask(request(), State(request().params)).values()} == {0.5}
