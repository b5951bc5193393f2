"""How the vectors of a whole model are read: a few columns at a time."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

BLOCK_BYTES = 4 << 20
"""Small enough to stay in the cache between the two or three times that a block is used."""

WIDEST = 1 << 17
"""Columns of a block of few rows: more would only make the system fetch fresh memory for each pass."""


def blocks(
    rows: Tensor, last: Tensor, kept: Tensor | None = None, dtype: torch.dtype = torch.float64
) -> Iterator[tuple[slice, Tensor]]:
    """Some columns after the other of the ``rows`` (or those ``kept``) and, below them, of ``last``.

    Each block is copied to the place of the one before: no bit of a sum then depends on where and in which
    order the rows lie in memory, and a block must not be used after the next.
    """
    size = (len(rows) if kept is None else len(kept)) + 1
    # Columns by the 16, so that each row begins at a multiple of 64 bytes.
    width = min(WIDEST, max(16, BLOCK_BYTES // (dtype.itemsize * size) // 16 * 16))
    buffer = last.new_empty(size, min(width, -(-len(last) // 16) * 16), dtype=dtype)
    for start in range(0, len(last), width):
        part = slice(start, min(start + width, len(last)))
        block = buffer[:, : part.stop - start]
        block[:-1] = rows[:, part] if kept is None else rows[:, part][kept]
        block[-1] = last[part]
        yield part, block
