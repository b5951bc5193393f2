import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

# Rows are overlapping windows of one random vector, so that many and long ones need no memory of their own.
SCRIPT = """
import re, sys
from pathlib import Path
import torch
from fedunlearn.maths import {function}

torch.set_num_threads(1)

def status(field):
    return int(re.search(field + r":\\s+(\\d+) kB", Path("/proc/self/status").read_text()).group(1)) / 1000

def case(rows, width):
    line = torch.randn(width + 7 * rows, generator=torch.Generator().manual_seed(0))
    return line[:width].flip(0), line.as_strided((rows, width), (7, 1))

call = {call}
call(*case(8, 5000))  # loads the numeric libraries
forget, retain = case(int(sys.argv[1]), int(sys.argv[2]))
before = status("VmRSS")
Path("/proc/self/clear_refs").write_text("5")
result = call(forget, retain)
print(status("VmHWM") - before)
"""


def extra_megabytes(function: str, call: str, rows: int, width: int) -> float:
    script = SCRIPT.format(function=function, call=call)
    command = [sys.executable, "-c", script, str(rows), str(width)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


@pytest.mark.parametrize(("rows", "width"), [(9, 11_000_000), (1000, 10_000)])
def test_orthogonal_direction_needs_less_than_64_mb_with_its_result(rows: int, width: int) -> None:
    extra = extra_megabytes("orthogonal_direction", "orthogonal_direction", rows, width)
    assert extra <= 64
    assert extra >= 4 * width / 1e6  # or nothing was measured


def test_project_off_needs_little_beside_its_result() -> None:
    call = "lambda forget, retain: project_off(forget, retain[0], always=True)"
    assert 40 <= extra_megabytes("project_off", call, 1, 10_000_000) <= 56


def test_conflicts_makes_no_copy_of_the_matrix() -> None:
    call = "lambda forget, retain: conflicts(retain, forget)"
    assert extra_megabytes("conflicts", call, 30, 2_000_000) <= 16
