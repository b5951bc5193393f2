from __future__ import annotations

import pytest
import torch
from support.closed_form import request
from support.codes import refused
from support.federations import network

from fedunlearn import Request, Schedule, State, flatten, method
from fedunlearn.core.vectors import shapes
from fedunlearn.maths import distance
from fedunlearn.methods.negation import WeightNegation


def negate(asked: Request, *layers: str, params: torch.Tensor | None = None) -> torch.Tensor:
    state = State(asked.params if params is None else params)
    return WeightNegation(1, 0.1, layers).round(asked, state).params


@pytest.mark.parametrize(
    ("layers", "changed"), [((), {"weight"}), (("bias",), {"bias"}), (("weight", "bias"), {"weight", "bias"})]
)
def test_only_the_chosen_tensors_change_and_they_change_their_sign(layers, changed):
    asked = request()
    before, after = asked.pieces(asked.params), asked.pieces(negate(asked, *layers))
    for name, piece in before.items():
        assert torch.equal(after[name], -piece if name in changed else piece)


def test_twice_restores_the_bits():
    asked = request()
    assert torch.equal(negate(asked, params=negate(asked)), asked.params)


def test_the_model_moves_by_twice_the_layer_and_keeps_its_norm():
    asked = request()
    after = negate(asked)
    assert distance(after, asked.params) == pytest.approx(
        2 * float(asked.pieces(asked.params)["weight"].norm())
    )
    assert float(after.norm()) == pytest.approx(float(asked.params.norm()))


@pytest.mark.parametrize(
    ("model", "first"),
    [("mlp", "1.weight"), ("lenet5", "0.weight"), ("cnn", "0.weight"), ("nfresnet18", "0.weight")],
)
def test_the_first_weight_of_each_model_is_negated_and_no_gain(model, first):
    module = network(model)
    asked = Request(flatten(module), ("a", "b"), ("a",), shapes=shapes(module))
    before, after = asked.pieces(asked.params), asked.pieces(negate(asked))
    assert [name for name in before if not torch.equal(before[name], after[name])] == [first]


def test_an_unknown_layer_is_explained():
    with refused("unknown", says="did you mean 'weight'"):
        negate(request(), "wight")


def test_recovery_takes_the_learning_rate_of_pre_training():
    once, rest = method["not"](Schedule(3, 0.01, 4, 0.01, pretrain_lr=0.5))
    assert (once.rounds, rest.rounds, rest.lr) == (1, 6, 0.5)
