from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from closed_form import PUBLIC, Quadratics, request
from federations import holdings, network
from torch.nn.functional import kl_div

from fedunlearn import FedUnlearnError, Job, Replies, Schedule, State, flatten, method, unlearn
from fedunlearn.local import Learner
from fedunlearn.methods.fedkdu import PublicDistillation, UpdateErasure
from fedunlearn.objectives import answers

TARGET = "site-1"


def erase(asked) -> State:
    return UpdateErasure(1, 0.1).tell(asked, State(asked.params), Replies({}))


def distil(model, start: torch.Tensor, teacher: torch.Tensor, temperature: float, epochs: int = 1):
    arrays = {"teacher": teacher, "temperature": torch.tensor(temperature)}
    job = Job(start, "distillation", arrays, lr=0.5, epochs=epochs, batch_size=99)
    return Learner(model).train(holdings("perceptron")["site-4"].train, job).displacement


def test_a_target_that_added_nothing_leaves_the_model_as_it_is():
    history = {**request().history, f"updates {TARGET}": torch.zeros_like(request().params)}
    asked = replace(request(), history=history)
    assert torch.equal(erase(asked).params, asked.params)


@pytest.mark.parametrize("targets", [(TARGET,), (TARGET, "site-3")])
def test_what_is_erased_is_all_that_the_targets_added(targets):
    asked = request(targets=targets)
    added = sum(asked.recorded("updates", target) for target in targets)
    after = erase(asked)
    assert torch.allclose(after.params + added, asked.params, atol=1e-6)
    assert after.diagnostics["erased"] == pytest.approx(float(added.norm() / asked.params.norm()), rel=1e-5)


@pytest.mark.parametrize("temperature", [1.0, 2.0, 10.0])
def test_the_teacher_itself_has_nothing_to_learn(temperature):
    model = network("perceptron")
    moved = distil(model, flatten(model), flatten(model), temperature)
    other = distil(model, flatten(model) * 0.5, flatten(model), temperature)
    assert float(moved.norm()) <= 1e-5 * float(other.norm())


def test_the_student_learns_what_the_teacher_says_and_no_label():
    model = network("perceptron")
    x = holdings("perceptron")["site-4"].train.x
    teacher, start = flatten(model), flatten(model) * 0.3

    def gap(params: torch.Tensor) -> float:
        mine, theirs = (answers(model, vector, x).log_softmax(1) for vector in (params, teacher))
        return float(kl_div(mine, theirs, log_target=True, reduction="batchmean"))

    learned = start - distil(model, start, teacher, 2.0, epochs=200)
    assert gap(learned) < 0.05 * gap(start)


def test_only_the_public_data_is_asked_and_the_teacher_stays():
    asked, moved = request(), State(request().params + 1, round=2)
    jobs = PublicDistillation(5, 0.1).ask(asked, moved)
    assert set(jobs) == {PUBLIC}
    assert torch.equal(jobs[PUBLIC].arrays["teacher"], asked.params)
    assert torch.equal(jobs[PUBLIC].params, moved.params)


def test_no_client_works_until_the_recovery():
    outcome = unlearn(method["fedkdu"](Schedule(4, 0.05, 6, 0.05)), request(), Quadratics())
    assert [row["local_trainings"] for row in outcome.metrics[1:]] == [0, *[0] * 5, *[4] * 4]


def test_without_public_data_it_is_refused():
    with pytest.raises(FedUnlearnError, match="holds public data"):
        unlearn(method["fedkdu"](Schedule(1, 0.1, 9, 0.1)), replace(request(), public=None), Quadratics())


class Forgotten(Quadratics):
    def evaluate(self, params, buffers):
        told = super().evaluate(params, buffers)
        return {
            client: {**row, "backdoor_accuracy": 0.0, "backdoor_examples": 1} for client, row in told.items()
        }


def test_distillation_repairs_however_much_is_forgotten():
    phases = method["fedkdu"](Schedule(4, 0.05, 6, 0.05))
    outcome = unlearn(phases, request(), Forgotten(), stop_below=0.5)
    assert [row["stage"] for row in outcome.metrics[1:]] == ["unlearning"] * 6 + ["post-training"] * 4
