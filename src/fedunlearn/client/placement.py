"""Placement of batches for a model: its device, its type, and the memory layout that is fastest for it."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from ..core import Batch
from . import data as holdings
from .data import Examples


class Placement:
    """Place one batch after the other for a model; the first images decide on the layout of all."""

    def __init__(self, module: nn.Module, device: torch.device, dtype: torch.dtype) -> None:
        self._module, self._device, self._dtype = module, device, dtype
        self._layout: torch.memory_format | None = None

    def __call__(self, batch: Batch) -> Batch:
        placed = holdings.moved(batch, self._device, self._dtype)
        if isinstance(batch, tuple | list) and len(placed) == 2:
            x, y = placed
            whole = isinstance(y, Tensor) and not (y.is_floating_point() or y.dtype == torch.bool)
            return Examples(self._input(x), y.long() if whole else y)
        return placed

    def _input(self, x: Tensor) -> Tensor:
        if not isinstance(x, Tensor) or x.ndim != 4:
            return x
        if self._layout is None:
            self._layout = fastest_layout(self._module, self._device, x.shape[1:])
        return x.to(memory_format=self._layout)


def fastest_layout(module: nn.Module, device: torch.device, shape: torch.Size) -> torch.memory_format:
    """Try channels-last: it makes convolutions faster, but a model that calls ``view`` cannot read it."""
    if not any(isinstance(layer, nn.Conv2d) for layer in module.modules()):
        return torch.preserve_format
    trial, x = copy.deepcopy(module), torch.zeros(2, *shape, device=device)
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            for training in (True, False):
                trial.train(training)(x.to(memory_format=torch.channels_last))
    except (RuntimeError, ValueError):
        return torch.contiguous_format
    return torch.channels_last
