from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from closed_form import DIMENSION, Quadratics, fresh, request
from federations import holdings, network
from fedunlearn.local import Learner

from fedunlearn import FedUnlearnError, Job, Replies, Reply, Schedule, State, flatten, method, unlearn
from fedunlearn.core.vectors import views
from fedunlearn.maths import distance
from fedunlearn.methods.mode import MomentumDegradation

TARGET = "site-1"


class Still(Quadratics):
    """Trains nothing: θ stays as it is."""

    def train(self, jobs):
        return Replies(
            {c: Reply(torch.zeros(DIMENSION), reply.examples) for c, reply in super().train(jobs).items()}
        )


def degrade(federation: Quadratics, rounds: int = 6, **options: object):
    heard = []
    phase = MomentumDegradation(rounds, 0.05, **options)
    unlearn([phase], request(), federation, listeners=[heard.append])
    return [event.progress.state for event in heard]


def test_with_all_momentum_and_no_guidance_nothing_changes():
    states = degrade(Quadratics(), momentum=1.0, guidance="none")
    assert torch.equal(states[-1].params, request().params)
    assert not torch.equal(states[-1].memory["degraded"], fresh("mode").params)


def test_without_momentum_the_model_is_the_new_one():
    for state in degrade(Quadratics(), momentum=0.0, guidance="none")[1:]:
        assert torch.allclose(state.params, state.memory["degraded"], atol=1e-6)


def test_the_distance_to_a_frozen_model_shrinks_by_the_momentum():
    start = distance(request().params, fresh("mode").params)
    for number, state in enumerate(degrade(Still(), rounds=30, guidance="none")):
        assert distance(state.params, fresh("mode").params) == pytest.approx(0.95**number * start, rel=1e-5)


@pytest.mark.parametrize("guidance", ["all", "target", "none"])
def test_the_target_never_trains_the_new_model(guidance):
    phase, asked = MomentumDegradation(6, 0.05, guidance=guidance), request()
    state = phase.start(asked, State(asked.params))
    for number in (0, 2, 4):
        jobs = phase.ask(asked, State(state.params, number, state.memory))
        assert set(jobs) == set(asked.retained)
        assert all(torch.equal(job.params, state.memory["degraded"]) for job in jobs.values())
        assert {job.lr for job in jobs.values()} == {phase.degrade_lr}


@pytest.mark.parametrize(("guidance", "others"), [("all", 4), ("target", 0)])
def test_guidance_averages_by_examples_over_everybody(guidance, others):
    phase, asked = MomentumDegradation(6, 0.05, guidance=guidance), request()
    memory = {"degraded": torch.zeros(DIMENSION), "examples": torch.tensor(49)}
    state = State(asked.params, 1, memory)
    jobs = phase.ask(asked, state)
    assert len(jobs) == 1 + others
    assert jobs[TARGET].objective == "pseudo_labels"
    assert torch.equal(jobs[TARGET].arrays["teacher"], memory["degraded"])
    assert all(job.objective is None for client, job in jobs.items() if client != TARGET)
    replies = Quadratics().train(jobs)
    after = phase.tell(asked, state, replies)
    examples = {"site-0": 10, TARGET: 11, "site-2": 12, "site-3": 13, "site-4": 14}
    expected = sum(examples[c] / 60 * reply.displacement for c, reply in replies.items())
    assert torch.allclose(state.params - after.params, expected, atol=1e-6)


def test_pseudo_labels_are_what_the_other_model_says():
    model, data = network("convolution"), holdings("convolution")["site-3"].train
    teacher = flatten(model) * torch.linspace(-1, 1, len(flatten(model)))
    job = Job(flatten(model), "pseudo_labels", {"teacher": teacher}, lr=0.1, batch_size=99, seed=4)
    moved = Learner(model).train(data, job).displacement
    with torch.no_grad():
        said = network("convolution").eval()
        for parameter, piece in zip(said.parameters(), views(teacher, said), strict=True):
            parameter.copy_(piece)
        labels = said(data.x).argmax(1)
    assert not torch.equal(labels, data.y)
    plain = Learner(model).train(data._replace(y=labels), Job(flatten(model), lr=0.1, batch_size=99, seed=4))
    assert torch.allclose(moved, plain.displacement, atol=1e-7)


def test_one_round_of_the_paper_is_two_of_ours():
    assert [phase.rounds for phase in method["mode"](Schedule(10, 0.1, 3, 0.1))] == [20, 3]
    assert [phase.rounds for phase in method["mode"](Schedule(10, 0.1, 3, 0.1), guidance="none")] == [10, 3]


def test_without_new_models_it_is_refused():
    asked = request()
    with pytest.raises(FedUnlearnError, match="fresh"):
        unlearn([MomentumDegradation(2, 0.1)], replace(asked, fresh=None), Quadratics())
