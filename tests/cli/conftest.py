from __future__ import annotations

import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from fedunlearn import cli
from fedunlearn.cli import console

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
def refused(fedunlearn: Command) -> Callable[..., str]:
    """Calls the program and checks that it says no in one sentence."""

    def call(*arguments: object, code: int = 2, **variables: str) -> str:
        result = fedunlearn(*arguments, **variables)
        return one_sentence(result.returncode, code, result.stdout, result.stderr)

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
        monkeypatch.setattr(console.out, "width", int(environment["COLUMNS"]))
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
def refused_here(here: Command) -> Callable[..., str]:
    """What is refused before it begins."""

    def call(*arguments: object, code: int = 2, **variables: str) -> str:
        result = here(*arguments, **variables)
        return one_sentence(result.returncode, code, result.stdout, result.stderr)

    return call


def one_sentence(code: object, expected: int, out: str, err: str) -> str:
    assert code == expected, err
    assert err.count("\n") == 1, err
    assert "Traceback" not in err + out
    return err


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "fedunlearn.cli", *map(str, arguments)]
