from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from support.closed_form import CLIENTS, Quadratics, fresh, jobs_of, pretrained, request
from support.federations import holdings, network

from fedunlearn import Classification, State, Terms, flatten, step, train, unlearn
from fedunlearn.client import Learner
from fedunlearn.core.seeds import generator
from fedunlearn.maths import distance
from fedunlearn.methods.fupga import DRAWS, ProjectedAscent

TARGET = "site-1"


def ball(centre: torch.Tensor, radius: float):
    arrays = {"centre": centre}
    return step["ball"](train(centre, "ascent", "ball", arrays=arrays, radius=radius, clip=math.inf))


def asked(targets=(TARGET,)):
    return replace(request(targets=targets), params=pretrained().params)


@pytest.mark.parametrize("targets", [(TARGET,), (TARGET, "site-3")])
def test_the_centre_is_the_mean_of_the_others_last_models(targets):
    state = ProjectedAscent(3, 0.1).start(asked(targets), State(asked().params))
    others = [client for client in CLIENTS if client not in targets]
    examples = {client: 10 + CLIENTS.index(client) for client in others}
    mean = sum(
        examples[client] / sum(examples.values()) * pretrained().memory[f"locals/{client}"]
        for client in others
    )
    assert torch.allclose(state.memory["centre"], mean, atol=1e-6)


def test_the_radius_is_measured_by_new_models():
    def radius(rule):
        state = ProjectedAscent(3, 0.1, radius=rule).start(asked(), State(asked().params))
        away = [distance(state.memory["centre"], fresh(f"fupga {draw}").params) for draw in range(DRAWS)]
        return float(state.memory["radius"]), away

    measured, away = radius("third")
    assert measured == pytest.approx(sum(away) / DRAWS / 3, rel=1e-6)
    measured, away = radius("ibm")
    assert measured == pytest.approx(math.sqrt(sum(each**2 for each in away) / DRAWS / 3), rel=1e-6)


def test_the_first_round_begins_at_the_centre():
    phase = ProjectedAscent(3, 0.1)
    state = phase.start(asked(), State(asked().params))
    (job,) = jobs_of(phase, asked(), state).values()
    assert torch.equal(job.params, state.memory["centre"])
    (later,) = jobs_of(phase, asked(), replace(state, round=1)).values()
    assert torch.equal(later.params, state.params)


@pytest.mark.parametrize("targets", [(TARGET,), (TARGET, "site-3")])
def test_the_model_never_leaves_the_ball(targets):
    heard = []
    phases = (ProjectedAscent(40, 0.9, clip=math.inf),)
    outcome = unlearn(phases, asked(targets), Quadratics(), listeners=[heard.append])
    memory = outcome.state.memory
    gone = [distance(event.progress.state.params, memory["centre"]) for event in heard[1:]]
    assert max(gone) <= float(memory["radius"]) * (1 + 1e-6)
    assert max(gone) >= float(memory["radius"]) * (0.9 if len(targets) == 1 else 0.5)
    assert max(row["reach"] for row in outcome.metrics[1:]) <= 1 + 1e-6


def test_no_local_step_of_a_network_leaves_the_ball():
    model, data = network("perceptron"), holdings("perceptron")["site-4"]
    arrays = {"centre": flatten(model)}
    job = train(flatten(model), "ascent", "ball", arrays=arrays, radius=0.05, clip=5.0)
    for epochs in range(1, 6):
        terms = Terms(lr=0.5, epochs=epochs, batch_size=4)
        moved = Learner(model, Classification()).perform("site-4", data, job, terms).moved
        assert float(moved.norm()) == pytest.approx(0.05, rel=1e-5)


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3])
def test_a_step_within_the_ball_is_plain_ascent_and_one_beyond_it_ends_on_the_sphere(size):
    random = generator("ball", size)
    centre, params, gradient = size * torch.randn(3, 500, generator=random)
    far = 2 * distance(params - gradient, centre)
    assert torch.equal(ball(centre, far)(params, gradient, 1.0), gradient)
    reached = params - ball(centre, far / 10)(params, gradient, 1.0)
    assert distance(reached, centre) == pytest.approx(far / 10, rel=1e-5)
    # On the line to where the step would have led.
    assert torch.allclose(reached - centre, (params - gradient - centre) / 5, rtol=1e-4, atol=1e-5 * size)


def test_projecting_twice_is_projecting_once():
    random = generator("twice")
    centre, params = torch.randn(2, 50, generator=random)
    once = params - ball(centre, 1.0)(params, torch.zeros(50), 1.0)
    twice = once - ball(centre, 1.0)(once, torch.zeros(50), 1.0)
    assert torch.allclose(once, twice, atol=1e-6)
