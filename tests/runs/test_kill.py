"""SIGKILL at every file event of a whole experiment: the resumed run ends in the same bits.

A kill leaves the files of that moment, so one run is watched and its files are copied after each event and in
the middle of each write; before an event they are as after the event before it. For each kind of event, a
process is killed as well: it leaves the files that were copied. A kill loses nothing that the system has, so
``fsync`` has a test of its own.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.file_events import Listener, watch

from fedunlearn.experiment import check, perform
from fedunlearn.runs import read_metrics, verify

EXPERIMENT = check(
    {
        "name": "kill",
        "model": "lenet5",
        "data": {"dataset": "fashion-demo", "partition": "pat-50", "clients": 4, "fraction": 0.02},
        "training": {"batch_size": 20},
        "pretraining": {"rounds": 1, "lr": 0.05},
        "unlearning": {"rounds": 1, "lr": 0.01},
        "recovery": {"rounds": 2, "lr": 0.01},
    },
    "test",
)


def work(folder: Path, happened: Listener = lambda event, path: None) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDUNLEARN_CACHE", str(folder / "cache"))
        watch(patch, happened)
        perform(EXPERIMENT, folder / "run", checkpoint_seconds=0, workers=1)


def kill(folder: Path, event: str, number: int) -> None:
    """Works in a child that kills itself at an event of this kind."""
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
    assert os.waitpid(child, 0)[1] == signal.SIGKILL


@dataclass(frozen=True)
class Moment:
    folder: Path
    names: set[str]


@pytest.fixture(scope="module")
def moments(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Moment]]:
    """Copies of all files of a run, made after each event and listed by its kind; the last is ``end``."""
    run, copies = tmp_path_factory.mktemp("run"), tmp_path_factory.mktemp("copies")
    found: dict[str, list[Moment]] = defaultdict(list)
    copying = False

    def keep(event: str, _path: str) -> None:
        nonlocal copying
        if not copying and event != "fsync":
            copying = True
            folder = copies / f"{event} {len(found[event])}"
            found[event].append(Moment(shutil.copytree(run, folder), names(folder)))
            copying = False

    work(run, keep)
    keep("end", "")
    return found


def names(folder: Path) -> set[str]:
    """Of all files and folders; the temporary ones have a random part."""
    return {
        re.sub(r"\w{16}\.partial$", "partial", str(path.relative_to(folder))) for path in folder.rglob("*")
    }


def result(folder: Path) -> tuple[object, list[dict[str, object]], set[str]]:
    """How a run ended, what it measured, and which files it left."""
    run = folder / "run"
    rows = [
        {key: value for key, value in row.items() if not key.startswith("seconds")}
        for row in read_metrics(run)
    ]
    files = {name for name in names(folder) if "checkpoints" not in name and not name.endswith(".partial")}
    return json.loads((run / "outcome.json").read_text()), rows, files


KINDS = ["open", "half a write", "write", "replace", "unlink", "mkdir", "truncate"]


def assert_continues_to_the_same_end(folder: Path, end: Moment) -> None:
    if ended := (folder / "run/outcome.json").exists():
        verify(folder / "run")
    else:
        work(folder)
    assert result(folder) == result(end.folder), f"killed at {folder.name}"
    left = {path.name[: -len("0123456789abcdef.partial")] for path in folder.rglob("*.partial")}
    assert left <= ({".manifest.json."} if ended else set())


@pytest.mark.parametrize("every", [6, pytest.param(1, marks=pytest.mark.chaos)])
@pytest.mark.parametrize("event", KINDS)
def test_a_run_killed_at_any_file_event_ends_in_the_same_model(event, every, moments):
    """One in six events of a kind; all of them in the long form."""
    (end,) = moments["end"]
    assert result(end.folder)[0]["status"] == "done"
    assert len(moments[event]) >= 2
    for moment in moments[event][::every]:
        folder = moment.folder.with_name(f"{moment.folder.name} every {every}")
        assert_continues_to_the_same_end(shutil.copytree(moment.folder, folder), end)


@pytest.mark.parametrize("event", KINDS)
def test_a_killed_process_leaves_the_files_of_that_moment(event, moments, tmp_path):
    number = len(moments[event]) // 2
    kill(tmp_path, event, number)
    assert names(tmp_path) == moments[event][number].names
    assert_continues_to_the_same_end(tmp_path, *moments["end"])


def test_a_file_is_on_disk_before_it_gets_its_name_and_the_name_before_anything_else(tmp_path):
    events: list[tuple[str, str]] = []
    work(tmp_path, lambda event, path: events.append((event, Path(path).name)))
    names = [event for event, _ in events]
    renamed = [place for place, event in enumerate(names) if event == "replace"]
    assert len(renamed) > 8
    for place in renamed:
        assert names[place - 2 : place + 2] == ["write", "fsync", "replace", "fsync"]
