"""Room for one displacement of each client: in memory, or in a file if there are too many."""

from __future__ import annotations

import mmap
import os
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO

import torch
from torch import Tensor

from ..maths.paging import watch
from .errors import FedUnlearnError


@cache
def most_in_memory() -> int:
    """Bytes of displacements that stay in memory: a quarter of what the machine or its container has."""
    try:
        physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # Windows tells neither.
        physical = 16 << 30
    return min([physical, *container_limits()]) // 4


def container_limits(system: Path = Path("/")) -> list[int]:
    """The memory limits of the control groups, version 1 or 2, that this process is in."""
    limits = []
    with suppress(OSError, ValueError):
        for line in (system / "proc/self/cgroup").read_text().splitlines():
            _, controllers, group = line.split(":", 2)
            if not controllers:
                root, name = system / "sys/fs/cgroup", "memory.max"
            elif "memory" in controllers.split(","):
                root, name = system / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
            else:
                continue
            place = root / group.lstrip("/")
            for folder in (place, *place.parents):
                with suppress(OSError, ValueError):  # the word "max", or a group outside of the container
                    limits.append(int((folder / name).read_text()))
                if folder == root:
                    break
    return limits


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
    try:
        return tempfile.TemporaryFile(prefix="fedunlearn-")
    except OSError as error:
        raise FedUnlearnError(
            f"displacements of more than {most_in_memory() / 1e9:.1f} GB need a temporary file, and none can "
            f"be made ({error}): set TMPDIR to a folder on a disk with room for them",
            code="environment",
        ) from error


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
            f"({error}): set TMPDIR to a folder on a larger disk, or use fewer clients or a smaller model",
            code="environment",
        ) from error
