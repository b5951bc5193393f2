"""The networks of the paper's experiments: one function of the number of classes and input shape each."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .core import FedUnlearnError
from .core.registry import model
from .core.seeds import derive

Shape = tuple[int, int, int]
"""Channels, height and width of one input."""

RELU_GAIN = 1.7139588594436646
"""Factor that restores unit variance after the ReLU of a standard normal input.

The exact value is √(2 / (1 − 1/π)) ≈ 1.71286; published networks of this kind use this sampled one.
"""


def build(name: str, classes: int, shape: Shape, seed: object) -> nn.Module:
    """Return the named model, newly initialised; the same seed gives the same parameters.

    The state of torch's global generators does not change.
    """
    make = model[name]
    with torch.random.fork_rng(devices=[]):
        # torch.manual_seed would also reseed the accelerators, which fork_rng does not restore here.
        torch.default_generator.manual_seed(derive("model", name, seed))
        module: nn.Module = make(classes, shape)
    return module


@model("mlp", summary="two hidden layers of 400 with ReLU", inputs="any")
def mlp(classes: int, shape: Shape) -> nn.Module:
    """A perceptron with two hidden layers of 400.

    Deviation: the paper mentions three layers of 400 each; the authors' code has two and the output layer.
    """
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(prod(shape), 400),
        nn.ReLU(),
        nn.Linear(400, 400),
        nn.ReLU(),
        nn.Linear(400, classes),
    )


@model("mlp-small", summary="one hidden layer of 64 with ReLU", inputs="any")
def mlp_small(classes: int, shape: Shape) -> nn.Module:
    """A perceptron with one hidden layer of 64, for experiments with many trainings."""
    return nn.Sequential(nn.Flatten(), nn.Linear(prod(shape), 64), nn.ReLU(), nn.Linear(64, classes))


@model("lenet5", summary="LeNet-5 with ReLU and max-pooling", inputs="1x28x28")
def lenet5(classes: int, shape: Shape) -> nn.Module:
    """LeNet-5 for one-channel images. Pooling before ReLU gives the same result with a quarter of the work.

    Deviation: the authors' code has three input channels and no padding, which does not accept MNIST images.
    """
    _require("lenet5", shape, shape == (1, 28, 28), "1x28x28")
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(6, 16, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(400, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, classes),
    )


@model("cnn", summary="two 5x5 convolutions of 64, dense 384-192-C with dropout", inputs="3x32x32")
def cnn(classes: int, shape: Shape) -> nn.Module:
    """Two convolutions, each pooled before its ReLU, and three dense layers with dropout."""
    _require("cnn", shape, shape == (3, 32, 32), "3x32x32")
    return nn.Sequential(
        nn.Conv2d(3, 64, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(64, 64, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(1600, 384),
        nn.Dropout(0.2),
        nn.ReLU(),
        nn.Linear(384, 192),
        nn.Dropout(0.5),
        nn.ReLU(),
        nn.Linear(192, classes),
    )


@model("nfresnet18", summary="residual network without normalisation layers, two stages", inputs="3xHxW")
def nfresnet18(classes: int, shape: Shape) -> nn.Module:
    """A residual network without normalisation layers (Brock et al., ICLR 2021); it has no buffers.

    Deviation: despite its name, it has ten weight layers on the main path, because the authors' code keeps
    only two of the four stages of an 18-layer network.
    """
    channels, height, width = shape
    _require("nfresnet18", shape, channels == 3 and height > 0 and width > 0, "3xHxW")
    return nn.Sequential(
        ScaledConv2d(3, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(3, stride=2, padding=1),
        NFBlock(64, 128, stride=1),
        NFBlock(128, 128, stride=1),
        NFBlock(128, 256, stride=2),
        NFBlock(256, 256, stride=1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(256, classes),
    )


class ScaledConv2d(nn.Conv2d):
    """A convolution without bias that standardises the weights of each output channel before use.

    Scaling an output channel's weights, or adding a constant to them, does not change the output.
    A channel with equal weights outputs zeros.
    """

    EPS = 1e-5

    def __init__(self, inputs: int, outputs: int, size: int, stride: int = 1, padding: int = 0) -> None:
        super().__init__(inputs, outputs, size, stride=stride, padding=padding, bias=False)
        self.gain = nn.Parameter(torch.ones(outputs))
        nn.init.kaiming_normal_(self.weight, mode="fan_in", nonlinearity="linear")

    def standardised(self) -> Tensor:
        fan_in = self.weight[0].numel()
        std, mean = torch.std_mean(self.weight, dim=(1, 2, 3), keepdim=True, correction=0)
        scale = self.gain.view(-1, 1, 1, 1) * fan_in**-0.5
        weight: Tensor = scale * (self.weight - mean) / (std + self.EPS)
        return weight

    def forward(self, input: Tensor) -> Tensor:
        return F.conv2d(input, self.standardised(), None, self.stride, self.padding)


class NFBlock(nn.Module):
    """A residual block of two scaled convolutions with pre-activation."""

    ALPHA = 0.2

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = ScaledConv2d(inputs, outputs, 3, stride=stride, padding=1)
        self.second = ScaledConv2d(outputs, outputs, 3, padding=1)
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if same else ScaledConv2d(inputs, outputs, 1, stride=stride)

    def forward(self, x: Tensor) -> Tensor:
        branch = self.first(RELU_GAIN * F.relu(x))
        branch = self.second(RELU_GAIN * F.relu(branch))
        out: Tensor = self.ALPHA * branch + self.shortcut(x)
        return out


def _require(name: str, shape: Shape, fits: bool, takes: str) -> None:
    if not fits:
        given = "x".join(map(str, shape))
        raise FedUnlearnError(
            f"model {name!r} takes {takes} inputs, not {given}: use 'mlp', which takes any shape",
            code="model",
        )
