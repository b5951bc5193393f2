from __future__ import annotations

import torch
from support.closed_form import jobs_of, request
from support.federations import holdings, network

from fedunlearn import (
    Classification,
    ClientData,
    Examples,
    Schedule,
    State,
    Terms,
    flatten,
    method,
    train,
)
from fedunlearn.client import Learner
from fedunlearn.core.seeds import generator
from fedunlearn.methods.fedquit import Quitting, without_label

LOGITS = 3 * torch.randn(40, 6, generator=generator("logits"))
LABELS = torch.arange(40) % 6


TERMS = Terms(lr=0.1, batch_size=99)


def quit_at(data: Examples, name: str = "perceptron") -> torch.Tensor:
    model = network(name)
    job = train(flatten(model), "virtual_teacher", arrays={"teacher": flatten(model)})
    return Learner(model, Classification()).perform("site-4", ClientData(data), job, TERMS).moved


def test_the_label_gets_the_least_probability():
    target = without_label(LOGITS, LABELS).softmax(1)
    assert torch.equal(target.gather(1, LABELS.unsqueeze(1)), target.amin(1, keepdim=True))


def test_the_odds_among_the_other_classes_stay():
    before, after = LOGITS.softmax(1), without_label(LOGITS, LABELS).softmax(1)
    first, second = (LABELS + 1) % 6, (LABELS + 2) % 6
    rows = torch.arange(40)
    assert torch.allclose(
        after[rows, first] / after[rows, second], before[rows, first] / before[rows, second]
    )


def test_where_the_label_is_the_least_likely_already_there_is_nothing_to_learn():
    x = holdings("perceptron")["site-4"].train.x
    least = network("perceptron")(x).argmin(1)
    other = network("perceptron")(x).argmax(1)
    assert float(quit_at(Examples(x, least)).norm()) <= 1e-6 * float(quit_at(Examples(x, other)).norm())


def test_the_teacher_drops_nothing_out():
    """In evaluation mode, while the student trains: the step is that of a target computed beforehand."""
    data, model = holdings("convolution")["site-4"].train, network("convolution")
    target = without_label(model.eval()(data.x).detach(), data.y).softmax(1)
    moved = quit_at(data, "convolution")
    with torch.random.fork_rng():
        torch.manual_seed(TERMS.seed_of("site-4"))
        loss = -(target * model.train()(data.x).log_softmax(1)).sum(1).mean()
    gradient = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, model.parameters())])
    assert torch.allclose(moved, 0.1 * gradient, atol=1e-7)


def test_the_teacher_is_the_model_that_unlearning_began_with():
    moved = State(request().params + 1, round=3)
    (job,) = jobs_of(Quitting(5, 0.1), request(), moved).values()
    assert torch.equal(job.arrays["teacher"], request().params)
    assert torch.equal(job.params, moved.params)


def test_rounds_are_taken_from_the_recovery():
    assert [phase.rounds for phase in method["fedquit"](Schedule(4, 0.1, 3, 0.1), rounds=5)] == [5, 2]
    assert [phase.rounds for phase in method["fedquit"](Schedule(4, 0.1, 3, 0.1))] == [1, 6]
