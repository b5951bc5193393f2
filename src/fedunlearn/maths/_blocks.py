"""Iterate over model-sized vectors in blocks of columns."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from .paging import release_pages

BLOCK_BYTES = 4 << 20
"""Size of a block; small enough to stay in the cache while it is used two or three times."""

WIDEST = 1 << 17
"""Most columns in a block; wider blocks of few rows would only request fresh memory in each pass."""

MOST_MAPPED = 64 << 20
"""Bytes of rows in a file that are read before the process lets go of them."""


def blocks(
    rows: Tensor, last: Tensor, kept: Tensor | None = None, dtype: torch.dtype = torch.float64
) -> Iterator[tuple[slice, Tensor]]:
    """Yield blocks of columns of ``rows`` (or of the rows ``kept``), with the row or rows ``last`` below.

    All blocks share one buffer, so the memory layout of the rows does not affect a single bit of a sum. A
    block is invalid once the next one is requested.
    """
    last = last.unsqueeze(0) if last.ndim == 1 else last
    above, length = len(rows) if kept is None else len(kept), last.shape[1]
    size = above + len(last)
    # A multiple of 16 columns, so that each row starts at a multiple of 64 bytes.
    width = min(WIDEST, max(16, BLOCK_BYTES // (dtype.itemsize * size) // 16 * 16))
    buffer = last.new_empty(size, min(width, -(-length // 16) * 16), dtype=dtype)
    read = 0
    for start in range(0, length, width):
        part = slice(start, min(start + width, length))
        block = buffer[:, : part.stop - start]
        block[:above] = rows[:, part] if kept is None else rows[:, part][kept]
        block[above:] = last[:, part]
        yield part, block
        read += rows.element_size() * len(rows) * (part.stop - start)
        if read > MOST_MAPPED:
            release_pages(rows)
            read = 0
    release_pages(rows)
