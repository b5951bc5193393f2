from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from support.closed_form import CLIENTS, SHAPES, Quadratics, fresh, request
from support.codes import refused

from fedunlearn import History, Request, Schedule, State, Status, method, unlearn
from fedunlearn.maths import cosine
from fedunlearn.methods.fedavg import Averaging, Pretraining
from fedunlearn.methods.fedrecovery import ResidualSubtraction, noise_for

TARGET = "site-1"


def pretrain(rounds: int, federation: Quadratics, clients=CLIENTS, targets=(TARGET,)) -> Request:
    before = Request(fresh("pre-training").params, clients, targets, fresh, shapes=SHAPES)
    state = unlearn([Pretraining(rounds, 0.05, ("residuals",))], before, federation).state
    return replace(before.starting_from(state), history=History.from_tensors(state.memory))


def recover(asked: Request, **options: object) -> torch.Tensor:
    return unlearn([ResidualSubtraction(1, 0.05, **options)], asked, Quadratics()).params


@pytest.mark.parametrize("targets", [(TARGET,), (TARGET, "site-4")])
def test_after_one_round_it_is_the_round_without_the_targets(targets):
    asked = pretrain(1, Quadratics(), targets=targets)
    alone = unlearn([Averaging(1, 0.05)], replace(asked, params=fresh("pre-training").params), Quadratics())
    assert torch.allclose(recover(asked), alone.params, atol=1e-6)
    assert not torch.allclose(asked.params, alone.params, atol=1e-3)


def test_where_all_clients_are_alike_nothing_changes():
    class Alike(Quadratics):
        def gradient(self, client, params):
            return super().gradient("site-0", params)

    asked = pretrain(20, Alike())
    assert torch.allclose(recover(asked), asked.params, atol=1e-6)


def test_between_two_clients_the_correction_leads_from_one_to_the_other():
    federation = Quadratics()
    asked = pretrain(1, federation, clients=("site-0", TARGET))
    ((_, heard),) = federation.exchanged
    apart = heard[TARGET].moved - heard["site-0"].moved
    assert cosine(recover(asked) - asked.params, apart) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("targets", [(TARGET,), ("site-0", "site-3")])
def test_the_sums_are_the_whole_history_to_the_last_digits(targets):
    federation = Quadratics()
    asked = pretrain(120, federation, targets=targets)
    rounds = [replies for _, replies in federation.exchanged]
    rates = [0.05 * 0.999**t for t in range(120)]
    shares = dict(zip(rounds[0], rounds[0].weights(), strict=True))
    gone = sum(shares[target] for target in targets)
    residuals, weights = [], []
    for heard, rate in zip(rounds, rates, strict=True):
        updates = {client: -reply.moved.double() for client, reply in heard.items()}
        mean = sum(shares[client] * update for client, update in updates.items())
        weights.append(float(mean.norm()) ** 2 / rate**2)
        residuals.append(sum(shares[u] * (updates[u] - mean) for u in targets) / (1 - gone))
    expected = asked.params.double() - sum(
        weight / sum(weights) * residual for weight, residual in zip(weights, residuals, strict=True)
    )
    assert torch.allclose(recover(asked).double(), expected, atol=1e-6, rtol=0)
    many = recover(asked, weighting="mean_one").double()
    assert torch.allclose(many - asked.params, 120 * (expected - asked.params), atol=1e-4)


def test_scale_multiplies_the_correction():
    asked = pretrain(5, Quadratics())
    whole, half = recover(asked) - asked.params, recover(asked, scale=0.5) - asked.params
    assert torch.allclose(half, whole / 2, atol=1e-6)


def test_a_client_that_missed_rounds_has_no_residual_in_them():
    federation = Quadratics(absent={TARGET: [1, 2, 3]})
    asked = pretrain(4, federation)
    _, last = federation.exchanged[3]
    apart = last[TARGET].moved - last.average()
    assert cosine(recover(asked) - asked.params, apart) == pytest.approx(1, abs=1e-5)


def test_a_client_that_pre_training_never_met_cannot_be_forgotten():
    with refused("history", says=f"no share of client '{TARGET}'"):
        recover(pretrain(4, Quadratics(absent={TARGET: range(1, 9)})))


def test_a_pre_training_that_never_moved_leaves_nothing_to_subtract():
    kept = request().history
    asked = request(
        history=History(kept.rows, {**kept.shared, "residuals": torch.zeros(2, dtype=torch.float64)})
    )
    after = ResidualSubtraction(1, 0.05).round(asked, State(asked.params))
    assert after.status is Status.CONVERGED
    assert torch.equal(after.params, asked.params)


def test_noise_has_its_deviation_and_follows_the_seed():
    plain = recover(request())
    one, again = recover(request(), noise=0.5), recover(request(), noise=0.5)
    other = recover(replace(request(), seed=9), noise=0.5)
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    drawn = torch.stack([recover(replace(request(), seed=seed), noise=0.5) - plain for seed in range(300)])
    assert float(drawn.std()) == pytest.approx(0.5, rel=0.05)
    assert abs(float(drawn.mean())) < 0.05


@pytest.mark.parametrize(("epsilon", "beta", "bound"), [(1, 1e-5, 1), (0.1, 1e-3, 2), (5, 0.5, 0.01)])
def test_the_noise_solves_the_equation_of_the_gaussian_mechanism(epsilon, beta, bound):
    sigma = noise_for(epsilon, beta, bound)
    spent = bound**2 / (2 * sigma**2) + bound / sigma * math.sqrt(2 * math.log(1 / beta))
    assert spent == pytest.approx(epsilon)
    assert noise_for(1, 1e-5, 1) == pytest.approx(4.90, abs=0.01)


@pytest.mark.parametrize("privacy", [[1, 0, 1], [-1, 0.1, 1], [1, 0.1], [1, 0.1, -1]])
def test_privacy_that_is_none_is_refused(privacy):
    with refused("invalid", says="privacy"):
        method["fedrecovery"](Schedule(), privacy=privacy)


def test_the_server_works_alone_and_once():
    outcome = unlearn(method["fedrecovery"](Schedule(4, 0.05, 3, 0.05)), request(), Quadratics())
    assert [row["stage"] for row in outcome.metrics] == ["start", "unlearning", *["post-training"] * 6]
    assert outcome.metrics[1]["local_trainings"] == 0
