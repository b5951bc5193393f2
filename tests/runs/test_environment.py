from __future__ import annotations

import json
import os
import subprocess
import sys

import torch

from fedunlearn.runs import decisive, environment
from fedunlearn.runs.environment import _numerics as numerics

PROGRAM = "import json; from fedunlearn.runs import environment; print(json.dumps(environment()))"


def elsewhere(**variables: str) -> dict[str, str]:
    """The environment that a new process finds."""
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, str] = json.loads(ran.stdout)
    return found


def test_the_environment_is_the_same_in_another_process_with_more_threads():
    assert elsewhere(OMP_NUM_THREADS="2") == environment()


def test_other_kernels_on_the_same_processor_are_noticed():
    other = elsewhere(MKL_CBWR="COMPATIBLE")
    assert {key for key, value in environment().items() if other[key] != value} == {"numerics"}


def test_bits_do_not_depend_on_what_was_computed_before():
    found = set()
    for size in range(1, 40):
        _ = torch.rand(size + 1)[1:] @ torch.rand(size, 7)
        found.add(numerics.__wrapped__())
    assert found == {environment()["numerics"]}


def test_what_decides_bits_is_part_of_the_environment():
    assert decisive() == {key: environment()[key] for key in ("torch", "cpu_capability", "numerics")}
