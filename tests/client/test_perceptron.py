from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, one_hot

from fedunlearn.client.perceptron import as_perceptron, differentiated
from fedunlearn.core.seeds import generator


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


def labels(x: torch.Tensor) -> torch.Tensor:
    return torch.arange(len(x)) % 4


def squared(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return output.softmax(1)[torch.arange(len(y)), y].square().mean()


def overwriting(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return cross_entropy(output.mul_(2), y)


def to_shares(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return cross_entropy(output, one_hot(y, 4).to(output.dtype))


def summing(model: nn.Module) -> list[torch.Tensor]:
    """Where the gradients of the model go, which are not zero at first."""
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 0.25)
    return [parameter.grad for parameter in model.parameters()]


@pytest.mark.parametrize("criterion", [cross_entropy, squared, overwriting, to_shares])
@pytest.mark.parametrize("depth", [2, 3, 5])
@pytest.mark.parametrize("flatten", [True, False])
def test_it_is_the_same_function_with_the_same_gradients(depth, flatten, criterion):
    model = perceptron(depth=depth, flatten=flatten).double()
    plain = copy.deepcopy(model)
    x = torch.randn(9, 2, 3, generator=generator("x"), dtype=torch.float64)
    x = x if flatten else x.flatten(1)
    before, y = x.clone(), labels(x)
    made, expected = summing(model), summing(plain)
    loss = as_perceptron(model).backward(criterion, x, y)
    wanted = criterion(plain(x), y)
    wanted.backward()
    assert torch.equal(loss, wanted)
    assert not loss.requires_grad
    assert all(torch.allclose(a, b, rtol=1e-12, atol=1e-14) for a, b in zip(made, expected, strict=True))
    assert torch.equal(x, before)


@pytest.mark.parametrize("y", [[0, 1, 2, 3], [0, -100, 2, -100]])
def test_cross_entropy_has_the_bits_of_autograd(y):
    output, y = torch.randn(4, 4, generator=generator("output")), torch.tensor(y)
    loss, slope = differentiated(cross_entropy, output, y)
    output.requires_grad_()
    expected = cross_entropy(output, y)
    expected.backward()
    assert torch.equal(loss, expected)
    assert torch.equal(slope, output.grad)


def test_gradients_are_summed_where_they_are():
    model, x = perceptron(), torch.ones(2, 6)
    quick, places = as_perceptron(model), summing(model)
    for _ in range(2):
        quick.backward(cross_entropy, x, labels(x))
    assert all(p.grad is place for p, place in zip(model.parameters(), places, strict=True))
    assert all((place != 0.25).any() for place in places)


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
    assert as_perceptron(model) is None


@pytest.mark.parametrize("x", [torch.ones(2, 5, 6), torch.ones(6)])
def test_inputs_that_are_no_rows_of_numbers_take_the_ordinary_way(x):
    model = perceptron(flatten=False)
    plain = copy.deepcopy(model)
    made, expected = summing(model), summing(plain)
    loss = as_perceptron(model).backward(lambda output, y: output.square().mean(), x, labels(x))
    wanted = plain(x).square().mean()
    wanted.backward()
    assert torch.equal(loss, wanted)
    assert all(torch.equal(a, b) for a, b in zip(made, expected, strict=True))
