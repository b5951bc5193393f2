"""The wheel in an empty environment; left out unless asked for: `make dist` builds it and asks."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from support.demo import check_promise

pytestmark = pytest.mark.wheel

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "fedunlearn"


class Environment:
    """A virtual environment outside the repository."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.home = folder, folder / "home"
        self.home.mkdir()
        subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
        self.bin = folder / "venv" / ("Scripts" if os.name == "nt" else "bin")

    def run(self, *command: object) -> subprocess.CompletedProcess[str]:
        """Runs a program of the environment, far from the sources."""
        program, *arguments = map(str, command)
        foreign = ("PYTHON", "VIRTUAL_ENV", "FEDUNLEARN_")
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        return subprocess.run(
            [str(self.bin / program), *arguments],
            env=inherited | {"FEDUNLEARN_CACHE": str(self.folder / "cache")},
            cwd=self.home,
            capture_output=True,
            text=True,
            timeout=600,
        )

    def install(self, wheel: Path, extras: Sequence[str] = ()) -> None:
        what = f"{wheel}[{','.join(extras)}]" if extras else wheel
        # Few of torch's modules are imported here: compiling all of them would take longest.
        options = ("-q", "--disable-pip-version-check", "--no-compile", "-c", ROOT / "constraints.txt")
        result = self.run("python", "-m", "pip", "install", *options, what)
        assert result.returncode == 0, result.stderr


@pytest.fixture(scope="module")
def wheel() -> Path:
    [built] = (ROOT / "dist").glob("fedunlearn-*.whl")
    return built


@pytest.fixture(scope="module")
def core(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Environment]:
    environment = Environment(tmp_path_factory.mktemp("empty"))
    environment.install(wheel)
    yield environment
    shutil.rmtree(environment.folder)  # torch is large, and pytest keeps the folders of three runs


def test_the_wheel_holds_every_file_of_the_package(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        built = {name: archive.read(name) for name in archive.namelist() if name.startswith("fedunlearn/")}
    sources = (path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    assert built == {path.relative_to(PACKAGE.parent).as_posix(): path.read_bytes() for path in sources}


def test_the_package_is_imported_without_an_extra(core: Environment) -> None:
    script = "import fedunlearn; [getattr(fedunlearn, name) for name in fedunlearn.__all__]"
    result = core.run("python", "-c", f"{script}; print(fedunlearn.__file__)")
    assert (result.returncode, result.stderr) == (0, "")
    assert Path(result.stdout.strip()).is_relative_to(core.folder)


def test_the_program_without_its_extra_says_what_to_install(core: Environment) -> None:
    result = core.run("fedunlearn", "demo")
    assert result.returncode == 2
    assert result.stderr == "fedunlearn: the command line needs typer: pip install 'fedunlearn[cli]'\n"


def test_the_demo_runs_with_the_extras(core: Environment, wheel: Path) -> None:
    core.install(wheel, ["cli", "report"])
    checked = core.run("python", "-m", "pip", "check")
    assert checked.returncode == 0, checked.stdout
    result = core.run("fedunlearn", "demo", "--out", "demo")
    assert result.returncode == 0, result.stderr
    assert (core.home / "demo" / "report.html").stat().st_size > 10_000
    check_promise(core.home / "demo")
