from __future__ import annotations

import pytest
import torch
from support.closed_form import PUBLIC, Quadratics, drive, jobs_of, request
from support.federations import holdings, network
from torch.nn.functional import kl_div

from fedunlearn import (
    Below,
    Classification,
    ClientData,
    History,
    Schedule,
    State,
    Terms,
    flatten,
    load,
    method,
    train,
    unlearn,
)
from fedunlearn.client import Learner
from fedunlearn.client.losses import teacher_logits
from fedunlearn.methods.fedkdu import PublicDistillation, UpdateErasure

TARGET = "site-1"
PICTURES = holdings("perceptron")["site-4"].train


def erase(asked) -> State:
    return drive(UpdateErasure(1, 0.1), asked, State(asked.params))[1]


def distil(model, start: torch.Tensor, teacher: torch.Tensor, temperature: float, epochs: int = 1):
    job = train(start, "distillation", arrays={"teacher": teacher}, temperature=temperature)
    terms = Terms(lr=0.5, epochs=epochs, batch_size=99)
    return Learner(model, Classification()).perform("site-4", ClientData(PICTURES), job, terms).moved


def test_a_target_that_added_nothing_leaves_the_model_as_it_is():
    asked = request(history=History({"updates": {TARGET: torch.zeros_like(request().params)}}))
    assert torch.equal(erase(asked).params, asked.params)


@pytest.mark.parametrize("targets", [(TARGET,), (TARGET, "site-3")])
def test_what_is_erased_is_all_that_the_targets_added(targets):
    asked = request(targets=targets)
    added = sum(asked.history.of("updates", target) for target in targets)
    after = erase(asked)
    assert torch.allclose(after.params + added, asked.params, atol=1e-6)
    assert after.diagnostics["erased"] == pytest.approx(float(added.norm() / asked.params.norm()), rel=1e-5)


@pytest.mark.parametrize("temperature", [1.0, 2.0, 10.0])
def test_the_teacher_itself_has_nothing_to_learn(temperature):
    model = network("perceptron")
    moved = distil(model, flatten(model), flatten(model), temperature)
    other = distil(model, flatten(model) * 0.5, flatten(model), temperature)
    assert float(moved.norm()) <= 1e-5 * float(other.norm())


@pytest.mark.parametrize("temperature", [1.0, 4.0])
def test_one_step_is_the_gradient_of_the_divergence_at_the_temperature_times_its_square(temperature):
    model = network("perceptron")
    teacher, start = flatten(model), flatten(model) * 0.3
    moved = distil(model, start, teacher, temperature)
    with torch.no_grad():
        said = model(PICTURES.x)
    load(model, State(start))
    mine = (model(PICTURES.x) / temperature).log_softmax(1)
    theirs = (said / temperature).log_softmax(1)
    loss = temperature**2 * kl_div(mine, theirs, log_target=True, reduction="batchmean")
    slopes = torch.autograd.grad(loss, list(model.parameters()))
    expected = 0.5 * torch.cat([slope.reshape(-1) for slope in slopes])
    assert torch.allclose(moved, expected, rtol=1e-4, atol=1e-7)


def test_the_student_learns_what_the_teacher_says_and_no_label():
    model = network("perceptron")
    teacher, start = flatten(model), flatten(model) * 0.3

    def gap(params: torch.Tensor) -> float:
        mine, theirs = (
            teacher_logits(Classification(), model, vector, PICTURES).log_softmax(1)
            for vector in (params, teacher)
        )
        return float(kl_div(mine, theirs, log_target=True, reduction="batchmean"))

    learned = start - distil(model, start, teacher, 2.0, epochs=200)
    assert gap(learned) < 0.05 * gap(start)


def test_only_the_public_data_is_asked_and_the_teacher_stays():
    asked, moved = request(), State(request().params + 1, round=2)
    jobs = jobs_of(PublicDistillation(5, 0.1), asked, moved)
    assert set(jobs) == {PUBLIC}
    assert torch.equal(jobs[PUBLIC].arrays["teacher"], asked.params)
    assert torch.equal(jobs[PUBLIC].params, moved.params)


def test_no_client_works_until_the_recovery():
    outcome = unlearn(method["fedkdu"](Schedule(4, 0.05, 6, 0.05)), request(), Quadratics())
    assert [row["local_trainings"] for row in outcome.metrics[1:]] == [0, *[0] * 5, *[4] * 4]


def test_distillation_repairs_however_much_is_forgotten():
    phases = method["fedkdu"](Schedule(4, 0.05, 6, 0.05))
    outcome = unlearn(phases, request(), Quadratics(), stop=[Below("asr", 2.0)])
    assert [row["stage"] for row in outcome.metrics[1:]] == ["unlearning", *["post-training"] * 9]
