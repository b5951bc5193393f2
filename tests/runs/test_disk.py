"""A disk that fails at any write, fsync or rename: the last good state is left, and a run goes on from it."""

from __future__ import annotations

import errno
import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.children import in_child
from support.closed_form import Quadratics, request
from support.file_events import watch

from fedunlearn import FedUnlearnError, Outcome, Schedule, method, unlearn
from fedunlearn.core.hashes import model_hash
from fedunlearn.runs import Recorder, claim, fingerprint, json_bytes, verify

PHASES = method["fedosd"](Schedule(3, 0.05, 2, 0.05))
EVENTS = ["open", "half a write", "write", "fsync", "replace", "unlink"]


def work(folder: Path) -> Outcome:
    """A run that writes what runs write, in no time."""
    files = claim(folder, "run")
    files.write({"experiment.json": json_bytes({"seed": 1})})
    with Recorder(folder, fingerprint("run"), seconds=0, files=files) as recorder:
        outcome = unlearn(PHASES, request(), Quadratics(), listeners=[recorder], resume=recorder.progress)
    ended = {"status": outcome.status, "model_sha256": model_hash(outcome.state)}
    files.write(
        {"model.safetensors": files.tensors({"w": outcome.params}), "outcome.json": json_bytes(ended)}
    )
    return outcome


def events(folder: Path) -> dict[str, int]:
    """How often each event happens in a whole run."""
    seen = dict.fromkeys(EVENTS, 0)

    def count(event: str, _path: str) -> None:
        seen[event] = seen.get(event, 0) + 1

    with pytest.MonkeyPatch.context() as patch:
        watch(patch, count)
        work(folder)
    return seen


def fails_at(folder: Path, event: str, number: int, error: int, once: bool) -> bool:
    """Whether a run fails when the disk does at one event, or from then on; it says so in a sentence."""
    left = number

    def strike(happened: str, path: str) -> None:
        nonlocal left
        if happened == event:
            left -= 1
            if left == -1 or (left < -1 and not once):
                raise OSError(error, os.strerror(error), path)

    with pytest.MonkeyPatch.context() as patch:
        watch(patch, strike)
        try:
            work(folder)
        except FedUnlearnError as problem:
            return problem.code == "file"
    return False


def assert_goes_on(folder: Path, whole: Outcome) -> None:
    verify(folder)
    again = work(folder)
    assert torch.equal(again.params, whole.params)
    assert verify(folder).verified
    assert not list(folder.rglob("*.partial"))


def assert_nothing_is_lost(folder: Path, event: str, every: int) -> int:
    """Lets the disk fail at each event of a kind, or at one of so many."""
    failures = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)  # what goes on needs no disk
        whole = work(folder / "whole")
        number = events(folder / "watched")[event]
        assert number >= 1
        for place in range(0, number, every):
            error = (errno.ENOSPC, errno.EIO)[place % 2]
            once = place % 4 > 1
            assert fails_at(folder / str(place), event, place, error, once), f"{event} {place} of {number}"
            assert_goes_on(folder / str(place), whole)
            failures += 1
    return failures


@pytest.mark.parametrize("event", EVENTS)
def test_a_disk_that_fails_costs_nothing_that_was_written(event, tmp_path):
    assert assert_nothing_is_lost(tmp_path, event, every=7)


@pytest.mark.chaos
@pytest.mark.parametrize("event", EVENTS)
def test_a_disk_that_fails_anywhere_costs_nothing_that_was_written(event, tmp_path):
    print(event, assert_nothing_is_lost(tmp_path, event, every=1))


def limited(size: int, work: Callable[[], object]) -> str:
    """The code of the error where the system lets a process write no file longer than this."""

    def told() -> str:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
        try:
            work()
        except FedUnlearnError as error:
            return error.code
        return ""

    return in_child(told)


@pytest.mark.parametrize("size", [0, 100, 500, 800, 1200, 2000, 3000])
def test_a_limit_of_the_system_costs_nothing_that_was_written(size, tmp_path):
    whole = work(tmp_path / "whole")
    assert limited(size, lambda: work(tmp_path / "run")) == "file"
    assert_goes_on(tmp_path / "run", whole)
