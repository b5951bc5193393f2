"""The method that CONTRIBUTING.md shows is a method: it passes the contract suite as it is printed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
IMPORTS = """
from dataclasses import dataclass
from typing import ClassVar

from fedunlearn import Phase, Request, Round, Schedule, Stage, State, method, train
from fedunlearn.core import NOBODY, Role
from fedunlearn.methods.fedavg import Averaging
"""


def test_the_shown_method_passes_the_contract_suite(tmp_path):
    text = (ROOT / "CONTRIBUTING.md").read_text()
    shown = re.search(r"## Add a method.*?```python\n(.*?)```", text, re.DOTALL).group(1)
    (tmp_path / "shown_method.py").write_text(IMPORTS + shown)
    paths = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    suite = ["-m", "pytest", "-q", "-p", "shown_method", "-p", "no:cacheprovider", "-k", "dampen"]
    result = subprocess.run(
        [sys.executable, *suite, "tests/contract"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout
    passed = re.search(r"(\d+) passed", result.stdout)
    assert passed is not None, result.stdout
    assert int(passed.group(1)) >= 24, result.stdout
