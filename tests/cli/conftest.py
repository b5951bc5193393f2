from __future__ import annotations

import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from support.children import in_child

from fedunlearn import cli
from fedunlearn.cli import console
from fedunlearn.experiment import perform, read

SMALL = """
name = "small"
model = "lenet5"
[data]
partition = "pat-50"
clients = 4
fraction = 0.05
[training]
batch_size = 20
[pretraining]
rounds = 4
lr = 0.05
[unlearning]
rounds = 3
lr = 0.01
[recovery]
rounds = 2
lr = 0.01
"""

Command = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One pre-training for all tests: what they look at comes after it."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def environment(cache: Path) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if name not in ("CI", "FORCE_COLOR")}
    return {
        **inherited,
        "FEDUNLEARN_CACHE": str(cache),
        "OMP_NUM_THREADS": "1",
        "COLUMNS": "200",
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    return path


@pytest.fixture(scope="session")
def whole(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of ``small`` that nothing disturbed."""
    folder = tmp_path_factory.mktemp("undisturbed")
    (folder / "small.toml").write_text(SMALL)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDUNLEARN_CACHE", str(cache))
        perform(read(folder / "small.toml"), folder / "run", workers=1)
    return folder / "run"


@pytest.fixture
def fedunlearn(tmp_path: Path, environment: dict[str, str]) -> Command:
    """The program as a user starts it, in a folder of its own."""

    def call(*arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command(*arguments),
            cwd=tmp_path,
            env={**environment, **variables},
            capture_output=True,
            text=True,
            timeout=300,
        )

    return call


@pytest.fixture
def here(
    tmp_path: Path,
    environment: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Command:
    """The program in this process, which has imported torch already: for what needs no process of its own."""

    def call(*arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
        for name, value in {**environment, **variables}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["fedunlearn", *map(str, arguments)])
        monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # which the program replaces
        monkeypatch.setattr(console.out, "width", int(os.environ["COLUMNS"]))
        signals = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        # Not ignored, as in a test run that a shell started in the background.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            with pytest.raises(SystemExit) as ended:
                cli.main()
        finally:
            for number, handler in signals.items():
                signal.signal(number, handler)
        return subprocess.CompletedProcess(sys.argv, int(ended.value.code or 0), *capsys.readouterr())

    return call


@pytest.fixture
def apart(here: Command) -> Command:
    """The program in a child of this process: for what leaves something behind, such as registered code."""

    def call(*arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
        def ended() -> tuple[int, str, str]:
            result = here(*arguments, **variables)
            return result.returncode, result.stdout, result.stderr

        return subprocess.CompletedProcess(arguments, *in_child(ended))

    return call


@pytest.fixture
def refused_here(here: Command) -> Callable[..., str]:
    """What is refused, in this process."""
    return refusals(here)


@pytest.fixture
def refused_apart(apart: Command) -> Callable[..., str]:
    """What is refused, in a child of this process."""
    return refusals(apart)


def refusals(program: Command) -> Callable[..., str]:
    """Calls the program and checks that it says no in one sentence."""

    def call(*arguments: object, code: int = 2, **variables: str) -> str:
        result = program(*arguments, **variables)
        assert result.returncode == code, result.stderr
        assert result.stderr.count("\n") == 1, result.stderr
        assert "Traceback" not in result.stderr + result.stdout
        return result.stderr

    return call


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "fedunlearn.cli", *map(str, arguments)]
