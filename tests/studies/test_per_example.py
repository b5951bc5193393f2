"""What the per-example test runs: federations of one experiment that differ in randomness only."""

from __future__ import annotations

import torch
from torch import nn

from fedunlearn import Examples, State, flatten
from fedunlearn.experiment import check, prepare
from fedunlearn.studies.per_example import AGAIN, ORIGINAL, _log_odds, _numbered

WORLD = {
    "method": "finetune",
    "model": "mlp-small",
    "training": {"batch_size": 5},
    "data": {"partition": "iid", "clients": 3, "fraction": 0.02, "audit": 0.4, "public": 20},
    "backdoor": {"enabled": False},
}


def test_log_odds_are_those_of_the_label():
    model = nn.Sequential(nn.Linear(4, 3))
    examples = Examples(torch.randn(250, 4), torch.arange(250) % 3)
    state = State(torch.randn(15))
    weight, bias = state.params[:12].view(3, 4), state.params[12:]
    p = (examples.x @ weight.T + bias).double().softmax(1)[torch.arange(250), examples.y]
    torch.testing.assert_close(_log_odds(model, state, examples), (p / (1 - p)).log(), rtol=1e-4, atol=1e-5)
    assert torch.equal(flatten(model), state.params)


def test_federations_hold_the_same_examples_in_other_orders():
    setting = prepare(check(WORLD, "world"))
    one, same, other, row = (
        _numbered(setting, *which) for which in ((ORIGINAL, 0), (ORIGINAL, 0), (ORIGINAL, 1), (AGAIN, 0))
    )
    for held in ("pretraining", "unlearning"):
        for client, data in getattr(setting.population, held).items():
            orders = [getattr(each.population, held)[client].train for each in (one, same, other, row)]
            assert torch.equal(orders[0].x, orders[1].x)
            assert not torch.equal(orders[0].x, orders[2].x)
            assert not torch.equal(orders[0].x, orders[3].x)
            for order in orders:
                assert torch.equal(order.y.sort().values, data.train.y.sort().values)
                torch.testing.assert_close(order.x.sum(0), data.train.x.sum(0))
    assert not torch.equal(one.population.public.train.x, other.population.public.train.x)


def test_federations_begin_with_models_of_their_own():
    setting = prepare(check(WORLD, "world"))
    first = [
        _numbered(setting, row, number).fresh("pre-training").params
        for row, number in ((ORIGINAL, 0), (ORIGINAL, 1), (AGAIN, 0))
    ]
    assert not torch.equal(first[0], first[1])
    assert torch.equal(first[0], first[2])
