from __future__ import annotations

import copy

import torch
from closed_form import fresh, request
from federations import holdings, network
from fedunlearn.local import Learner
from torch.nn.functional import cross_entropy

from fedunlearn import Job, Schedule, State, flatten, method
from fedunlearn.core.seeds import generator
from fedunlearn.methods.rapid import QuasiNewton


def test_the_first_step_has_the_sign_of_the_gradient_and_the_length_of_the_learning_rate():
    gradient = torch.randn(500, generator=generator("gradient"))
    moved = QuasiNewton().step(torch.zeros(500), gradient, 0.001)
    assert torch.allclose(moved, 0.001 * gradient.sign(), rtol=1e-4, atol=0)


def test_a_parameter_without_gradient_stays():
    moved = QuasiNewton().step(torch.zeros(2), torch.tensor([0.0, 1.0]), 0.001)
    assert moved[0] == 0


def test_local_training_is_that_of_adam_begun_anew():
    model, data = network("perceptron"), holdings("perceptron")["site-4"].train
    learner = Learner(model)
    job = Job(flatten(model), "quasi_newton", lr=0.01, epochs=3, batch_size=4)
    moved = learner.train(data, job).displacement
    reference = copy.deepcopy(model)
    optimiser = torch.optim.Adam(reference.parameters(), lr=0.01)
    for _ in range(3):
        for x, y in zip(data.x.split(4), data.y.split(4), strict=True):
            optimiser.zero_grad()
            cross_entropy(reference(x), y).backward()
            optimiser.step()
    assert torch.allclose(flatten(model) - moved, flatten(reference), atol=1e-5)
    assert torch.equal(learner.train(data, job).displacement, moved)


def test_it_begins_with_the_new_model_of_retraining():
    (phase,) = method["rapid"](Schedule(2, 0.1, 3, 0.1), lr=0.002)
    state = phase.start(request(), State(request().params))
    assert torch.equal(state.params, fresh("retrain").params)
    assert (phase.rounds, phase.lr) == (5, 0.002)
    jobs = phase.ask(request(), state)
    assert set(jobs) == set(request().retained)
    assert {job.objective for job in jobs.values()} == {"quasi_newton"}
