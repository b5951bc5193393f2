"""Room for one displacement of each client: in memory, or in a file if there are too many."""

from __future__ import annotations

import mmap
import os
import tempfile
from functools import cache
from typing import IO

import torch
from torch import Tensor

from ..maths.paging import watch
from .errors import FedUnlearnError


@cache
def most_in_memory() -> int:
    """Bytes of displacements that stay in memory: a quarter of what the machine has."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4
    except (AttributeError, ValueError, OSError):  # Windows tells neither.
        return 4 << 30


def empty(rows: int, like: Tensor) -> Tensor:
    """A matrix on the CPU whose rows have the size and the type of a vector; its values are undefined."""
    size = rows * like.nbytes
    if size <= most_in_memory():
        return like.new_empty(rows, len(like), device="cpu")
    with nameless_file() as file:
        allocate(file.fileno(), size)
        memory = mmap.mmap(file.fileno(), size)
    watch(memory)
    return torch.frombuffer(memory, dtype=like.dtype).view(rows, len(like))


def nameless_file() -> IO[bytes]:
    """A file in the folder for temporary files that the system removes with the last process that uses it."""
    return tempfile.TemporaryFile(prefix="fedunlearn-")


def allocate(file: int, size: int) -> None:
    """Makes sure that a file has this size on its disk: a write to a full one would end the process."""
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file, 0, size)
        else:
            os.ftruncate(file, size)
    except (OSError, OverflowError) as error:
        raise FedUnlearnError(
            f"{size / 1e6:.0f} MB of displacements do not fit into memory, nor into {tempfile.gettempdir()} "
            f"({error}): set TMPDIR to a folder on a larger disk, or use fewer clients or a smaller model"
        ) from error
