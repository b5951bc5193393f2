"""Displacements that memory cannot hold lie in a file without a name; nothing else changes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support.codes import refused
from support.federations import forget, holdings, network

from fedunlearn import Parallel, Sequential, Terms, flatten, train
from fedunlearn.core import rows
from fedunlearn.engines.memory import SharedMemory
from fedunlearn.maths.paging import release_pages

MEGABYTE = torch.zeros(1 << 18)


@pytest.fixture
def no_memory(monkeypatch, tmp_path):
    """All rows go to a file in this folder."""
    monkeypatch.setattr(rows, "most_in_memory", lambda: 0)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def mapped_megabytes() -> float:
    """Of files, in the memory of this process."""
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith("RssFile"))
    return int(line.split()[1]) / 1024


def test_a_matrix_on_disk_keeps_its_content_when_the_process_lets_go_of_it(no_memory):
    matrix = rows.empty(64, MEGABYTE)
    before = mapped_megabytes()
    matrix.copy_(torch.arange(64).unsqueeze(1))
    assert mapped_megabytes() - before > 60
    for row in matrix:
        release_pages(row)
    assert mapped_megabytes() - before < 8
    assert torch.equal(matrix[:, ::5000].sum(1), torch.arange(64) * 53.0)
    release_pages(matrix)
    assert mapped_megabytes() - before < 8
    assert list(no_memory.iterdir()) == []


def test_letting_go_of_other_memory_changes_nothing(no_memory):
    on_disk, in_memory = rows.empty(1, MEGABYTE), torch.ones(1 << 18)
    release_pages(in_memory)
    release_pages(torch.empty(0))
    assert in_memory.eq(1).all()
    assert on_disk.shape == (1, 1 << 18)


@pytest.mark.parametrize("method", ["fedosd", "federaser"])
def test_a_run_gives_the_same_bits_on_disk_and_in_memory(method, no_memory, monkeypatch):
    data, model = holdings("mlp"), network("mlp")
    with Parallel(model, data, workers=2) as parallel:
        found = [forget(method, "mlp", engine).params for engine in (parallel, Sequential(model, data))]
        assert parallel._memory._files[1].size > 0
    monkeypatch.undo()
    expected = forget(method, "mlp", Sequential(model, data)).params
    assert all(torch.equal(params, expected) for params in found)


def test_rows_are_a_matrix_even_if_one_in_the_middle_is_missing(no_memory):
    data, model = holdings("mlp"), network("mlp")
    replies = Sequential(model, data).exchange(dict.fromkeys(data, train(flatten(model))), Terms())
    some = replies.of(client for place, client in enumerate(data) if place != 1)
    assert torch.equal(some.matrix(), torch.stack([reply.moved for reply in some.values()]))


@pytest.mark.parametrize("make", [lambda: rows.empty(3, MEGABYTE), lambda: _taken()])
def test_a_full_disk_is_one_sentence(no_memory, monkeypatch, make):
    def full(*_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with refused("environment", says=r"3 MB of displacements do not fit .*No space.*: set TMPDIR"):
        make()


@pytest.mark.parametrize("make", [lambda: rows.empty(3, MEGABYTE), lambda: _taken()])
def test_a_folder_that_cannot_be_written_to_is_one_sentence(no_memory, monkeypatch, make):
    monkeypatch.setattr("tempfile.tempdir", str(no_memory / "missing"))
    with refused("environment", says=r"need a temporary file, and none can .*No such.*: set TMPDIR"):
        make()


def test_what_fits_into_memory_needs_no_folder_and_workers_see_what_later_goes_to_disk(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "later"))
    data, model = holdings("mlp"), network("mlp")
    jobs = dict.fromkeys(data, train(flatten(model)))
    with Parallel(model, data, workers=2) as parallel:
        expected = parallel.exchange(jobs).matrix()
        assert parallel._memory.files == 1
        (tmp_path / "later").mkdir()
        monkeypatch.setattr(rows, "most_in_memory", lambda: 0)
        assert torch.equal(parallel.exchange(jobs).matrix(), expected)
        assert parallel._memory.files == 2


@pytest.mark.parametrize(
    ("groups", "files", "limits"),
    [
        ("0::/", {"memory.max": "1000"}, [1000]),
        ("0::/", {"memory.max": "max"}, []),
        ("0::/a/b", {"a/b/memory.max": "max", "a/memory.max": "2000"}, [2000]),
        ("0::/of/the/host", {"memory.max": "1000"}, [1000]),
        ("3:cpu:/x\n4:memory:/x", {"memory/x/memory.limit_in_bytes": "3000"}, [3000]),
        ("", {}, []),
        (None, {}, []),
    ],
    ids=["2", "2, none", "2, of a parent", "2, seen from inside", "1", "none", "no Linux"],
)
def test_the_limit_of_a_container_counts(groups, files, limits, tmp_path):
    found = {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    for name, text in (found | ({} if groups is None else {"proc/self/cgroup": groups})).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    assert rows.container_limits(tmp_path) == limits


def _taken() -> object:
    return SharedMemory().take((torch.float32, (3, 1 << 18)))


def test_a_killed_process_leaves_no_file(tmp_path):
    code = (
        "import os, torch\n"
        "from fedunlearn.core import rows\n"
        "rows.most_in_memory = lambda: 0\n"
        "rows.empty(4, torch.zeros(1000)).fill_(1)\n"
        "from fedunlearn.engines.memory import SharedMemory\n"
        "kept = SharedMemory().take((torch.float32, (4, 1000)))\n"
        "os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "TMPDIR": str(tmp_path)})
    assert done.returncode == -signal.SIGKILL
    assert list(tmp_path.iterdir()) == []
