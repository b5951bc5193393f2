"""The backdoor that makes forgetting measurable: a small image pattern and a shifted label."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..client.data import Examples
from ..core import FedUnlearnError
from ..core.seeds import generator

VALUE = 0.8333
"""The authors' grey of 170/255 as (0.6667 - 0.5) / 0.2, written into transformed images."""


@dataclass(frozen=True, eq=False)
class Trigger:
    """The pixels (rows × columns) that are set in all channels, and their value."""

    mask: Tensor
    value: float = VALUE

    def stamp(self, x: Tensor) -> Tensor:
        """Return new images with the pattern."""
        return torch.where(self.mask, torch.tensor(self.value, dtype=x.dtype), x)


def trigger(seed: int, shape: Sequence[int], value: float = VALUE) -> Trigger:
    """Draw a random 3×3 pattern, one pixel away from the bottom right corner of images of this shape."""
    if len(shape) < 2 or min(shape[-2:]) < 4:
        raise FedUnlearnError(
            f"a backdoor needs images of at least 4×4 pixels, not the shape {tuple(shape)}: "
            "use another dataset or disable the backdoor"
        )
    random = generator("trigger", seed)
    pattern = torch.zeros(3, 3, dtype=torch.bool)
    # Deviation: the authors' code may draw an empty pattern (1 in 512): flipped labels without a trigger.
    while not pattern.any():
        pattern = torch.rand(3, 3, generator=random) >= 0.5
    mask = torch.zeros(shape[-2], shape[-1], dtype=torch.bool)
    mask[-4:-1, -4:-1] = pattern
    return Trigger(mask, value)


def triggered(examples: int, share: float, batch_size: int) -> Tensor:
    """Return a mask of the poisoned positions: the first ``share`` of each consecutive batch."""
    if not 0 < share <= 1:
        raise FedUnlearnError(f"the poisoned share must be in (0, 1], not {share}")
    position = torch.arange(examples)
    start = position - position % batch_size
    lengths = (examples - start).clamp(max=batch_size)
    # Deviation: the authors' int(share * length) turns 0.29 * 100 into 28; the small term prevents that.
    counts = (lengths.double() * share + 1e-9).floor().long()
    return position - start < counts


def poison(examples: Examples, trigger: Trigger, classes: int, share: float, batch_size: int) -> Examples:
    """Return new examples; the first ``share`` of each batch has the trigger and label (y + C // 2) mod C."""
    chosen = triggered(len(examples.y), share, batch_size)
    x, y = examples.x.clone(), examples.y.clone()
    x[chosen] = trigger.stamp(x[chosen])
    y[chosen] = (y[chosen] + classes // 2) % classes
    return Examples(x, y)
