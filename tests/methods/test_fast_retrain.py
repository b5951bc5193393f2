from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support.closed_form import Quadratics, request
from support.codes import refused

from fedunlearn import LocalTraining, Schedule, method, unlearn
from fedunlearn.methods.fast_retrain import share

SCHEDULE = Schedule(3, 0.01, 5, 0.01, pretrain_lr=0.05)


def test_the_rate_is_constant_in_the_first_half_and_then_falls_linearly():
    assert [share(number, 8) for number in range(8)] == pytest.approx(
        [1, 1, 1, 1, 1, 1 - 0.95 / 3, 1 - 2 * 0.95 / 3, 0.05]
    )
    assert [share(number, 3) for number in range(3)] == pytest.approx([1, 1, 0.05])
    assert share(0, 1) == 1


def test_without_momentum_a_round_at_the_full_rate_is_one_of_retraining():
    new = request().fresh("new")
    asked = replace(request(), fresh=lambda _: new)
    fast, plain = (
        unlearn(method[name](SCHEDULE, rounds=1, **options), asked, Quadratics())
        for name, options in (("fast-retrain", {"momentum": 0.0}), ("retrain", {}))
    )
    assert torch.equal(fast.params, plain.params)


def test_a_step_repeats_the_earlier_ones():
    """ω ← ω − (Δ̄ + β v) with v ← β v + Δ̄, by hand from the gradients of the clients."""
    federation, asked = Quadratics(), request()
    outcome = unlearn(
        method["fast-retrain"](SCHEDULE, momentum=0.5, rounds=4),
        asked,
        federation,
        training=LocalTraining(decay=1.0),
    )
    sizes = {client: federation.examples(client) for client in asked.retained}
    params, velocity = asked.fresh("fast-retrain").params, torch.zeros_like(asked.params)
    for number in range(4):
        gradient = sum(sizes[client] * federation.gradient(client, params) for client in sizes)
        mean = 0.05 * share(number, 4) * gradient / sum(sizes.values())
        velocity = 0.5 * velocity + mean
        params = params - (mean + 0.5 * velocity)
    assert torch.allclose(outcome.params, params, atol=1e-6)


def test_the_target_is_never_asked():
    unlearn(method["fast-retrain"](SCHEDULE), request(), Quadratics(refuses={"site-1"}))


def test_a_momentum_that_would_never_settle_is_refused():
    with refused("invalid", says="momentum"):
        method["fast-retrain"](SCHEDULE, momentum=1.0)
