"""A faster way through perceptrons: one differentiable step for all layers, summing gradients in place."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


def fused(model: nn.Module) -> nn.Module:
    """The same function of the same parameters in one step if the model is a perceptron, else the model.

    Its backward pass adds gradients to the ``grad`` of the parameters, which must be there, as part of the
    matrix products that make them; so it is for ``loss.backward()``, not for ``torch.autograd.grad``.
    """
    if type(model) is not nn.Sequential or any(map(_observed, model.modules())):
        return model
    layers = list(model)
    flatten = (
        bool(layers) and type(layers[0]) is nn.Flatten and (layers[0].start_dim, layers[0].end_dim) == (1, -1)
    )
    dense, between = layers[flatten::2], layers[flatten + 1 :: 2]
    if (
        len(dense) < 2
        or len(dense) != len(between) + 1
        or not all(type(layer) is nn.Linear and layer.bias is not None for layer in dense)
        or not all(type(layer) is nn.ReLU for layer in between)
        or not all(parameter.requires_grad for parameter in model.parameters())
        or len(list(model.parameters())) < 2 * len(dense)  # some are shared
    ):
        return model
    return _Perceptron(model, flatten)


def _observed(module: nn.Module) -> bool:
    """Whether somebody wants to be told when the module runs, or runs something else."""
    return "forward" in vars(module) or any(
        getattr(module, hooks)
        for hooks in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    )


class _Perceptron(nn.Module):
    def __init__(self, layers: nn.Sequential, flatten: bool) -> None:
        super().__init__()
        self.layers, self.flatten = layers, flatten

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim < 2 or (x.ndim > 2 and not self.flatten):
            plain: Tensor = self.layers(x)
            return plain
        output: Tensor = _Layers.apply(x.flatten(1), *self.layers.parameters())  # type: ignore[no-untyped-call]
        return output


class _Layers(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, *parameters: Tensor) -> Tensor:
        inputs: list[Tensor] = []
        for weight, bias in zip(parameters[::2], parameters[1::2], strict=True):
            inputs.append(x.relu_() if inputs else x)
            x = torch.addmm(bias, x, weight.T)
        ctx.save_for_backward(*inputs, *parameters)
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[None, ...]:
        count = len(ctx.saved_tensors) // 3
        inputs, parameters = ctx.saved_tensors[:count], ctx.saved_tensors[count:]
        for layer in reversed(range(count)):
            weight, bias = parameters[2 * layer : 2 * layer + 2]
            bias.grad += slope.sum(0)
            weight.grad.addmm_(slope.T, inputs[layer])
            if layer:
                slope = slope @ weight
                torch.ops.aten.threshold_backward.grad_input(slope, inputs[layer], 0, grad_input=slope)
        return (None,) * (1 + 2 * count)
