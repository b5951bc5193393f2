"""A faster way through perceptrons: both passes written out, summing gradients in place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import accumulate

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ..core.seeds import generator

aten = torch.ops.aten
MEAN, IGNORED = 1, -100
"""The reduction of ``cross_entropy``, and the label that it leaves out."""
ROWS = 256
"""The rows that small batches fill together; the last ones are padded, so that all products are alike."""
TRIALS = 16
"""The places in a product of ``ROWS`` rows at which a small batch is compared with itself alone."""


def as_perceptron(model: nn.Module) -> Perceptron | None:
    """Return a faster way through the model if it is a perceptron without hooks on its layers."""
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
    """Return whether the module has hooks, or runs something else."""
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
        """Add gradients of the criterion to the ``grad`` of the parameters, which must be there.

        Return the loss. Gradients are added by the matrix products that make them; without autograd, whose
        bookkeeping takes several percent of a step.
        """
        if not self.takes(x):
            loss = criterion(self._model(x), y)
            loss.backward()
            return loss.detach()
        with torch.inference_mode():
            inputs, output = self._forward(x.flatten(1))
            loss, last = differentiated(criterion, output, y)
            for place, slope in self._slopes(inputs, last):
                self._add(place, slope, inputs[place])
        return loss

    def backward_each(
        self, criterion: Callable[[Tensor, Tensor], Tensor], batches: Sequence[tuple[Tensor, Tensor]]
    ) -> Iterator[Tensor]:
        """Run ``backward`` on one small batch after the other, to the same bits; yield each loss.

        The caller takes the gradients of a batch and sets them to zero before it asks for the next. All
        batches go through the layers together: a product of few rows leaves the processor idle.
        """
        sizes = [len(y) for _, y in batches]
        with torch.inference_mode():
            x = torch.cat([x.flatten(1) for x, _ in batches])
            padding = x.new_zeros(-len(x) % ROWS, x.shape[1])
            inputs, output = self._forward(torch.cat([x, padding]))
            found = [
                differentiated(criterion, part, y)
                for part, (_, y) in zip(output[: len(x)].split(sizes), batches, strict=True)
            ]
            last = torch.cat(
                [*(slope for _, slope in found), output.new_zeros(len(padding), output.shape[1])]
            )
            slopes = dict(self._slopes(inputs, last))
        starts = accumulate(sizes, initial=0)
        for start, size, (loss, _) in zip(starts, sizes, found, strict=False):
            with torch.inference_mode():
                for place, slope in slopes.items():
                    self._add(place, slope[start : start + size], inputs[place][start : start + size])
            yield loss

    def takes(self, x: Tensor) -> bool:
        """Return whether the passes are written out for such inputs."""
        return x.ndim == 2 or (x.ndim > 2 and self._flatten)

    def agrees(self, size: int) -> bool:
        """Return whether rows have the same bits in a product of ``ROWS`` rows as in one of ``size`` rows.

        That depends on the matrix library and the processor; a trial finds out.
        """
        return (
            torch.get_num_threads() == 1
            and size <= ROWS
            and all(_agree(weight.shape, weight.dtype, size) for weight, _ in self._layers)
        )

    def _forward(self, x: Tensor) -> tuple[list[Tensor], Tensor]:
        """Return the inputs of each layer, and the output."""
        inputs: list[Tensor] = []
        for weight, bias in self._layers:
            inputs.append(x.relu_() if inputs else x)
            x = torch.addmm(bias, x, weight.T)
        return inputs, x

    def _slopes(self, inputs: Sequence[Tensor], slope: Tensor) -> Iterator[tuple[int, Tensor]]:
        """Yield the gradient by the output of each layer, from the last to the first."""
        for place in range(len(inputs) - 1, -1, -1):
            yield place, slope
            if place:
                slope = slope @ self._layers[place][0]
                aten.threshold_backward.grad_input(slope, inputs[place], 0, grad_input=slope)

    def _add(self, place: int, slope: Tensor, x: Tensor) -> None:
        weight, bias = self._layers[place]
        assert weight.grad is not None and bias.grad is not None
        bias.grad.add_(slope.sum(0))
        weight.grad.addmm_(slope.T, x)


@cache
def _agree(shape: torch.Size, dtype: torch.dtype, size: int) -> bool:
    """Try one layer, once in a process: a trial costs more than a round of small clients."""
    random = generator("rows of a product")
    # Where a row begins in memory can matter, so odd steps lead to beginnings of all kinds.
    step = (ROWS - size) // TRIALS | 1
    parts = [slice(start, start + size) for start in (*range(0, ROWS - size, step), ROWS - size)]
    with torch.inference_mode():
        weight, entering, leaving = (
            torch.randn(each, generator=random, dtype=dtype)
            for each in (shape, (ROWS, shape[1]), (ROWS, shape[0]))
        )
        bias, backward = leaving[0].clone(), leaving @ weight
        forward = torch.addmm(bias, entering, weight.T)
        for part in parts:
            x, slope = entering[part].clone(), leaving[part].clone()
            if not (
                torch.equal(torch.addmm(bias, x, weight.T), forward[part])
                and torch.equal(slope @ weight, backward[part])
                and torch.equal(slope.T @ x, leaving[part].T @ entering[part])
            ):
                return False
    return True


def differentiated(
    criterion: Callable[[Tensor, Tensor], Tensor], output: Tensor, y: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the loss and its gradient by the output; for cross-entropy, to the bits of slower autograd."""
    if criterion is cross_entropy and y.ndim == 1 and y.dtype == torch.int64:
        logs = output.log_softmax(1)
        loss, weight = aten.nll_loss_forward(logs, y, None, MEAN, IGNORED)
        slope = aten.nll_loss_backward(torch.ones_like(loss), logs, y, None, MEAN, IGNORED, weight)
        return loss, aten._log_softmax_backward_data(slope, logs, 1, output.dtype)
    with torch.inference_mode(False):
        output = output.clone().requires_grad_()
        loss = criterion(output.clone(), y)  # which the criterion may overwrite
        return loss.detach(), torch.autograd.grad(loss, output)[0]
