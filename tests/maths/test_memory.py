import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

# Rows are overlapping windows of one random vector, so that many and long ones need no memory of their own.
# The longest comes first and the most last: what the allocator keeps of one must not hide the next.
SCRIPT = """
import re
from pathlib import Path
import torch
from fedunlearn.maths import conflicts, orthogonal_direction, project_off

torch.set_num_threads(1)

def status(field):
    return int(re.search(field + r":\\s+(\\d+) kB", Path("/proc/self/status").read_text()).group(1)) / 1000

def extra(function, rows, width, step=7):
    line = torch.randn(width + 7 * rows, generator=torch.Generator().manual_seed(0))
    forget, retain = line[:width].flip(0), line.as_strided((rows, width), (step, 1))
    before = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    result = function(forget, retain)
    return status("VmHWM") - before

extra(orthogonal_direction, 8, 5000)  # loads the numeric libraries
print(extra(orthogonal_direction, 9, 11_000_000))
print(extra(lambda forget, retain: conflicts(retain, forget), 20, 1_000_000))
print(extra(lambda forget, retain: project_off(forget, retain[0], always=True), 1, 10_000_000))
print(extra(orthogonal_direction, 1000, 6000))
print(extra(orthogonal_direction, 1000, 6000, step=0))
"""


# The lower bounds are half of what the results take: they tell a measurement from none, while a busy system
# takes pages back.
@pytest.fixture(scope="module")
def megabytes() -> list[float]:
    run = subprocess.run([sys.executable, "-c", SCRIPT], check=True, capture_output=True, text=True)
    return [float(line) for line in run.stdout.split()]


def test_orthogonal_direction_of_11_million_columns_needs_less_than_64_mb(megabytes: list[float]) -> None:
    assert 22 <= megabytes[0] <= 64


def test_orthogonal_direction_of_1000_rows_needs_less_than_64_mb(megabytes: list[float]) -> None:
    assert 4 <= megabytes[3] <= 64


def test_orthogonal_direction_of_1000_equal_rows_needs_no_more(megabytes: list[float]) -> None:
    assert megabytes[4] <= 64


def test_conflicts_makes_no_copy_of_the_matrix(megabytes: list[float]) -> None:
    assert megabytes[1] <= 16


def test_project_off_needs_little_beside_its_result(megabytes: list[float]) -> None:
    assert 20 <= megabytes[2] <= 56
