"""A desk, and what an answer that nobody disturbs leaves of it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support.desks import contents, make, way


@pytest.fixture(scope="session")
def new(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A desk that has heard of nobody yet; work on copies of it."""
    return make(tmp_path_factory.mktemp("new") / "desk")


@pytest.fixture(scope="session")
def whole(new: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What an answer that nobody disturbs leaves."""
    folder = shutil.copytree(new, tmp_path_factory.mktemp("whole") / "desk")
    way(folder)
    return contents(folder)
