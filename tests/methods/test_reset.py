from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support.closed_form import Quadratics, request
from support.codes import refused
from support.federations import network

from fedunlearn import Request, Schedule, State, flatten, method, unlearn
from fedunlearn.core.vectors import buffers, shapes
from fedunlearn.methods.fast_retrain import MomentumAveraging
from fedunlearn.methods.reset import LayerReset


def of(module: torch.nn.Module, fresh: torch.nn.Module) -> Request:
    new = State(flatten(fresh), buffers=buffers(fresh))
    return Request(flatten(module), ("a", "b"), ("a",), lambda _: new, buffers(module), shapes=shapes(module))


def changed(asked: Request, *layers: str) -> list[str]:
    """The parameters that the reset replaces; each must be that of the new model."""
    after = LayerReset(1, 0.1, layers).round(asked, State(asked.params)).params
    pieces = [asked.pieces(vector) for vector in (asked.params, after, asked.fresh("reset").params)]
    names = [name for name in asked.shapes if not torch.equal(pieces[0][name], pieces[1][name])]
    assert all(torch.equal(pieces[1][name], pieces[2][name]) for name in names)
    return names


def test_unless_named_the_whole_first_layer_is_new():
    assert changed(request()) == ["weight", "bias"]
    assert changed(request(), "bias") == ["bias"]


@pytest.mark.parametrize(
    ("model", "first"),
    [
        ("mlp", {"1.weight", "1.bias"}),
        ("lenet5", {"0.weight", "0.bias"}),
        ("cnn", {"0.weight", "0.bias"}),
        ("nfresnet18", {"0.weight", "0.gain"}),
    ],
)
def test_the_first_layer_of_each_model_is_new_and_no_other(model, first):
    module = network(model)
    other = State(flatten(module) + 1)
    assert {*changed(replace(of(module, module), fresh=lambda _: other))} == first


def test_statistics_of_the_targets_do_not_stay_in_the_buffers():
    old, new = (torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2)) for _ in range(2))
    old(torch.randn(5, 2))
    asked = of(old, new)
    after = LayerReset(1, 0.1).round(asked, State(asked.params, buffers=asked.buffers))
    assert torch.equal(after.buffers["1.running_mean"], torch.zeros(2))


def test_the_model_of_the_request_is_not_written_to():
    asked = request()
    before = asked.params.clone()
    LayerReset(1, 0.1).round(asked, State(asked.params))
    assert torch.equal(asked.params, before)


def test_an_unknown_layer_is_explained():
    with refused("unknown", says="did you mean 'weight'"):
        changed(request(), "wight")


@pytest.mark.parametrize(
    ("rounds", "split"),
    [((1, 140), (1, 120, 20)), ((10, 10), (1, 17, 2)), ((1, 3), (1, 3, 0)), ((0, 7), (0, 6, 1))],
)
def test_six_in_seven_rounds_use_the_rate_of_pre_training_and_the_last_that_of_recovery(rounds, split):
    phases = method["reset"](Schedule(rounds[0], 0.03, rounds[1], 0.02, pretrain_lr=0.1))
    assert tuple(phase.rounds for phase in phases) == split
    assert [phase.lr for phase in phases[1:]] == [0.1, 0.02]


def test_with_momentum_the_rounds_after_the_reset_are_those_of_fast_retrain():
    phases = method["reset"](Schedule(4, 0.03, 6, 0.02, pretrain_lr=0.1), momentum=0.5)
    assert phases[1:] == (MomentumAveraging(9, 0.1, momentum=0.5),)


def test_the_target_is_never_asked():
    federation = Quadratics(refuses={"site-1"})
    unlearn(method["reset"](Schedule(4, 0.05, 10, 0.05)), request(), federation)
    assert all("site-1" not in asked for asked in federation.asked())
