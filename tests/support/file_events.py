"""The file events of a run, one by one."""

from __future__ import annotations

import builtins
import io
import os
from collections.abc import Callable

import pytest

Listener = Callable[[str, str], None]


def watch(patch: pytest.MonkeyPatch, happened: Listener) -> None:
    """Reports each file event with its path, and a write once more when it is half done."""

    def reporting(event: str, call: Callable[..., object]) -> Callable[..., object]:
        def wrapped(*arguments: object, **options: object) -> object:
            result = call(*arguments, **options)
            happened(event, str(arguments[0]))
            return result

        return wrapped

    class File(io.FileIO):
        def write(self, content: bytes) -> int:
            half = len(content) // 2
            super().write(content[:half])
            happened("half a write", str(self.name))
            super().write(content[half:])
            happened("write", str(self.name))
            return len(content)

        def truncate(self, size: int | None = None) -> int:
            size = super().truncate(size)
            happened("truncate", str(self.name))
            return size

    def opened(path, mode="r", *arguments, opener=None, **options):
        if "b" not in mode or mode == "rb":
            return whole(path, mode, *arguments, opener=opener, **options)
        file = File(path, mode, opener=opener)
        try:
            happened("open", str(path))
        except OSError:
            file.close()
            raise
        return file

    whole = builtins.open
    patch.setattr(builtins, "open", opened)
    patch.setattr(io, "open", opened)
    # Nothing outlives this machine, so the disk need not work.
    patch.setattr(os, "fsync", reporting("fsync", lambda descriptor: None))
    for event in ("replace", "unlink", "mkdir", "link", "rmdir", "truncate"):
        patch.setattr(os, event, reporting(event, getattr(os, event)))
