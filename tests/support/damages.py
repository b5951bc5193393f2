"""Ways to damage a file."""

from __future__ import annotations

import random
from collections.abc import Callable

Damage = Callable[[random.Random, bytes], bytes | None]
"""What becomes of the content of a file; None deletes it."""


def _flip(draw: random.Random, content: bytes) -> bytes:
    place = draw.randrange(len(content))
    return content[:place] + bytes([content[place] ^ 1 << draw.randrange(8)]) + content[place + 1 :]


def _another_digit(draw: random.Random, content: bytes) -> bytes | None:
    places = [place for place, byte in enumerate(content) if chr(byte).isdigit()]
    place = draw.choice(places or [0])
    return content[:place] + str((int(content[place : place + 1]) + 1) % 10).encode() + content[place + 1 :]


def _lines(change: Callable[[list[bytes], int], list[bytes]]) -> Damage:
    def damaged(draw: random.Random, content: bytes) -> bytes:
        lines = content.splitlines(keepends=True)
        return b"".join(change(lines, draw.randrange(len(lines))))

    return damaged


def _zeros(draw: random.Random, content: bytes) -> bytes:
    start = draw.randrange(len(content))
    length = min(512, len(content) - start)
    return content[:start] + bytes(length) + content[start + length :]


ANYWHERE: dict[str, Damage] = {
    "bit": _flip,
    "cut": lambda draw, content: content[: draw.randrange(len(content))],
    "zeros": _zeros,
}
ONCE: dict[str, Damage] = {
    "empty": lambda draw, content: b"",
    "delete": lambda draw, content: None,
    "garbage": lambda draw, content: draw.randbytes(len(content)),
    "short garbage": lambda draw, content: draw.randbytes(50),
}
TEXT: dict[str, Damage] = {
    "digit": _another_digit,
    "repeat line": _lines(lambda lines, place: [*lines[: place + 1], *lines[place:]]),
    "drop line": _lines(lambda lines, place: [*lines[:place], *lines[place + 1 :]]),
    "swap lines": _lines(lambda lines, place: [*lines[:place], *reversed(lines[place:])]),
}
