"""Perceptrons side by side: one product of batches trains the same layer of all of them."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ..core import FedUnlearnError, vectors
from ..core.task import Criterion
from .data import Examples
from .perceptron import as_perceptron, differentiated


class Stack:
    """The passes of many perceptrons of one shape, whose parameters are the rows of a matrix."""

    def __init__(self, model: nn.Module) -> None:
        if as_perceptron(model) is None:
            raise FedUnlearnError(
                "only perceptrons train side by side, and this model is none: use model = 'mlp-small', or an "
                "nn.Sequential of nn.Flatten and nn.Linear with nn.ReLU between them"
            )
        self._shapes = [parameter.shape for parameter in vectors.trainable(model)]

    @torch.no_grad()
    def train(
        self, starts: Tensor, batches: Iterable[Examples], criterion: Criterion, lr: float
    ) -> tuple[Tensor, Tensor]:
        """Plain local SGD of every row on its own batches, which have shape (rows, examples, …).

        Returns the displacements Δ = ω − ω_i, and the losses summed over the examples, of each row.
        """
        begin = self._layers(starts)
        layers = [piece.clone() for piece in begin]
        sums = [torch.zeros_like(piece) for piece in begin]
        losses = torch.zeros(len(starts))
        for number, (x, y) in enumerate(batches):
            if number:
                for layer, start, gradient in zip(layers, begin, sums, strict=True):
                    torch.sub(start, gradient, alpha=lr, out=layer)
            inputs, output = _forward(layers, x)
            found, slope = _differentiated(criterion, output, y)
            losses += found * y.shape[1]
            for place in range(len(inputs) - 1, -1, -1):
                sums[2 * place + 1] += slope.sum(1)
                sums[2 * place].baddbmm_(slope.transpose(1, 2), inputs[place])
                if place:
                    slope = torch.bmm(slope, layers[2 * place]).mul_(inputs[place] > 0)
        moved = torch.cat([gradient.flatten(1) for gradient in sums], 1).mul_(lr)
        return moved, losses

    @torch.no_grad()
    def log_odds(self, params: Tensor, examples: Examples) -> Tensor:
        """log p/(1 − p) of the right label, one row for each model, one column for each example."""
        _, output = _forward(self._layers(params), examples.x.flatten(1).expand(len(params), -1, -1))
        logits, labels = output.double(), examples.y.expand(len(params), -1).unsqueeze(2)
        others = logits.scatter(2, labels, -torch.inf)
        return (logits.gather(2, labels) - others.logsumexp(2, keepdim=True)).squeeze(2)

    def _layers(self, params: Tensor) -> list[Tensor]:
        """Weight and bias of each layer, in a contiguous block for all rows."""
        pieces = params.split([shape.numel() for shape in self._shapes], 1)
        return [
            piece.reshape(len(params), *shape).contiguous()
            for piece, shape in zip(pieces, self._shapes, strict=True)
        ]


def _forward(layers: list[Tensor], x: Tensor) -> tuple[list[Tensor], Tensor]:
    """What enters each layer, and the output."""
    inputs: list[Tensor] = []
    for weight, bias in zip(layers[::2], layers[1::2], strict=True):
        inputs.append(x.relu_() if inputs else x)
        x = torch.baddbmm(bias.unsqueeze(1), x, weight.transpose(1, 2))
    return inputs, x


def _differentiated(criterion: Criterion, output: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The loss of each row and its gradient by the output."""
    if criterion is cross_entropy:
        logs, labels = output.log_softmax(2), y.unsqueeze(2)
        losses = -logs.gather(2, labels).mean((1, 2))
        slope = logs.exp_()
        slope.scatter_add_(2, labels, slope.new_full((), -1.0).expand(labels.shape))
        return losses, slope.div_(y.shape[1])
    each = [differentiated(criterion, *row) for row in zip(output, y, strict=True)]
    return torch.stack([loss for loss, _ in each]), torch.stack([slope for _, slope in each])
