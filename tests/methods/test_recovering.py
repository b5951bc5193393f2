from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support.closed_form import Quadratics, request
from support.codes import says

from fedunlearn import LocalTraining, Reply, Schedule, Status, method, pretrain, unlearn

ROUNDS, FLAT = 60, LocalTraining(decay=1.0)


class Silent(Quadratics):
    """Clients that report no losses of their training."""

    def perform(self, client, job, terms):
        reply = super().perform(client, job, terms)
        return Reply(reply.displacement, reply.examples)


def retrained(lr: float, federation: Quadratics, *, longest: int = ROUNDS, trained: float | None = None):
    asked = request(targets=("site-1",))
    if trained is not None:
        asked = pretrain(asked, Quadratics(), ROUNDS, trained, training=FLAT)
    phases = method["fast-retrain"](Schedule(pretrain_lr=lr), rounds=longest, until_recovered=True)
    return asked, unlearn(phases, asked, federation, training=FLAT, evaluate_every=1000)


def mean_loss(asked, params):
    federation = Quadratics()
    return sum(federation.loss(client, params) for client in asked.retained) / len(asked.retained)


def test_training_ends_once_the_retained_clients_are_as_well_off_as_before():
    asked, outcome = retrained(0.1, Quadratics(refuses={"site-1"}), trained=0.1)
    assert outcome.status is Status.CONVERGED
    assert int(outcome.metrics[-1]["elapsed"]) == ROUNDS / 2  # the least
    assert mean_loss(asked, outcome.params) <= mean_loss(asked, asked.params)
    assert says(outcome.reason, "below that before")


def test_a_momentum_at_which_losses_rise_is_lowered():
    asked, outcome = retrained(2.2, Quadratics(), trained=1.0)
    assert outcome.status is Status.CONVERGED
    assert says(outcome.reason, "taken back because losses rose: momentum is 0")
    assert mean_loss(asked, outcome.params) <= mean_loss(asked, asked.params) + 0.05


@pytest.mark.wording
def test_a_rate_at_which_losses_rise_is_lowered():
    asked, outcome = retrained(4.0, Quadratics(), trained=1.0)
    assert "the rate 1 since" in outcome.reason or "the rate 2 since" in outcome.reason
    assert mean_loss(asked, outcome.params) <= mean_loss(asked, asked.params) + 0.05


def test_where_no_rate_helps_nobody_gets_a_model():
    _, outcome = retrained(1e3, Quadratics(), trained=1.0)
    assert outcome.status is Status.DIVERGED
    assert says(outcome.reason, "does not fall at any rate from 1000 down to 250")


def test_it_takes_no_more_rounds_that_count_than_are_allowed():
    _, outcome = retrained(0.01, Quadratics(), longest=12, trained=1.0)
    assert int(outcome.metrics[-1]["elapsed"]) == 12
    assert says(outcome.reason, "above that before")


def test_without_losses_it_is_plain_averaging():
    new = request().fresh("new")
    asked, schedule = replace(request(), fresh=lambda _: new), Schedule(pretrain_lr=0.1)
    plain = method["retrain"](schedule, rounds=5)
    unmeasured = method["fast-retrain"](schedule, rounds=5, until_recovered=True)
    models = [unlearn(phases, asked, Silent(), training=FLAT).params for phases in (plain, unmeasured)]
    assert torch.equal(*models)


@pytest.mark.parametrize("stop", [1, 7])
def test_a_run_that_is_resumed_ends_in_the_same_bits(stop):
    heard = []
    asked = pretrain(request(), Quadratics(), ROUNDS, 1.0, training=FLAT)
    phases = method["fast-retrain"](Schedule(pretrain_lr=2.2), rounds=ROUNDS, until_recovered=True)
    whole = unlearn(phases, asked, Quadratics(), training=FLAT, listeners=[heard.append])
    resumed = unlearn(phases, asked, Quadratics(), training=FLAT, resume=heard[stop].progress)
    assert torch.equal(whole.params, resumed.params)
    assert whole.reason == resumed.reason
