"""What clients measure for the server without training, as objectives that upload."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad, unfold

from .core import Examples, FedUnlearnError, Objective
from .core.vectors import trainable
from .objectives import Minimise, objective

POSITIONS = 50
"""Patches of one picture that a convolution's input is represented by."""


@dataclass(frozen=True)
class Fisher(Minimise):
    """Uploads the mean over batches of (∇ log p(ŷ|x))², ŷ being what the model itself predicts."""

    def upload(self, model: nn.Module, batches: Iterable[Examples]) -> Mapping[str, Tensor]:
        parameters = trainable(model)
        squares = []
        for x, _ in batches:
            output = model(x)
            loss = cross_entropy(output, output.detach().argmax(1))
            slopes = torch.autograd.grad(loss, parameters, materialize_grads=True)
            squares.append(torch.cat([slope.reshape(-1) for slope in slopes]).square())
        return {"fisher": sum(squares[1:], squares[0]) / len(squares)}


@dataclass(frozen=True)
class LayerInputs(Minimise):
    """Uploads R Rᵀ of each layer, the columns of R being its inputs on one batch, and 1 for the bias.

    Deviation: the paper uploads R with its columns scaled at random. The product has the same span, does not
    grow with the batch, and shows no single input.
    """

    @torch.no_grad()
    def upload(self, model: nn.Module, batches: Iterable[Examples]) -> Mapping[str, Tensor]:
        seen: dict[str, Tensor] = {}
        # Before anybody watches: to fetch the first batch, the client may try the model on something else.
        x = next(iter(batches)).x

        def watch(name: str, layer: nn.Module) -> Any:
            def see(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
                columns = pad(_columns(layer, inputs[0]), (0, 1), value=1.0)
                seen[name] = seen.get(name, 0) + columns.T @ columns

            return layer.register_forward_pre_hook(see)

        watches = [
            watch(f"{name}.weight" if name else "weight", layer)
            for name, layer in model.named_modules()
            if isinstance(layer, nn.Linear | nn.Conv2d) and layer.weight.requires_grad
        ]
        try:
            model(x)
        finally:
            for handle in watches:
                handle.remove()
        return seen


def _columns(layer: nn.Module, x: Tensor) -> Tensor:
    """The vectors that the rows of the layer's weight are multiplied with, one a row."""
    if isinstance(layer, nn.Linear):
        return x.reshape(-1, x.shape[-1])
    assert isinstance(layer, nn.Conv2d)
    if layer.groups != 1 or isinstance(layer.padding, str):
        raise FedUnlearnError(f"SFU does not know the inputs of {layer}: use convolutions without groups")
    patches = unfold(x, layer.kernel_size, layer.dilation, layer.padding, layer.stride)
    chosen = patches[..., :: max(1, -(-patches.shape[-1] // POSITIONS))]
    return chosen.transpose(1, 2).reshape(-1, patches.shape[1])


@objective(
    "layer_inputs",
    summary="uploads second moments of the inputs of each layer; trains nothing",
    part_of="sfu",
)
def _layer_inputs(arrays: Mapping[str, Tensor]) -> Objective:
    return LayerInputs()


@objective(
    "fisher", summary="uploads the diagonal of the Fisher information; trains nothing", part_of="ewcsga"
)
def _fisher(arrays: Mapping[str, Tensor]) -> Objective:
    return Fisher()
