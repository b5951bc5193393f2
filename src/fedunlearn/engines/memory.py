"""Memory that a process shares with the children it forks, and room on disk for what it cannot hold."""

from __future__ import annotations

import mmap
import os
import weakref
from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from ..core import FedUnlearnError, rows
from ..maths.paging import watch

ALIGNMENT = 64


class Place(NamedTuple):
    """Where a tensor lies, as values that JSON can carry."""

    file: int
    offset: int
    dtype: str
    shape: Sequence[int]

    def row(self, number: int) -> Place:
        """One row of the tensor that lies here."""
        shape = self.shape[1:]
        start = self.offset + number * prod(shape) * _dtype(self).itemsize
        return Place(self.file, start, self.dtype, shape)


class SharedMemory:
    """Files without a name, which the system removes when the last process that has them open ends.

    One lies in memory; the other one, on disk, is made when something would take too much of it. The owner
    takes room for tensors. Room is reused once nothing refers to its tensors any more, not even a view.
    """

    def __init__(self) -> None:
        self._files = [_File(os.memfd_create("fedunlearn"))]

    @property
    def files(self) -> int:
        """How many files there are; a child sees those that were there when it started."""
        return len(self._files)

    def take(self, *tensors: tuple[torch.dtype, Sequence[int]]) -> list[tuple[Place, Tensor]]:
        """Room for tensors of these types and shapes, side by side; their values are undefined."""
        ends = [0]
        for dtype, shape in tensors:
            ends.append(_up(ends[-1] + prod(shape) * dtype.itemsize, ALIGNMENT))
        size = _up(ends[-1], mmap.ALLOCATIONGRANULARITY)
        number = int(size > rows.most_in_memory())
        if number == len(self._files):
            self._files.append(_File(_on_disk(), disk=True))
        start, region = self._files[number].take(size)
        return [
            (
                Place(number, start + offset, str(dtype).removeprefix("torch."), shape),
                _view(region, offset, dtype, shape),
            )
            for offset, (dtype, shape) in zip(ends[:-1], tensors, strict=True)
        ]

    def see(self, place: Place) -> Tensor:
        """The tensor at a place; for the children."""
        dtype = _dtype(place)
        seen = self._files[place.file].see(place.offset + prod(place.shape) * dtype.itemsize)
        return _view(seen, place.offset, dtype, place.shape)

    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self._files)


class _File:
    def __init__(self, file: int, disk: bool = False) -> None:
        self._file, self._disk, self.size = file, disk, 0
        self._regions: list[_Region] = []
        self._seen: mmap.mmap | None = None
        weakref.finalize(self, os.close, file)

    def see(self, size: int) -> mmap.mmap:
        """A map of the file that has at least this size."""
        if self._seen is None or len(self._seen) < size:
            self._seen = self._mapped(0, 0)
        return self._seen

    def take(self, size: int) -> tuple[int, memoryview]:
        """Where a region begins that nobody uses, and the region."""
        # Not a much larger one: a small tensor would keep all of it.
        free = [r for r in self._regions if r.user() is None and size <= len(r.memory) <= 2 * size]
        if free:
            start, memory, _ = taken = min(free, key=lambda region: len(region.memory))
            self._regions.remove(taken)
        else:
            start, memory = self.size, self._grown(size)
        region = memoryview(memory)
        self._regions.append(_Region(start, memory, weakref.ref(region)))
        return start, region

    def _grown(self, size: int) -> mmap.mmap:
        if self._disk:
            rows.allocate(self._file, self.size + size)
        try:
            os.ftruncate(self._file, self.size + size)
            memory = self._mapped(size, self.size)
        except (OSError, OverflowError) as error:
            raise FedUnlearnError(
                f"{size / 1e6:.0f} MB of shared memory could not be allocated ({error}): "
                "use a single worker, fewer clients or a smaller model",
                code="environment",
            ) from error
        self.size += size
        return memory

    def _mapped(self, size: int, offset: int) -> mmap.mmap:
        memory = mmap.mmap(self._file, size, offset=offset)
        if self._disk:
            watch(memory)
        return memory


class _Region(NamedTuple):
    start: int
    memory: mmap.mmap
    user: weakref.ref[memoryview]


def _on_disk() -> int:
    with rows.nameless_file() as file:
        return os.dup(file.fileno())


def _dtype(place: Place) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, place.dtype)
    return dtype


def _view(memory: mmap.mmap | memoryview, offset: int, dtype: torch.dtype, shape: Sequence[int]) -> Tensor:
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
