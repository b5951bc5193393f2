from __future__ import annotations

import copy

import torch
from support.closed_form import fresh, jobs_of, request
from support.federations import holdings, network
from torch.nn.functional import cross_entropy

from fedunlearn import Classification, Schedule, State, Terms, flatten, method, step, train
from fedunlearn.client import Learner
from fedunlearn.core.seeds import generator


def rule(length: int):
    return step["quasi_newton"](train(torch.zeros(length), step="quasi_newton"))


def test_the_first_step_has_the_sign_of_the_gradient_and_the_length_of_the_learning_rate():
    gradient = torch.randn(500, generator=generator("gradient"))
    moved = rule(500)(torch.zeros(500), gradient, 0.001)
    assert torch.allclose(moved, 0.001 * gradient.sign(), rtol=1e-4, atol=0)


def test_a_parameter_without_gradient_stays():
    moved = rule(2)(torch.zeros(2), torch.tensor([0.0, 1.0]), 0.001)
    assert moved[0] == 0


def test_local_training_is_that_of_adam_begun_anew():
    model, held = network("perceptron"), holdings("perceptron")["site-4"]
    data, learner = held.train, Learner(model, Classification())
    job, terms = train(flatten(model), step="quasi_newton"), Terms(lr=0.01, epochs=3, batch_size=4)
    moved = learner.perform("site-4", held, job, terms).moved
    reference = copy.deepcopy(model)
    optimiser = torch.optim.Adam(reference.parameters(), lr=0.01)
    for _ in range(3):
        for x, y in zip(data.x.split(4), data.y.split(4), strict=True):
            optimiser.zero_grad()
            cross_entropy(reference(x), y).backward()
            optimiser.step()
    assert torch.allclose(flatten(model) - moved, flatten(reference), atol=1e-5)
    assert torch.equal(learner.perform("site-4", held, job, terms).moved, moved)


def test_it_begins_with_the_new_model_of_retraining():
    (phase,) = method["rapid"](Schedule(2, 0.1, 3, 0.1), lr=0.002)
    state = phase.start(request(), State(request().params))
    assert torch.equal(state.params, fresh("retrain").params)
    assert (phase.rounds, phase.lr) == (5, 0.002)
    jobs = jobs_of(phase, request(), state)
    assert set(jobs) == set(request().retained)
    assert {(job.config["loss"], job.config["step"]) for job in jobs.values()} == {("task", "quasi_newton")}
