"""Memory that a process shares with the children it forks."""

from __future__ import annotations

import mmap
import os
import weakref
from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from ..core import FedUnlearnError

ALIGNMENT = 64


class Place(NamedTuple):
    """Where a tensor lies in shared memory, as values that JSON can carry."""

    offset: int
    dtype: str
    shape: Sequence[int]

    def row(self, number: int) -> Place:
        """One row of the tensor that lies here."""
        shape = self.shape[1:]
        return Place(self.offset + number * prod(shape) * _dtype(self).itemsize, self.dtype, shape)


class SharedMemory:
    """A file without a name, which the system frees when the last process that has it open ends.

    The owner takes room for tensors. Room is reused once nothing refers to its tensors any more, not even
    a view of one.
    """

    def __init__(self) -> None:
        self._file = os.memfd_create("fedunlearn")
        self._size = 0
        self._regions: list[_Region] = []
        self._seen: mmap.mmap | None = None
        self.close = weakref.finalize(self, os.close, self._file)

    def take(self, *tensors: tuple[torch.dtype, Sequence[int]]) -> list[tuple[Place, Tensor]]:
        """Room for tensors of these types and shapes, side by side; their values are undefined."""
        ends = [0]
        for dtype, shape in tensors:
            ends.append(_up(ends[-1] + prod(shape) * dtype.itemsize, ALIGNMENT))
        start, region = self._region(_up(ends[-1], mmap.ALLOCATIONGRANULARITY))
        return [
            (
                Place(start + offset, str(dtype).removeprefix("torch."), shape),
                _view(region, offset, dtype, shape),
            )
            for offset, (dtype, shape) in zip(ends[:-1], tensors, strict=True)
        ]

    def see(self, place: Place) -> Tensor:
        """The tensor at a place; for the children."""
        dtype = _dtype(place)
        if self._seen is None or len(self._seen) < place.offset + prod(place.shape) * dtype.itemsize:
            self._seen = mmap.mmap(self._file, 0)
        return _view(self._seen, place.offset, dtype, place.shape)

    def _region(self, size: int) -> tuple[int, mmap.mmap]:
        # Not in a much larger region: a small tensor would keep all of it.
        free = [r for r in self._regions if r.user() is None and size <= r.size <= 2 * size]
        if free:
            taken = min(free, key=lambda region: region.size)
            start, room, _ = taken
            self._regions.remove(taken)
        else:
            start, room = self._size, size
        try:
            os.ftruncate(self._file, max(self._size, start + room))
            memory = mmap.mmap(self._file, size, offset=start)
        except (OSError, OverflowError) as error:
            raise FedUnlearnError(
                f"{size / 1e6:.0f} MB of shared memory could not be allocated ({error}): "
                "use a single worker, fewer clients or a smaller model"
            ) from error
        self._size = max(self._size, start + room)
        self._regions.append(_Region(start, room, weakref.ref(memory)))
        return start, memory


class _Region(NamedTuple):
    start: int
    size: int
    user: weakref.ref[mmap.mmap]


def _dtype(place: Place) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, place.dtype)
    return dtype


def _view(memory: mmap.mmap, offset: int, dtype: torch.dtype, shape: Sequence[int]) -> Tensor:
    count = prod(shape)
    flat = (
        torch.frombuffer(memory, dtype=dtype, count=count, offset=offset)
        if count
        else torch.empty(0, dtype=dtype)
    )
    return flat.view(tuple(shape))


def _up(number: int, multiple: int) -> int:
    """The next multiple, at least one: nothing cannot be mapped."""
    return -(-max(number, 1) // multiple) * multiple
