from __future__ import annotations

import pytest
import torch
from support.closed_form import CLIENTS, Quadratics, jobs_of, request

from fedunlearn import State, unlearn
from fedunlearn.methods.fedavg import Pretraining
from fedunlearn.methods.puf import NegatedUpdate

TARGET = "site-1"


def local(client: str) -> torch.Tensor:
    """ω_u of an ordinary local training."""
    return request().params - 0.05 * Quadratics().gradient(client, request().params)


def negated(scale: float, within: str = "special", targets=(TARGET,)) -> torch.Tensor:
    return unlearn([NegatedUpdate(1, 0.05, scale, within)], request(targets=targets), Quadratics()).params


def test_scaled_by_nothing_a_special_round_changes_nothing():
    assert torch.equal(negated(0.0), request().params)


def test_scaled_by_one_the_old_model_lies_between_the_two():
    assert torch.allclose(negated(1.0) + local(TARGET), 2 * request().params, atol=1e-6)


def test_a_regular_round_with_the_opposite_sign_is_plain_averaging():
    plain = unlearn([Pretraining(1, 0.05)], request(), Quadratics())
    assert torch.allclose(negated(-1.0, "regular"), plain.params, atol=1e-6)


def test_a_regular_round_averages_the_others_by_their_share_of_all():
    start, examples = request().params, {client: 10 + n for n, client in enumerate(CLIENTS)}
    updates = {client: examples[client] / 60 * (local(client) - start) for client in CLIENTS}
    expected = start - 20 * updates.pop(TARGET) + sum(updates.values())
    assert torch.allclose(negated(20.0, "regular"), expected, atol=1e-5)


def test_several_targets_add_up():
    start = request().params
    moved = negated(2.0, targets=(TARGET, "site-3"))
    expected = start - 2 * (local(TARGET) - start) - 2 * (local("site-3") - start)
    assert torch.allclose(moved, expected, atol=1e-6)


@pytest.mark.parametrize(("within", "asked"), [("special", {TARGET}), ("regular", set(CLIENTS))])
def test_who_is_asked_trains_as_ever(within, asked):
    jobs = jobs_of(NegatedUpdate(1, 0.05, 2.0, within), request(), State(request().params))
    assert set(jobs) == asked
    assert {(job.config["loss"], job.config["step"]) for job in jobs.values()} == {("task", "plain")}


def test_the_length_of_the_step_is_told():
    outcome = unlearn([NegatedUpdate(1, 0.05, 2.0)], request(), Quadratics())
    length = float((outcome.params - request().params).norm() / request().params.norm())
    assert outcome.metrics[1]["relative_step"] == pytest.approx(length, rel=1e-5)
