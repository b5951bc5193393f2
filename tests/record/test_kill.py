"""SIGKILL at every file event of a whole experiment: the resumed run ends in the same bits.

A run is killed after each event and in the middle of each write; before an event the files are as after
the event before it. A kill loses nothing that the system has, so ``fsync`` has a test of its own.
"""

from __future__ import annotations

import builtins
import io
import json
import lzma
import os
import signal
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from fedunlearn.experiment import check, perform
from fedunlearn.record import read_metrics

EXPERIMENT = check(
    {
        "name": "kill",
        "model": "mlp",
        "data": {"dataset": "fashion-demo", "partition": "pat-50", "clients": 4, "fraction": 0.02},
        "training": {"batch_size": 20},
        "pretraining": {"rounds": 1, "lr": 0.05},
        "unlearning": {"rounds": 1, "lr": 0.01},
        "recovery": {"rounds": 2, "lr": 0.01},
    },
    "test",
)

Listener = Callable[[str, str], None]


@pytest.fixture(scope="module", autouse=True)
def fast() -> Iterator[None]:
    """Unpacks the data once: children inherit it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lzma, "decompress", cache(lzma.decompress))
        yield


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
        happened("open", str(path))
        return file

    whole = builtins.open
    patch.setattr(builtins, "open", opened)
    patch.setattr(io, "open", opened)
    # Nothing outlives this machine, so the disk need not work.
    patch.setattr(os, "fsync", reporting("fsync", lambda descriptor: None))
    for event in ("replace", "unlink", "mkdir"):
        patch.setattr(os, event, reporting(event, getattr(os, event)))


def work(folder: Path, happened: Listener = lambda event, path: None) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDUNLEARN_CACHE", str(folder / "cache"))
        watch(patch, happened)
        perform(EXPERIMENT, folder / "run", checkpoint_seconds=0, workers=1)


def killed(folder: Path, event: str, number: int) -> bool:
    """Works in a child that kills itself at an event of this kind; whether it came so far."""
    child = os.fork()
    if child == 0:
        left = number

        def strike(happened: str, _path: str) -> None:
            nonlocal left
            left -= happened == event
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)

        work(folder, strike)
        os._exit(0)
    return os.waitpid(child, 0)[1] == signal.SIGKILL


def result(folder: Path) -> tuple[object, list[dict[str, object]], set[str]]:
    """How a run ended, what it measured, and which files it left."""
    run = folder / "run"
    rows = [
        {key: value for key, value in row.items() if not key.startswith("seconds")}
        for row in read_metrics(run)
    ]
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if "checkpoints" not in path.parts}
    return json.loads((run / "outcome.json").read_text()), rows, files


@pytest.mark.parametrize("event", ["open", "half a write", "write", "replace", "unlink", "mkdir", "truncate"])
def test_a_run_killed_at_any_file_event_ends_in_the_same_model(event, tmp_path):
    work(tmp_path / "whole")
    expected = result(tmp_path / "whole")
    assert expected[0]["status"] == "done"
    number = 0
    while killed(folder := tmp_path / str(number), event, number):
        if not (folder / "run/outcome.json").exists():
            work(folder)
        assert result(folder) == expected, f"killed at {event} {number}"
        assert not list(folder.rglob("*.partial"))
        number += 1
    assert number >= 2


def test_a_file_is_on_disk_before_it_gets_its_name_and_the_name_before_anything_else(tmp_path):
    events: list[tuple[str, str]] = []
    work(tmp_path, lambda event, path: events.append((event, Path(path).name)))
    names = [event for event, _ in events]
    renamed = [place for place, event in enumerate(names) if event == "replace"]
    assert len(renamed) > 8
    for place in renamed:
        assert names[place - 2 : place + 2] == ["write", "fsync", "replace", "fsync"]
