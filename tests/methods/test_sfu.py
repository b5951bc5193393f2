from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support.closed_form import DIMENSION, Quadratics, drive, request
from support.codes import refused, says
from support.federations import TRAINING, holdings, network
from torch import nn
from torch.nn.functional import cross_entropy, pad

from fedunlearn import (
    Classification,
    ClientData,
    Examples,
    Job,
    Replies,
    Reply,
    Request,
    Schedule,
    Sequential,
    State,
    Status,
    Terms,
    flatten,
    method,
    unlearn,
)
from fedunlearn.client import Learner
from fedunlearn.core.seeds import generator
from fedunlearn.core.vectors import load, shapes
from fedunlearn.methods.sfu import SubspaceAscent, layer_inputs

TARGET = "site-2"
NEARLY_ALL = 0.99999


def small(name: str = "perceptron"):
    """Few enough examples that each layer has dimensions to spare."""
    model, data = network(name), holdings(name)
    asked = Request(flatten(model), tuple(data), (TARGET,), shapes=shapes(model))
    return model, data, asked


def ascend(name: str = "perceptron", **options: object):
    model, data, asked = small(name)
    phase = SubspaceAscent(1, 0.1, **options)
    outcome = unlearn([phase], asked, Sequential(model, data), training=TRAINING)
    return model, data, asked, outcome


def retained_inputs(data: dict[str, ClientData]) -> torch.Tensor:
    """What the first layer saw: one batch of each retained client."""
    batches = [held.train.x[: TRAINING.batch_size] for client, held in data.items() if client != TARGET]
    return torch.cat(batches).flatten(1)


def test_the_update_does_not_change_a_layer_on_the_retained_inputs():
    _, data, asked, outcome = ascend(energy=NEARLY_ALL)
    update = asked.pieces(outcome.params - asked.params)["1.weight"]
    free = asked.pieces(ascend(energy=0.0)[3].params - asked.params)["1.weight"]
    for x in retained_inputs(data):
        assert float((update @ x).norm()) <= 1e-5 * float(free.norm() * x.norm())
    assert float(update.norm()) > 0.1 * float(free.norm())


def test_what_is_taken_away_is_what_would_change_it():
    _, data, asked, outcome = ascend(energy=NEARLY_ALL)
    free = asked.pieces(ascend(energy=0.0)[3].params - asked.params)["1.weight"]
    update = asked.pieces(outcome.params - asked.params)["1.weight"]
    inputs = retained_inputs(data).double()
    inside = torch.linalg.pinv(inputs) @ inputs
    assert torch.allclose(update.double(), free.double() @ (torch.eye(36).double() - inside), atol=1e-6)


@pytest.mark.parametrize("name", ["perceptron", "convolution"])
def test_no_energy_is_plain_ascent(name):
    _, _, asked, free = ascend(name, energy=0.0)
    plain = unlearn(
        [method["ascent"](Schedule(1, 0.1, 0, 0.1), clip=1e9)[0]],
        asked,
        Sequential(network(name), holdings(name)),
        training=TRAINING,
    )
    assert torch.allclose(free.params, plain.params, atol=1e-7)


@pytest.mark.parametrize(
    ("energy", "rank"), [(0.0, 0), (0.3, 1), (0.5, 1), (0.51, 2), (0.9, 2), (0.91, 3), (NEARLY_ALL, 3)]
)
def test_the_rank_is_the_least_that_holds_the_energy(energy, rank):
    inputs = {"weight": torch.diag(torch.tensor([1.0, 4.0, 5.0, 0.0]))}
    asked = request()
    replies = {client: Reply(None, 1, arrays=inputs) for client in asked.retained}
    replies["site-1"] = Reply(-torch.ones(DIMENSION), 1)
    _, after = drive(SubspaceAscent(1, 0.1, energy), asked, State(asked.params), Replies(replies))
    if rank == 3:
        assert after.status is Status.NO_DIRECTION
        return
    assert after.diagnostics["free"] == 3 - rank
    left = [0.0 if value in (1, 4, 5)[3 - rank :] else 1.0 for value in (1, 4, 5)]
    for row in asked.pieces(after.params - asked.params)["weight"]:
        assert row.tolist() == pytest.approx(left, abs=1e-6)


def moments(model: nn.Module, x: torch.Tensor) -> dict[str, torch.Tensor]:
    """What a client sends about one batch."""
    batch = Examples(x, torch.zeros(len(x), dtype=torch.int64))
    return dict(layer_inputs(Classification(), model, iter([batch])))


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(3, 5, 3),
        nn.Conv2d(3, 5, 3, stride=2, padding=1),
        nn.Conv2d(3, 5, (2, 3), dilation=2, bias=False),
        nn.Conv2d(3, 5, 1),
    ],
)
def test_the_inputs_of_a_convolution_are_what_its_weights_are_multiplied_with(layer):
    x = torch.randn(4, 3, 7, 7, generator=generator("patches"))
    found = moments(nn.Sequential(layer, nn.Flatten()), x)["0.weight"]
    bias = torch.zeros(5) if layer.bias is None else layer.bias.detach()
    weights = torch.cat([layer.weight.detach().flatten(1), bias.unsqueeze(1)], 1)
    outputs = layer(x).detach().transpose(0, 1).flatten(1)
    assert torch.allclose(weights @ found @ weights.T, outputs @ outputs.T, rtol=1e-4, atol=1e-3)


def test_large_pictures_are_represented_by_some_positions():
    found = moments(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten()), torch.zeros(2, 1, 30, 30))["0.weight"]
    assert found.shape == (10, 10)
    # The 1 for the bias counts the inputs.
    assert 2 * 40 <= float(found[-1, -1]) <= 2 * 50


def test_grouped_convolutions_are_refused():
    with refused("unsuitable", says="groups"):
        moments(nn.Sequential(nn.Conv2d(4, 4, 3, groups=2), nn.Flatten()), torch.zeros(1, 4, 5, 5))


def test_layers_that_share_their_weights_are_refused():
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3))
    model[2].weight = model[0].weight
    with refused("unsuitable", says=r"'2\.weight', which several layers share: untie them"):
        moments(model, torch.zeros(2, 3))


def test_a_client_uploads_second_moments_of_one_batch_in_evaluation_mode():
    model, data, _ = small("convolution")
    held = data["site-4"]
    job = Job("layer_inputs", flatten(model))
    reply = Learner(model, Classification()).perform("site-4", held, job, Terms(batch_size=4))
    inputs = pad(model[:4].eval()(held.train.x[:4]).detach(), (0, 1), value=1.0)
    assert torch.allclose(reply.arrays["4.weight"], inputs.T @ inputs, atol=1e-4)
    assert set(reply.arrays) == {"0.weight", "4.weight"}
    assert reply.arrays["0.weight"].shape == (28, 28)
    assert reply.displacement is None


def test_a_layer_that_is_used_twice_has_the_inputs_of_both():
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.dense = nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.dense(self.dense(x).relu())

    model, x = Twice(), torch.randn(5, 3, generator=generator("twice"))
    both = pad(torch.cat([x, model.dense(x).relu().detach()]), (0, 1), value=1.0)
    assert torch.allclose(moments(model, x)["dense.weight"], both.T @ both, atol=1e-5)


def test_it_raises_the_targets_loss():
    model, data, asked, outcome = ascend(energy=0.5)

    def loss(state: State) -> float:
        load(model, state)
        return cross_entropy(model.eval()(data[TARGET].train.x), data[TARGET].train.y).item()

    assert loss(outcome.state) > loss(State(asked.params))


def test_biases_are_left_alone_frozen_or_projected_with_the_weights():
    moved = {}
    for bias in ("unprojected", "frozen", "augmented"):
        _, data, asked, outcome = ascend(energy=NEARLY_ALL, bias=bias)
        moved[bias] = asked.pieces(outcome.params - asked.params)
    free = asked.pieces(ascend(energy=0.0)[3].params - asked.params)
    assert torch.allclose(moved["unprojected"]["1.bias"], free["1.bias"], atol=1e-7)
    assert not moved["frozen"]["1.bias"].any()
    out = retained_inputs(data) @ moved["augmented"]["1.weight"].T + moved["augmented"]["1.bias"]
    assert float(out.abs().max()) <= 1e-5
    assert moved["augmented"]["1.bias"].any()


def test_where_the_inputs_fill_every_layer_nothing_can_be_unlearned():
    class Full(Quadratics):
        def perform(self, client, job, terms):
            reply = super().perform(client, job, terms)
            return replace(reply, arrays={"weight": torch.eye(4)}) if reply.arrays else reply

    outcome = unlearn([SubspaceAscent(3, 0.1, 0.99)], request(), Full())
    assert outcome.status is Status.NO_DIRECTION
    assert says(outcome.reason, "lower the energy")
    assert torch.equal(outcome.params, request().params)


@pytest.mark.parametrize("energy", [-0.1, 1.0])
def test_an_energy_that_is_none_is_refused(energy):
    with refused("invalid", says="energy"):
        method["sfu"](Schedule(), energy=energy)
