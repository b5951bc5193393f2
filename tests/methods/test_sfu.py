from __future__ import annotations

import pytest
import torch
from closed_form import Quadratics, request
from federations import TRAINING, holdings, network
from fedunlearn.local import Learner
from fedunlearn.uploads import LayerInputs, _columns
from torch import nn
from torch.nn.functional import cross_entropy, pad

from fedunlearn import (
    ClientData,
    Examples,
    FedUnlearnError,
    Job,
    Request,
    Schedule,
    Sequential,
    State,
    Status,
    flatten,
    method,
    unlearn,
)
from fedunlearn.core.seeds import generator
from fedunlearn.core.vectors import load, shapes
from fedunlearn.methods.sfu import SubspaceAscent

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


def test_the_rank_is_the_least_that_holds_the_energy():
    inputs = torch.diag(torch.tensor([1.0, 4.0, 5.0, 0.0], dtype=torch.float64))
    for energy, rank in [(0.0, 0), (0.3, 1), (0.5, 1), (0.51, 2), (0.9, 2), (0.91, 3), (NEARLY_ALL, 3)]:
        update = {"weight": torch.ones(2, 3)}
        assert SubspaceAscent(1, 0.1, energy)._project(update, "weight", inputs) == 3 - rank
        left = [0.0 if value in sorted([1, 4, 5])[3 - rank :] else 1.0 for value in (1, 4, 5)]
        assert update["weight"][0].tolist() == pytest.approx(left, abs=1e-6)


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
    columns = _columns(layer, x)
    made = columns @ layer.weight.detach().flatten(1).T
    if layer.bias is not None:
        made = made + layer.bias.detach()
    expected = layer(x).detach().flatten(2).transpose(1, 2).reshape(len(columns), -1)
    assert torch.allclose(made, expected, atol=1e-5)


def test_large_pictures_are_represented_by_some_positions():
    columns = _columns(nn.Conv2d(1, 2, 3), torch.zeros(2, 1, 30, 30))
    assert len(columns) <= 2 * 50
    assert columns.shape[1] == 9


def test_grouped_convolutions_are_refused():
    with pytest.raises(FedUnlearnError, match="groups"):
        _columns(nn.Conv2d(4, 4, 3, groups=2), torch.zeros(1, 4, 5, 5))


def test_a_client_uploads_second_moments_of_one_batch_in_evaluation_mode():
    model, data, _ = small("convolution")
    held = data["site-4"].train
    reply = Learner(model).train(held, Job(flatten(model), "layer_inputs", epochs=0, batch_size=4, seed=1))
    inputs = pad(model[:4].eval()(held.x[:4]).detach(), (0, 1), value=1.0)
    assert torch.allclose(reply.arrays["4.weight"], inputs.T @ inputs, atol=1e-4)
    assert set(reply.arrays) == {"0.weight", "4.weight"}
    assert reply.arrays["0.weight"].shape == (28, 28)
    assert not reply.displacement.any()


def test_a_layer_that_is_used_twice_has_the_inputs_of_both():
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.dense = nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.dense(self.dense(x).relu())

    model, x = Twice(), torch.randn(5, 3, generator=generator("twice"))
    seen = LayerInputs().upload(model, iter([Examples(x, torch.zeros(5, dtype=torch.int64))]))
    both = pad(torch.cat([x, model.dense(x).relu().detach()]), (0, 1), value=1.0)
    assert torch.allclose(seen["dense.weight"], both.T @ both, atol=1e-5)


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
        def train(self, jobs):
            replies = super().train(jobs)
            for reply in replies.values():
                if reply.arrays:
                    reply.arrays["weight"] = torch.eye(4)
            return replies

    outcome = unlearn([SubspaceAscent(3, 0.1, 0.99)], request(), Full())
    assert outcome.status is Status.NO_DIRECTION
    assert "lower the energy" in outcome.reason
    assert torch.equal(outcome.params, request().params)


def test_without_any_retained_reply_there_is_nothing_to_spare():
    silent = Quadratics(absent={client: [1] for client in request().retained})
    outcome = unlearn([SubspaceAscent(3, 0.1)], request(), silent)
    assert outcome.status is Status.MISSING_REPLY
    assert "resume" in outcome.reason


@pytest.mark.parametrize("energy", [-0.1, 1.0])
def test_an_energy_that_is_none_is_refused(energy):
    with pytest.raises(FedUnlearnError, match="energy"):
        method["sfu"](Schedule(), energy=energy)
