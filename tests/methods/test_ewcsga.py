from __future__ import annotations

import math

import pytest
import torch
from support.closed_form import DIMENSION, Quadratics, drive, jobs_of, request
from support.federations import holdings, network
from torch.nn.functional import cross_entropy

from fedunlearn import (
    Classification,
    ClientData,
    Job,
    Replies,
    Reply,
    State,
    Terms,
    flatten,
    step,
    train,
    unlearn,
)
from fedunlearn.client import Learner
from fedunlearn.methods.ewcsga import ElasticAscent

DATA = holdings("perceptron")["site-4"].train
TERMS = Terms(lr=0.1, batch_size=99)


def slope(model, x, y) -> torch.Tensor:
    return torch.cat(
        [g.reshape(-1) for g in torch.autograd.grad(cross_entropy(model(x), y), model.parameters())]
    )


def climb(model, *, fisher: torch.Tensor, penalty: float, clip: float = math.inf) -> torch.Tensor:
    arrays = {"anchor": flatten(model), "fisher": fisher}
    job = train(flatten(model), "ascent", "elastic", arrays=arrays, penalty=penalty, clip=clip)
    return -Learner(model, Classification()).perform("site-4", ClientData(DATA), job, TERMS).moved


def pull(stiffness: list[float], away: torch.Tensor) -> torch.Tensor:
    """What a step subtracts where the loss has no slope."""
    arrays = {"anchor": torch.zeros_like(away), "fisher": torch.tensor(stiffness)}
    job = train(away, "ascent", "elastic", arrays=arrays, penalty=1.0, clip=5.0)
    return step["elastic"](job)(away, torch.zeros_like(away), 0.1)


@pytest.mark.parametrize("clip", [math.inf, 0.01])
def test_without_penalty_one_step_is_the_clipped_gradient_upwards(clip):
    model = network("perceptron")
    gradient = slope(model, DATA.x, DATA.y)
    expected = 0.1 * gradient * min(1.0, clip / float(gradient.norm()))
    fisher = torch.ones_like(gradient)
    assert torch.allclose(climb(model, fisher=fisher, penalty=0.0, clip=clip), expected, atol=1e-7)


def test_at_the_anchor_the_penalty_has_no_gradient():
    model = network("perceptron")
    fisher = torch.rand(len(flatten(model)), generator=torch.Generator().manual_seed(1))
    assert torch.equal(climb(model, fisher=fisher, penalty=5000.0), climb(model, fisher=fisher, penalty=0.0))


def test_away_from_the_anchor_the_penalty_pulls_back_by_importance():
    assert pull([0.0, 1.0, 2.0, 3.0], torch.ones(4)).tolist() == pytest.approx([0, 0.1, 0.2, 0.3])


def test_the_hardest_spring_leads_back_to_the_anchor_and_not_beyond():
    away = torch.tensor([1.0, -3.0])
    assert torch.allclose(pull([1e12, math.inf], away), away)


def test_importance_is_the_mean_squared_gradient_of_what_the_model_predicts():
    model, data = network("convolution"), holdings("convolution")["site-4"]
    job = Job("fisher", flatten(model))
    reply = Learner(model, Classification()).perform("site-4", data, job, Terms(batch_size=4))
    model.eval()
    squares = [slope(model, x, model(x).argmax(1)).square() for x in data.train.x.split(4)]
    assert torch.allclose(reply.arrays["fisher"], torch.stack(squares).mean(0), atol=1e-7)
    assert bool((reply.arrays["fisher"] >= 0).all())
    assert reply.arrays["fisher"].any()
    assert reply.displacement is None


@pytest.mark.parametrize("whose", ["target", "retained"])
def test_the_first_round_asks_for_importance_first_and_averages_it_by_examples(whose):
    federation, asked = Quadratics(), request(targets=("site-1", "site-2"))
    outcome = unlearn([ElasticAscent(3, 0.1, whose=whose)], asked, federation)
    works = [{job.work for job in jobs.values()} for jobs, _ in federation.exchanged]
    assert works == [{"fisher"}, {"train"}, {"train"}, {"train"}]
    assert set(federation.asked()[0]) == set(asked.targets if whose == "target" else asked.retained)
    replies = federation.exchanged[0][1]
    total = sum(reply.examples for reply in replies.values())
    expected = sum(reply.examples / total * reply.arrays["fisher"] for reply in replies.values())
    assert torch.allclose(outcome.state.memory["fisher"], expected)
    # An upload is no local training.
    assert [row["local_trainings"] for row in outcome.metrics[1:]] == [2, 2, 2]


def test_the_ascent_of_several_targets_counts_equally_whatever_they_hold():
    asked = request(targets=("site-1", "site-2"))
    one, other = torch.randn(2, DIMENSION, generator=torch.Generator().manual_seed(1)).unbind()
    replies = Replies({"site-1": Reply(one, 1), "site-2": Reply(other, 1000)})
    state = State(asked.params, memory={"fisher": torch.ones(DIMENSION)})
    _, after = drive(ElasticAscent(9, 0.1), asked, state, replies)
    assert torch.allclose(asked.params - after.params, (one + other) / 2, atol=1e-6)


def test_the_anchor_stays_where_unlearning_began():
    asked = request()
    state = State(asked.params + 1, 3, {"fisher": torch.ones(DIMENSION)})
    (job,) = jobs_of(ElasticAscent(9, 0.1), asked, state).values()
    assert torch.equal(job.arrays["anchor"], asked.params)
    assert torch.equal(job.params, state.params)


def test_a_target_that_is_away_for_the_training_of_the_first_round_is_asked_for_both_again():
    heard = []
    phases = [ElasticAscent(2, 0.1)]
    outcome = unlearn(phases, request(), Quadratics(absent={"site-1": [2]}), listeners=[heard.append])
    assert outcome.status.failed
    assert "fisher" not in heard[-1].progress.state.memory
    federation = Quadratics()
    back = unlearn(phases, request(), federation, resume=heard[-1].progress)
    assert len(federation.exchanged) == 3
    assert torch.equal(back.params, unlearn(phases, request(), Quadratics()).params)
