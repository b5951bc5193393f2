from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fedunlearn.perceptron import fused
from fedunlearn.seeds import generator


def perceptron(*, depth: int = 3, flatten: bool = True) -> nn.Sequential:
    random = generator("perceptron")
    layers: list[nn.Module] = [nn.Flatten()] if flatten else []
    for layer in range(depth):
        layers += [nn.Linear(6, 6), nn.ReLU()] if layer < depth - 1 else [nn.Linear(6, 4)]
    model = nn.Sequential(*layers)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=random))
    return model


def gradients(model: nn.Module, parameters: list[nn.Parameter], x: torch.Tensor) -> list[torch.Tensor]:
    for parameter in parameters:
        parameter.grad = torch.full_like(parameter, 0.25)
    cross_entropy(model(x), torch.arange(len(x)) % 4).backward()
    return [parameter.grad for parameter in parameters]


@pytest.mark.parametrize("depth", [2, 3, 5])
@pytest.mark.parametrize("flatten", [True, False])
def test_it_is_the_same_function_with_the_same_gradients(depth, flatten):
    model = perceptron(depth=depth, flatten=flatten).double()
    quick, plain = fused(model), copy.deepcopy(model)
    assert quick is not model
    x = torch.randn(9, 2, 3, generator=generator("x"), dtype=torch.float64)
    x = x if flatten else x.flatten(1)
    before = x.clone()
    assert torch.equal(quick(x), plain(x))
    made = gradients(quick, list(model.parameters()), x)
    expected = gradients(plain, list(plain.parameters()), x)
    assert all(torch.allclose(a, b, rtol=1e-12, atol=1e-14) for a, b in zip(made, expected, strict=True))
    assert torch.equal(x, before)


def test_gradients_are_summed_where_they_are():
    model = perceptron()
    quick, x = fused(model), torch.ones(2, 6)
    places = [torch.zeros_like(parameter) for parameter in model.parameters()]
    for parameter, place in zip(model.parameters(), places, strict=True):
        parameter.grad = place
    for _ in range(2):
        cross_entropy(quick(x), torch.tensor([0, 1])).backward()
    assert all(p.grad is place for p, place in zip(model.parameters(), places, strict=True))
    assert all(place.any() for place in places)


def shared() -> nn.Sequential:
    layer = nn.Linear(6, 6)
    return nn.Sequential(layer, nn.ReLU(), layer, nn.ReLU(), nn.Linear(6, 4))


def tied() -> nn.Sequential:
    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 4))
    model[2].weight = model[0].weight
    return model


def patched() -> nn.Sequential:
    model = perceptron()
    model[1].forward = lambda x: x
    return model


def watched(model: nn.Sequential) -> nn.Sequential:
    model[1].register_forward_hook(lambda *_: None)
    return model


def frozen(model: nn.Sequential) -> nn.Sequential:
    model[1].bias.requires_grad_(False)
    return model


@pytest.mark.parametrize(
    "model",
    [
        nn.Linear(6, 4),
        nn.Sequential(),
        nn.Sequential(nn.Flatten(), nn.Linear(6, 4)),
        nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 4)),
        nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5), nn.Linear(6, 4)),
        nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 4), nn.ReLU()),
        nn.Sequential(nn.Linear(6, 6, bias=False), nn.ReLU(), nn.Linear(6, 4)),
        nn.Sequential(nn.Flatten(0), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 4)),
        shared(),
        tied(),
        patched(),
        watched(perceptron()),
        frozen(perceptron()),
    ],
)
def test_what_is_not_quite_a_perceptron_is_left_alone(model):
    assert fused(model) is model


def test_inputs_that_are_no_rows_of_numbers_take_the_ordinary_way():
    model, x = perceptron(flatten=False), torch.ones(2, 5, 6)
    assert torch.equal(fused(model)(x), model(x))
    assert torch.equal(fused(model)(x[0, 0]), model(x[0, 0]))
