from __future__ import annotations

import pytest
import torch
from support.closed_form import DIMENSION, Quadratics, fresh, request
from support.federations import holdings, network
from torch import nn

from fedunlearn import (
    Classification,
    ClientData,
    Request,
    Schedule,
    Sequential,
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
from fedunlearn.core.seeds import generator
from fedunlearn.core.vectors import buffers
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


def normalised(seed: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))


def shifted(number: int) -> ClientData:
    random = generator("shifted", number)
    x = torch.randn(12, 4, generator=random) + 3 * number
    return ClientData((x, torch.randint(0, 3, (12,), generator=random)))


@pytest.mark.parametrize("guidance", ["all", "target", "none"])
def test_each_model_keeps_the_batch_norm_statistics_of_its_own_training(guidance):
    """What the loop does, done by hand for both models."""
    model, new = normalised(1), normalised(2)
    clients = {f"site-{number}": shifted(number) for number in range(3)}
    federation = Sequential(model, clients)
    asked = Request(
        flatten(model),
        tuple(clients),
        (TARGET,),
        lambda purpose: State(flatten(new), buffers=buffers(new)),
        buffers(model),
    )
    phase = MomentumDegradation(2, 0.05, guidance=guidance)
    state = unlearn([phase], asked, federation, seed=4).state

    omega, own = flatten(model), buffers(model)
    theta, other = flatten(new), buffers(new)
    for round in range(2):

        def ask(jobs, exchange, round=round):
            terms = Terms(0.05, 0.999**round, seed=(4, 0, round), exchange=exchange)
            return federation.exchange(jobs, terms)

        taught = ask({c: train(theta, lr=0.05, buffers=other) for c in asked.retained}, 0)
        theta, other = theta - taught.average(), taught.merged_buffers(other)
        omega = omega + (1 - 0.95) * (theta - omega)
        if guidance != "none":
            hints = {"teacher": theta, **{f"teacher/{name}": value for name, value in other.items()}}
            jobs = {TARGET: train(omega, "pseudo_labels", arrays=hints, buffers=own)}
            if guidance == "all":
                jobs |= {c: train(omega, buffers=own) for c in asked.retained}
            replies = ask(jobs, 1)
            omega = omega - replies.average() * (1.0 if guidance == "all" else 12 / 36)
            own = replies.of(asked.retained).merged_buffers(own)
    for name in own:
        assert torch.equal(state.buffers[name], own[name])
        assert torch.equal(state.memory[f"degraded/{name}"], other[name])
    assert torch.allclose(state.params, omega, atol=1e-7)


def test_a_teacher_predicts_with_its_own_batch_norm_statistics():
    model, other, data = normalised(1), normalised(2), shifted(1)
    statistics = buffers(other) | {"1.running_mean": torch.linspace(-9, 9, 4)}
    hints = {"teacher": flatten(other), **{f"teacher/{name}": each for name, each in statistics.items()}}
    learner, terms = Learner(model, Classification()), Terms(lr=0.1, batch_size=99)
    moved = learner.perform("a", data, train(flatten(model), "pseudo_labels", arrays=hints), terms).moved
    load(other, State(flatten(other), buffers=statistics))
    relabelled = ClientData((data.train.x, other.eval()(data.train.x).argmax(1)))
    plain = learner.perform("a", relabelled, train(flatten(model)), terms).moved
    assert torch.allclose(moved, plain, atol=1e-7)
