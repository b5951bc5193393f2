from __future__ import annotations

import math

import pytest
import torch
from closed_form import Quadratics, request
from federations import holdings, network
from torch.nn.functional import cross_entropy

from fedunlearn import Job, State, flatten, unlearn
from fedunlearn.local import Learner
from fedunlearn.methods.ewcsga import ElasticAscend, ElasticAscent, ImportanceEstimate

DATA = holdings("perceptron")["site-4"].train


def slope(model, x, y) -> torch.Tensor:
    return torch.cat(
        [g.reshape(-1) for g in torch.autograd.grad(cross_entropy(model(x), y), model.parameters())]
    )


def climb(model, *, fisher: torch.Tensor, penalty: float, clip: float = math.inf, start=None) -> torch.Tensor:
    anchor = flatten(model)
    arrays = {
        "anchor": anchor,
        "fisher": fisher,
        "penalty": torch.tensor(penalty),
        "clip": torch.tensor(clip),
    }
    begun = anchor if start is None else start
    job = Job(begun, "elastic_ascent", arrays, lr=0.1, batch_size=99)
    return -Learner(model).train(DATA, job).displacement


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
    anchor, away = torch.zeros(4), torch.ones(4)
    goal = ElasticAscend(anchor=anchor, stiffness=torch.tensor([0.0, 1.0, 2.0, 3.0]))
    assert goal.step(away, torch.zeros(4), 0.1).tolist() == pytest.approx([0, 0.1, 0.2, 0.3])


def test_the_hardest_spring_leads_back_to_the_anchor_and_not_beyond():
    goal = ElasticAscend(anchor=torch.zeros(2), stiffness=torch.tensor([1e12, math.inf]))
    away = torch.tensor([1.0, -3.0])
    assert torch.allclose(goal.step(away, torch.zeros(2), 0.1), away)


def test_importance_is_the_mean_squared_gradient_of_what_the_model_predicts():
    model = network("convolution")
    data = holdings("convolution")["site-4"].train
    job = Job(flatten(model), "fisher", epochs=0, batch_size=4)
    reply = Learner(model).train(data, job)
    model.eval()
    squares = [slope(model, x, model(x).argmax(1)).square() for x in data.x.split(4)]
    assert torch.allclose(reply.arrays["fisher"], torch.stack(squares).mean(0), atol=1e-7)
    assert bool((reply.arrays["fisher"] >= 0).all())
    assert reply.arrays["fisher"].any()
    assert not reply.displacement.any()
    assert reply.metrics == {}


@pytest.mark.parametrize("whose", ["target", "retained"])
def test_importance_is_asked_for_once_and_averaged_by_examples(whose):
    phase, asked = ImportanceEstimate(1, 0.1, whose), request(targets=("site-1", "site-2"))
    jobs = phase.ask(asked, State(asked.params))
    assert set(jobs) == set(asked.targets if whose == "target" else asked.retained)
    replies = Quadratics().train(jobs)
    after = phase.tell(asked, State(asked.params), replies)
    total = sum(reply.examples for reply in replies.values())
    expected = sum(reply.examples / total * reply.arrays["fisher"] for reply in replies.values())
    assert torch.allclose(after.memory["fisher"], expected)
    assert torch.equal(after.params, asked.params)


def test_the_anchor_stays_where_unlearning_began():
    asked = request()
    state = State(asked.params + 1, 3, {"fisher": torch.ones(12)})
    (job,) = ElasticAscent(9, 0.1).ask(asked, state).values()
    assert torch.equal(job.arrays["anchor"], asked.params)
    assert torch.equal(job.params, state.params)


def test_importance_survives_into_the_ascent():
    heard = []
    phases = (ImportanceEstimate(1, 0.1), ElasticAscent(2, 0.1))
    unlearn(phases, request(), Quadratics(), listeners=[heard.append])
    assert all("fisher" in event.progress.state.memory for event in heard[1:])
