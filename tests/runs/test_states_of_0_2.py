"""What version 0.2 has begun, this version finishes: runs, caches, servers, sealed runs and desks."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

ROOT = Path(__file__).parents[2]
COMMIT = "a56c648"
CODES = {"event", "status", "kind", "stage", "verdict", "method", "claim"}
"""Keys whose values are codes."""
CUT = {"plan.json", "report.md", "curves.png"}
"""Files that no later step reads: the plan has other fields now, and the report is one page with SVG."""
SHUFFLED = "server: training"
"""Its request is new, and version 0.2 did not shuffle batches."""


def states(work: str, folder: Path, code: Path) -> dict[str, str]:
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("states_of_0_2.py"), work, folder],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(code / "src"), str(code / "tests")])},
        cwd=folder.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """Folders that the code of version 0.2 has begun, and how it ends them itself."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed, so the code of version 0.2 cannot be had")
    place = tmp_path_factory.mktemp("0.2")
    archive = place / "code.tar"
    command = ["git", "-C", ROOT, "archive", "--output", archive, COMMIT, "src", "tests"]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip(f"commit {COMMIT} of version 0.2 is not in this clone")
    shutil.unpack_archive(archive, place / "code")
    return place / "states", states("begin", place / "states", place / "code")


def test_every_state_ends_as_in_version_0_2(earlier):
    folder, expected = earlier
    found = states("finish", folder, ROOT)
    assert re.fullmatch("[0-9a-f]{64}", found.pop(SHUFFLED))
    del expected[SHUFFLED]
    assert len(expected) == 19
    assert found == expected


def words(folder: Path) -> set[str]:
    """The names of files, keys and tensors, and the codes, that a folder holds."""
    found = set()
    for path in sorted(folder.rglob("*")):
        if path.name in CUT:
            continue
        place = re.sub("[0-9a-f]{8,}", "#", path.relative_to(folder).as_posix())
        if path.suffix == ".json":
            found |= {f"{place}: {told}" for told in keys(json.loads(path.read_bytes()))}
        elif path.suffix == ".jsonl":
            found |= {
                f"{place}: {told}"
                for line in path.read_text().splitlines()
                for told in keys(json.loads(line))
            }
        elif path.suffix == ".safetensors" and "/desk/" not in f"/{place}":  # sealed there
            with safe_open(path, "np") as tensors:
                found |= {f"{place}: {told}" for told in [*tensors.keys(), *(tensors.metadata() or {})]}
        elif path.is_file():
            found.add(place)
    return found


def keys(value: Any, place: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from keys(inner, f"{place}.{re.sub('[0-9a-f]{16,}', '#', key)}")
    elif isinstance(value, list):
        for inner in value:
            yield from keys(inner, f"{place}[]")
    else:
        code = isinstance(value, str) and place.rpartition(".")[2] in CODES
        yield f"{place} = {value}" if code else place


def test_everything_that_version_0_2_wrote_is_still_written_under_its_name(earlier, tmp_path):
    folder, _ = earlier
    states("begin", tmp_path / "states", ROOT)
    missing = words(folder.with_name("states-own")) - words(tmp_path / "states-own")
    assert sorted(missing) == []
