"""What version 0.2 has begun, this version finishes: runs, caches, servers, sealed runs and desks."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMMIT = "a56c648"
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
