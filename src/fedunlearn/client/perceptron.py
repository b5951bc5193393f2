"""A faster way through perceptrons: both passes written out, summing gradients in place."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

aten = torch.ops.aten
MEAN, IGNORED = 1, -100
"""How ``cross_entropy`` reduces, and the label that it leaves out."""


def fused(model: nn.Module) -> Perceptron | None:
    """A faster way through the model if it is a perceptron, and nobody watches its layers."""
    if type(model) is not nn.Sequential or any(map(_observed, model.modules())):
        return None
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
        return None
    return Perceptron(model, flatten)


def _observed(module: nn.Module) -> bool:
    """Whether somebody wants to be told when the module runs, or runs something else."""
    return "forward" in vars(module) or any(
        getattr(module, hooks)
        for hooks in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    )


class Perceptron:
    """Dense layers with ReLU between them; it shares the parameters of the model."""

    def __init__(self, model: nn.Sequential, flatten: bool) -> None:
        self._model, self._flatten = model, flatten
        self._layers = [(layer.weight, layer.bias) for layer in model if isinstance(layer, nn.Linear)]

    def backward(self, criterion: Callable[[Tensor, Tensor], Tensor], x: Tensor, y: Tensor) -> Tensor:
        """Adds gradients of the criterion to the ``grad`` of the parameters, which must be there.

        Returns the loss. Gradients are added by the matrix products that make them; without autograd, whose
        bookkeeping takes several percent of a step.
        """
        if x.ndim < 2 or (x.ndim > 2 and not self._flatten):
            loss = criterion(self._model(x), y)
            loss.backward()
            return loss.detach()
        with torch.inference_mode():
            inputs: list[Tensor] = []
            x = x.flatten(1)
            for weight, bias in self._layers:
                inputs.append(x.relu_() if inputs else x)
                x = torch.addmm(bias, x, weight.T)
            loss, slope = differentiated(criterion, x, y)
            for (weight, bias), x in zip(reversed(self._layers), reversed(inputs), strict=True):
                assert weight.grad is not None and bias.grad is not None
                bias.grad.add_(slope.sum(0))
                weight.grad.addmm_(slope.T, x)
                if x is not inputs[0]:
                    slope = slope @ weight
                    aten.threshold_backward.grad_input(slope, x, 0, grad_input=slope)
        return loss


def differentiated(
    criterion: Callable[[Tensor, Tensor], Tensor], output: Tensor, y: Tensor
) -> tuple[Tensor, Tensor]:
    """The loss and its gradient by the output; of cross-entropy to the bits of autograd, which is slower."""
    if criterion is cross_entropy and y.ndim == 1 and y.dtype == torch.int64:
        logs = output.log_softmax(1)
        loss, weight = aten.nll_loss_forward(logs, y, None, MEAN, IGNORED)
        slope = aten.nll_loss_backward(torch.ones_like(loss), logs, y, None, MEAN, IGNORED, weight)
        return loss, aten._log_softmax_backward_data(slope, logs, 1, output.dtype)
    with torch.inference_mode(False):
        output = output.clone().requires_grad_()
        loss = criterion(output.clone(), y)  # which the criterion may overwrite
        return loss.detach(), torch.autograd.grad(loss, output)[0]
