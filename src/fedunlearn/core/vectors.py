"""A model's trainable parameters as one vector; its buffers ride beside."""

from __future__ import annotations

import re

import torch
from torch import nn

from .errors import FedUnlearnError
from .messages import Buffers, Vector
from .state import State


def trainable(model: nn.Module) -> list[nn.Parameter]:
    """The parameters that vectors are made of: tied ones once, frozen ones never."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not parameters:
        raise FedUnlearnError(
            "the model has no trainable parameter, so there is nothing to train or unlearn", code="model"
        )
    return parameters


def flatten(model: nn.Module) -> Vector:
    """A copy of the trainable parameters as one vector."""
    return torch.cat([parameter.detach().reshape(-1) for parameter in trainable(model)])


def bind(model: nn.Module) -> Vector:
    """Moves the trainable parameters into one vector: writing to it writes to the model."""
    parameters = trainable(model)
    if len({parameter.dtype for parameter in parameters}) > 1:
        raise FedUnlearnError(
            "the model mixes parameter types: convert it with model.float() first", code="model"
        )
    if parameters[0].dtype not in (torch.float32, torch.float64):
        kind = str(parameters[0].dtype).removeprefix("torch.")
        raise FedUnlearnError(
            f"the model's parameters are {kind}, too coarse to unlearn with: convert it with model.float()",
            code="model",
        )
    flat = flatten(model)
    for parameter, view in zip(parameters, views(flat, model), strict=True):
        parameter.data = view
    return flat


def views(flat: Vector, model: nn.Module) -> list[torch.Tensor]:
    """One view into the vector for each trainable parameter, in its shape."""
    parameters = trainable(model)
    pieces = flat.split([parameter.numel() for parameter in parameters])
    return [piece.view(parameter.shape) for piece, parameter in zip(pieces, parameters, strict=True)]


def buffers(model: nn.Module) -> Buffers:
    """A copy of what the model carries beside its parameters."""
    return {name: buffer.detach().clone() for name, buffer in model.named_buffers()}


def load_buffers(model: nn.Module, values: Buffers) -> None:
    """Writes buffers back into the model."""
    for name, buffer in model.named_buffers():
        if name in values:
            buffer.copy_(values[name])


def load(model: nn.Module, state: State) -> None:
    """Writes a state into a model of the user's own."""
    size = sum(parameter.numel() for parameter in trainable(model))
    if state.params.numel() != size:
        raise FedUnlearnError(
            f"the model has {size:,} trainable parameters and the state {state.params.numel():,}: "
            "give both of one architecture",
            code="model",
        )
    with torch.no_grad():
        for parameter, piece in zip(trainable(model), views(state.params, model), strict=True):
            parameter.copy_(piece)
        load_buffers(model, state.buffers)


def architecture(model: nn.Module) -> str:
    """The layers as text, without addresses of functions, which are others in every process."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(model))


def shapes(model: nn.Module) -> dict[str, torch.Size]:
    """The shapes of the trainable parameters by name, in the order of the vector."""
    return {name: parameter.shape for name, parameter in model.named_parameters() if parameter.requires_grad}
