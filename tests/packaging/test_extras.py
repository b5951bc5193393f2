"""What works with the core dependencies alone, and what is said where an extra is missing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from fedunlearn import FedUnlearnError
from fedunlearn.data import fetch
from fedunlearn.data.sources import data_directory
from fedunlearn.experiment import cache_directory

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def package(requirement: str) -> str:
    return re.split(r"[^A-Za-z0-9_-]", requirement)[0]


OPTIONAL = [line for lines in PROJECT["optional-dependencies"].values() for line in lines]
EXTRAS = {package(line) for line in OPTIONAL} - {"fedunlearn"}

WITHOUT = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {packages!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
"""


def without_extras(script: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs a script for which no package of an extra is installed."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("FEDUNLEARN_")}
    return subprocess.run(
        [sys.executable, "-c", WITHOUT.format(packages=EXTRAS) + script],
        env=inherited | variables | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
    )


PYTHON_INTERFACE = """
import importlib, pkgutil
import fedunlearn

for name in fedunlearn.__all__:
    getattr(fedunlearn, name)
for module in pkgutil.iter_modules(fedunlearn.__path__, "fedunlearn."):
    if module.name.partition(".")[2] not in ("__main__", "cli", "report", "studies"):
        importlib.import_module(module.name)
"""

EXPERIMENT = """
from pathlib import Path
from fedunlearn.experiment import check, perform

values = {
    "name": "small",
    "data": {"dataset": "fashion-demo", "partition": "iid", "clients": 3, "fraction": 0.02},
    "training": {"batch_size": 16},
    "pretraining": {"rounds": 1, "lr": 0.1},
    "unlearning": {"rounds": 1, "lr": 0.1},
    "recovery": {"rounds": 1, "lr": 0.1},
}
perform(check(values, "small"), Path("run"), workers=1)
"""


def test_the_python_interface_needs_no_extra(tmp_path: Path) -> None:
    result = without_extras(PYTHON_INTERFACE, tmp_path)
    assert result.returncode == 0, result.stderr


def test_an_experiment_from_python_writes_its_run_folder_without_an_extra(tmp_path: Path) -> None:
    result = without_extras(EXPERIMENT, tmp_path, FEDUNLEARN_CACHE=str(tmp_path / "cache"))
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "run" / "metrics.jsonl").exists()


def test_the_program_names_the_extra_that_it_needs(tmp_path: Path) -> None:
    result = without_extras("from fedunlearn.__main__ import main; main()", tmp_path)
    assert result.returncode == 2
    assert result.stderr == "fedunlearn: the command line needs typer: pip install 'fedunlearn[cli]'\n"


def test_a_package_that_no_extra_brings_is_not_blamed_on_an_extra(tmp_path: Path) -> None:
    start = "sys.modules['signal'] = None\nfrom fedunlearn.__main__ import main\nmain()"
    result = without_extras(start, tmp_path)
    assert result.returncode == 1
    assert "fedunlearn[cli]" not in result.stderr


@pytest.mark.parametrize(
    ("folder", "setting"), [(data_directory, "FEDUNLEARN_DATA"), (cache_directory, "FEDUNLEARN_CACHE")]
)
def test_a_default_folder_names_the_extra_that_it_needs(
    folder: Callable[[], Path], setting: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "platformdirs", None)
    monkeypatch.setenv(setting, str(tmp_path))
    assert folder() == tmp_path
    monkeypatch.delenv(setting)
    with pytest.raises(
        FedUnlearnError, match=rf"platformdirs: pip install 'fedunlearn\[cli\]', or set {setting}"
    ):
        folder()


@pytest.mark.parametrize("missing", ["pooch", "requests", "rich"])
def test_a_download_names_the_extra_that_it_needs(
    missing: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == missing]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.setenv("FEDUNLEARN_DATA", str(tmp_path))
    with pytest.raises(
        FedUnlearnError, match=rf"^a download needs {missing}\S*: pip install 'fedunlearn\[cli\]'$"
    ):
        fetch("mnist")


def test_the_program_is_the_module(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "fedunlearn", "--version"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("fedunlearn ")
