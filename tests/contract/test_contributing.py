"""The method that CONTRIBUTING.md shows is a method: it passes the contract suite as it is printed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
IMPORTS = """
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from fedunlearn import ClientId, Job, Phase, Replies, Request, Schedule, Stage, State, method
from fedunlearn.methods.fedavg import Averaging
from fedunlearn.methods.targets import absent
"""


def test_the_shown_method_passes_the_contract_suite(tmp_path):
    text = (ROOT / "CONTRIBUTING.md").read_text()
    shown = re.search(r"## Add a method.*?```python\n(.*?)```", text, re.DOTALL).group(1)
    (tmp_path / "shown_method.py").write_text(IMPORTS + shown)
    suite = ["-m", "pytest", "-q", "-p", "shown_method", "-p", "no:cacheprovider", "-k", "backwards"]
    result = subprocess.run(
        [sys.executable, *suite, "tests/contract/test_contract.py"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT / 'src'}"},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout
    assert "20 passed" in result.stdout
