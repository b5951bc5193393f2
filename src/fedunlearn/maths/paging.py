"""Vectors that lie in a file, because memory is too small for all of them."""

from __future__ import annotations

import ctypes
import mmap
import weakref

from torch import Tensor

_MAPS: list[tuple[int, int, weakref.ref[mmap.mmap]]] = []
"""First address, end, and map of each file."""


def watch(memory: mmap.mmap) -> None:
    """Register the map of a file: ``release_pages`` leaves all other memory alone."""
    _MAPS[:] = [entry for entry in _MAPS if entry[2]() is not None]
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    _MAPS.append((address, address + len(memory), weakref.ref(memory)))


def release_pages(tensor: Tensor) -> None:
    """Release the pages of a tensor that will not be used for a while.

    If it lies in a file, its pages leave the memory of this process; the file keeps their content.
    """
    if not _MAPS or not tensor.numel() or not hasattr(mmap, "MADV_DONTNEED"):
        return
    first = tensor.data_ptr()
    beyond = sum((length - 1) * stride for length, stride in zip(tensor.shape, tensor.stride(), strict=True))
    last = first + (beyond + 1) * tensor.element_size()
    for start, end, kept in _MAPS:
        if start <= first < end and (memory := kept()) is not None:
            page = (first - start) // mmap.PAGESIZE * mmap.PAGESIZE
            memory.madvise(mmap.MADV_DONTNEED, page, min(last, end) - start - page)
