from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support.closed_form import DIMENSION, SCHEDULE, Quadratics, fresh, phases, request
from support.codes import refused
from torch import Tensor

from fedunlearn import Below, Guards, Phase, Request, State, method, unlearn
from fedunlearn.core.seeds import generator
from fedunlearn.maths import gaussian_epsilon, noise_sensitivity
from fedunlearn.methods.noisy_finetune import NoisyAveraging

CENTRE = fresh("pre-training").params


def noisy(rounds: int = 4, radius=1.0, clip=0.1, shrink=0.2, sigma=0.5) -> NoisyAveraging:
    return NoisyAveraging(rounds, 0.05, radius, clip, shrink, sigma, 1e-5)


def run(phase: Phase, asked: Request | None = None) -> Tensor:
    return unlearn([phase], asked or request(), Quadratics()).params


def test_the_noisy_model_is_the_clipped_one_with_noise():
    asked = request()
    away = asked.params - CENTRE
    assert away.norm() > 1
    noise = torch.randn(DIMENSION, generator=generator(asked.seed, "noisy fine-tuning", 0))
    expected = CENTRE + 0.8 * away / away.norm() + 0.5 * noise
    assert torch.allclose(noisy().origin(asked, State(asked.params)), expected, atol=1e-6)
    inside = State(CENTRE + 0.1 * away / away.norm())
    expected = CENTRE + 0.8 * (inside.params - CENTRE) + 0.5 * noise
    assert torch.allclose(noisy().origin(asked, inside), expected, atol=1e-6)


def test_no_update_is_longer_than_the_clip_whatever_clients_send():
    class Loud(Quadratics):
        def gradient(self, client, params):
            return 1e4 * super().gradient(client, params)

    asked = request()
    start = noisy().origin(asked, State(asked.params))
    moved = unlearn([noisy(1)], asked, Loud()).params - start
    assert float(moved.norm()) == pytest.approx(0.1, rel=1e-4)
    quiet = unlearn([noisy(1, clip=100.0)], asked, Quadratics()).params - start
    assert 0 < float(quiet.norm()) < 100


def test_the_noise_is_that_of_the_seed_and_the_round():
    asked = request()
    assert torch.equal(run(noisy()), run(noisy()))
    assert not torch.equal(run(noisy()), run(noisy(), replace(asked, seed=1)))
    state = State(CENTRE)
    assert not torch.equal(noisy().origin(asked, state), noisy().origin(asked, replace(state, round=1)))


@pytest.mark.parametrize("epsilon", [0.5, 20.0])
def test_every_round_tells_its_epsilon_and_noise_is_found_for_the_wanted_one(epsilon):
    outcome = unlearn(phases("noisy-finetune", epsilon=epsilon), request(), Quadratics())
    told = [row["epsilon"] for row in outcome.metrics[1:]]
    assert len(told) == SCHEDULE.rounds
    assert told == sorted(told, reverse=True)
    assert told[SCHEDULE.unlearn_rounds - 1 :] == pytest.approx(
        [epsilon] * (1 + SCHEDULE.recover_rounds), rel=1e-6
    )


def test_a_given_sigma_decides_the_epsilon():
    options = {"sigma": 0.3, "delta": 1e-3, "radius": 2.0, "clip": 0.05, "shrink": 0.1}
    outcome = unlearn(phases("noisy-finetune", **options), request(), Quadratics())
    apart = noise_sensitivity(SCHEDULE.unlearn_rounds, 2.0, 0.05, 0.1)
    assert outcome.metrics[-1]["epsilon"] == pytest.approx(gaussian_epsilon(apart / 0.3, 1e-3))


def test_the_best_attack_on_real_rounds_is_as_good_as_the_bound_and_no_better():
    """Without updates, the last models of two starts are two Gaussians that differ along one direction."""
    phase, count = noisy(3, clip=0.0, shrink=0.3, sigma=1.5), 1500
    direction = torch.nn.functional.normalize(torch.ones(DIMENSION), dim=0)
    scores = {1: [], -1: []}
    for sign, found in scores.items():
        for seed in range(count):
            asked = replace(request(), seed=derived(sign, seed))
            state = State(CENTRE + 9 * sign * direction)
            for number in range(phase.rounds):
                state = State(phase.origin(asked, state), round=number + 1)
            found.append(float((state.params - CENTRE) @ direction))
    one, other = torch.tensor(scores[1]), torch.tensor(scores[-1])
    auc = float((one.unsqueeze(1) > other).double().mean())
    mu = noise_sensitivity(3, 1.0, 0.0, 0.3) / 1.5
    expected = float(torch.special.ndtr(torch.tensor(mu / 2**0.5)))
    assert expected > 0.55
    assert auc == pytest.approx(expected, abs=0.03)


def derived(sign: int, seed: int) -> int:
    return 2 * seed + (sign > 0)


def test_where_guards_or_stop_rules_look_on_nothing_is_certified():
    for given in ({"guards": Guards(harm=1e6)}, {"stop": [Below("asr", 0.0)]}):
        outcome = unlearn(phases("noisy-finetune"), request(), Quadratics(), **given)
        assert len(outcome.metrics) > 2
        assert not any("epsilon" in row for row in outcome.metrics)


def test_without_noisy_rounds_nothing_is_certified():
    outcome = unlearn(phases("noisy-finetune", replace(SCHEDULE, unlearn_rounds=0)), request(), Quadratics())
    assert not any("epsilon" in row for row in outcome.metrics)


def test_a_model_with_batch_norm_is_refused():
    with refused("unsuitable", says="BatchNorm"):
        run(noisy(), replace(request(), buffers={"mean": torch.zeros(3)}))


@pytest.mark.parametrize(
    "options",
    [{"epsilon": 0.0}, {"delta": 1.0}, {"sigma": 0.0}, {"radius": 0.0}, {"clip": -1.0}, {"shrink": 1.0}],
)
def test_settings_that_certify_nothing_are_refused(options):
    (name,) = options
    with refused("invalid", says=f"{name} = .*: it must be"):
        method["noisy-finetune"](SCHEDULE, **options)
