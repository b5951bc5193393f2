"""How the vectors of a whole model are read: a few columns at a time, in float64."""

from __future__ import annotations

from collections.abc import Iterator

BLOCK_BYTES = 4 << 20
"""Small enough to stay in a core's cache between the two or three times a block is used."""


def blocks(length: int, rows: int = 1) -> Iterator[slice]:
    """Cuts ``length`` columns so that ``rows`` rows of a piece fill at most ``BLOCK_BYTES`` in float64."""
    width = max(1, BLOCK_BYTES // (8 * max(1, rows)))
    for start in range(0, length, width):
        yield slice(start, min(start + width, length))
