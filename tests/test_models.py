from __future__ import annotations

import pytest
import torch
from support.codes import refused
from torch import nn

from fedunlearn.core.registry import model
from fedunlearn.models import ScaledConv2d, build

GRAY = (1, 28, 28)
COLOUR = (3, 32, 32)
MODELS = [
    ("mlp", 10, GRAY, 478_410),
    ("mlp-small", 10, GRAY, 50_890),
    ("lenet5", 10, GRAY, 61_706),
    ("cnn", 10, COLOUR, 797_962),
    ("nfresnet18", 100, COLOUR, 2_650_852),
]
each_model = pytest.mark.parametrize(
    ("name", "classes", "shape", "count"), MODELS, ids=[row[0] for row in MODELS]
)


def parameters(module: nn.Module) -> torch.Tensor:
    return nn.utils.parameters_to_vector(module.parameters()).detach()


def test_every_registered_model_is_tested_here() -> None:
    assert {entry.name for entry in model} == {name for name, *_ in MODELS}


@each_model
def test_parameter_count(name, classes, shape, count):
    assert parameters(build(name, classes, shape, seed=0)).numel() == count


@each_model
def test_same_seed_same_model_other_seed_other_model(name, classes, shape, count):
    first = parameters(build(name, classes, shape, seed=1))
    torch.manual_seed(99)
    assert torch.equal(first, parameters(build(name, classes, shape, seed=1)))
    assert not torch.equal(first, parameters(build(name, classes, shape, seed=2)))


@each_model
def test_building_leaves_the_global_generator_alone(name, classes, shape, count):
    before = torch.get_rng_state()
    build(name, classes, shape, seed=3)
    assert torch.equal(before, torch.get_rng_state())


def test_the_global_generator_is_left_alone_after_a_refusal_too():
    before = torch.get_rng_state()
    with refused("model"):
        build("cnn", 10, GRAY, seed=0)
    assert torch.equal(before, torch.get_rng_state())


@each_model
@pytest.mark.parametrize("batch", [1, 3])
def test_one_row_of_logits_for_each_example(name, classes, shape, count, batch):
    module = build(name, classes, shape, seed=0).eval()
    logits = module(torch.rand(batch, *shape, generator=torch.Generator().manual_seed(0)))
    assert logits.shape == (batch, classes)
    assert logits.isfinite().all()


@each_model
def test_every_parameter_gets_a_finite_gradient(name, classes, shape, count):
    module = build(name, classes, shape, seed=0).eval()
    x = torch.randn(4, *shape, generator=torch.Generator().manual_seed(0))
    nn.functional.cross_entropy(module(x), torch.arange(4)).backward()
    for key, parameter in module.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.isfinite().all(), key
        assert parameter.grad.any(), key


@each_model
def test_no_buffers(name, classes, shape, count):
    assert not list(build(name, classes, shape, seed=0).buffers())


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (2, 5, 7)])
def test_mlp_takes_any_shape(shape):
    assert build("mlp", 4, shape, seed=0)(torch.zeros(2, *shape)).shape == (2, 4)


@pytest.mark.parametrize("shape", [(3, 32, 32), (3, 17, 64), (3, 1, 1)])
def test_nfresnet_takes_any_size(shape):
    assert build("nfresnet18", 4, shape, seed=0)(torch.zeros(2, *shape)).shape == (2, 4)


@pytest.mark.wording
@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("lenet5", (3, 32, 32)),
        ("lenet5", (1, 32, 32)),
        ("cnn", (1, 28, 28)),
        ("cnn", (3, 28, 28)),
        ("nfresnet18", (1, 28, 28)),
        ("nfresnet18", (3, 0, 32)),
    ],
)
def test_shapes_a_model_cannot_take_are_refused_in_one_sentence(name, shape):
    with refused("model") as refusal:
        build(name, 10, shape, seed=0)
    message = str(refusal.value)
    assert repr(name) in message
    assert "x".join(map(str, shape)) in message
    assert "\n" not in message


def test_unknown_model_suggests_a_name():
    with refused("unknown", says="did you mean 'lenet5'"):
        build("lenet", 10, GRAY, seed=0)


def scaled_conv() -> ScaledConv2d:
    torch.manual_seed(0)
    return ScaledConv2d(8, 16, 3, padding=1)


def test_standardised_weights_have_mean_zero_and_variance_one_over_fan_in():
    rows = scaled_conv().standardised().detach().flatten(1)
    torch.testing.assert_close(rows.mean(1), torch.zeros(16), atol=1e-6, rtol=0)
    torch.testing.assert_close(rows.square().sum(1), torch.ones(16), atol=1e-3, rtol=0)


@pytest.mark.parametrize(("scale", "offset"), [(3.0, 0.0), (1.0, 0.7), (0.5, -2.0)])
def test_scaling_and_shifting_the_weights_changes_nothing(scale, offset):
    conv, x = scaled_conv(), torch.randn(2, 8, 6, 6, generator=torch.Generator().manual_seed(1))
    before = conv(x)
    with torch.no_grad():
        conv.weight.mul_(scale).add_(offset)
    # The guard against a zero deviation shows at 1e-4 of the value.
    torch.testing.assert_close(conv(x), before, atol=1e-3, rtol=1e-3)


def test_the_gain_scales_its_own_channel_only():
    conv, x = scaled_conv(), torch.randn(2, 8, 6, 6, generator=torch.Generator().manual_seed(1))
    before = conv(x)
    with torch.no_grad():
        conv.gain[5] = 2.0
    expected = before.clone()
    expected[:, 5] *= 2
    torch.testing.assert_close(conv(x), expected)


def test_equal_weights_give_zeros_and_no_nan():
    conv = scaled_conv()
    with torch.no_grad():
        conv.weight.fill_(0.3)
    out = conv(torch.ones(1, 8, 4, 4))
    torch.testing.assert_close(out, torch.zeros_like(out), atol=2e-2, rtol=0)
    out.sum().backward()
    assert conv.weight.grad is not None
    assert conv.weight.grad.isfinite().all()


def test_dropout_of_the_cnn_is_off_in_evaluation():
    module = build("cnn", 10, COLOUR, seed=0)
    x = torch.rand(2, *COLOUR, generator=torch.Generator().manual_seed(0))
    module.eval()
    assert torch.equal(module(x), module(x))
    module.train()
    assert not torch.equal(module(x), module(x))
