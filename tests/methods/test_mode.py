from __future__ import annotations

import pytest
import torch
from closed_form import DIMENSION, Quadratics, fresh, request
from federations import holdings, network

from fedunlearn import (
    Classification,
    ClientData,
    Schedule,
    State,
    Status,
    Terms,
    flatten,
    load,
    method,
    train,
    unlearn,
)
from fedunlearn.client import Learner
from fedunlearn.maths import distance
from fedunlearn.methods.mode import MomentumDegradation

TARGET = "site-1"


class Still(Quadratics):
    """Trains nothing: θ stays as it is."""

    def gradient(self, client, params):
        return torch.zeros(DIMENSION)


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
def test_a_round_is_two_exchanges_and_the_target_never_trains_the_new_model(guidance):
    federation, asked = Quadratics(), request()
    phase = MomentumDegradation(3, 0.05, guidance=guidance)
    outcome = unlearn([phase], asked, federation)
    exchanges = federation.exchanged if guidance == "none" else federation.exchanged[::2]
    assert len(exchanges) == 3
    assert len(outcome.metrics) == 1 + 3
    degraded = fresh("mode").params
    for jobs, replies in exchanges:
        assert set(jobs) == set(asked.retained)
        assert all(torch.equal(job.params, degraded) for job in jobs.values())
        assert {job.config["lr"] for job in jobs.values()} == {phase.degrade_lr}
        degraded = degraded - replies.average()
    assert torch.equal(outcome.state.memory["degraded"], degraded)


@pytest.mark.parametrize(("guidance", "others"), [("all", 4), ("target", 0)])
def test_guidance_averages_by_examples_over_everybody(guidance, others):
    federation, asked = Quadratics(), request()
    outcome = unlearn([MomentumDegradation(1, 0.05, guidance=guidance)], asked, federation)
    (_, taught), (jobs, replies) = federation.exchanged
    assert len(jobs) == 1 + others
    theta = fresh("mode").params - taught.average()
    pulled = 0.95 * asked.params + 0.05 * theta
    assert jobs[TARGET].config["loss"] == "pseudo_labels"
    assert torch.equal(jobs[TARGET].arrays["teacher"], theta)
    assert all(job.config["loss"] == "task" for client, job in jobs.items() if client != TARGET)
    assert all(torch.allclose(job.params, pulled, atol=1e-6) for job in jobs.values())
    expected = sum(reply.examples / 60 * reply.moved for reply in replies.values())
    assert torch.allclose(jobs[TARGET].params - outcome.params, expected, atol=1e-6)


def test_a_round_whose_guidance_fails_is_done_again_as_a_whole():
    heard, phases = [], [MomentumDegradation(3, 0.05)]
    broken = unlearn(phases, request(), Quadratics(absent={TARGET: [4]}), listeners=[heard.append])
    assert broken.status is Status.MISSING_REPLY
    assert torch.equal(broken.params, heard[1].progress.state.params)
    back = unlearn(phases, request(), Quadratics(), resume=heard[-1].progress)
    assert torch.equal(back.params, unlearn(phases, request(), Quadratics()).params)


def test_pseudo_labels_are_what_the_other_model_says():
    model, data = network("convolution"), holdings("convolution")["site-3"].train
    teacher = flatten(model) * torch.linspace(-1, 1, len(flatten(model)))
    learner, terms = Learner(model, Classification()), Terms(lr=0.1, batch_size=99)
    job = train(flatten(model), "pseudo_labels", arrays={"teacher": teacher})
    moved = learner.perform("site-3", ClientData(data), job, terms).moved
    said = network("convolution").eval()
    load(said, State(teacher))
    labels = said(data.x).argmax(1)
    assert not torch.equal(labels, data.y)
    relabelled = ClientData(data._replace(y=labels))
    plain = learner.perform("site-3", relabelled, train(flatten(model)), terms).moved
    assert torch.allclose(moved, plain, atol=1e-7)


@pytest.mark.parametrize("guidance", ["all", "target", "none"])
def test_a_round_of_the_paper_is_one_of_ours(guidance):
    phases = method["mode"](Schedule(10, 0.1, 3, 0.1, pretrain_lr=0.5), guidance=guidance)
    assert [phase.rounds for phase in phases] == [10, 3]
    assert phases[0].degrade_lr == 0.5
