"""R5: a disk that fails at any event of an answer costs nothing that was written, and leaves no debris."""

from __future__ import annotations

import errno
import os
import shutil
from collections import Counter
from pathlib import Path

import pytest
from support.codes import says
from support.desks import answer, contents, document, opened, repeatable, way
from support.file_events import watch

from fedunlearn import FedUnlearnError

ERRORS = (errno.ENOSPC, errno.EIO, errno.EACCES, errno.EDQUOT)


def struck(folder: Path, number: int, error: int, once: bool) -> str | None:
    """The event at which the disk failed, if there were so many, and how the answer ended."""
    left, where = number, ""

    def strike(event: str, path: str) -> None:
        nonlocal left, where
        left -= 1
        if left == -1 or (left < -1 and not once):
            where = where or f"{event} {Path(path).name}"
            raise OSError(error, os.strerror(error), path)

    with repeatable(), pytest.MonkeyPatch.context() as patch:
        watch(patch, strike)
        try:
            answer(opened(folder), document())
        except FedUnlearnError as problem:
            told = str(problem)
            return f"{where}: {told}" if not says(told, os.strerror(error)) or "\n" in told else where
    # What only tidies up may fail unnoticed.
    return where or None


def fail_everywhere(new: Path, whole: dict[str, bytes], place: Path, every: int) -> Counter[str]:
    found: Counter[str] = Counter()
    number = 0
    while True:
        folder = shutil.copytree(new, place / str(number))
        error, once = ERRORS[number // every % 4], number // every % 3 > 0
        where = struck(folder, number, error, once)
        if where is None:
            break
        assert ":" not in where, where
        found[where.split(" ")[0]] += 1
        opened(folder).cases()
        way(folder)
        assert contents(folder) == whole, where
        shutil.rmtree(folder)
        number += every
    print(f"R5: {found.total()} disk errors, {found.total()} finished to the same bytes; {dict(found)}")
    return found


def test_a_disk_that_fails_costs_nothing(new, whole, tmp_path):
    assert fail_everywhere(new, whole, tmp_path, 53).total() > 5


@pytest.mark.chaos
def test_a_disk_that_fails_anywhere_costs_nothing(new, whole, tmp_path):
    found = fail_everywhere(new, whole, tmp_path, 1)
    assert found.total() > 250
    assert {"open", "half", "write", "fsync", "replace", "unlink", "mkdir", "link", "rmdir"} <= {*found}
