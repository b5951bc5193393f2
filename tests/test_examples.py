from __future__ import annotations

import re
from pathlib import Path

from children import script

EXAMPLES = Path(__file__).parent.parent / "examples"


def accuracies(name: str, folder: Path) -> list[tuple[float, float]]:
    """What an example prints: accuracy of the forgotten client and of the retained ones, line by line."""
    printed = script(EXAMPLES / name, folder)
    return [
        (float(a), float(b))
        for a, b in re.findall(r"forgotten client ([\d.]+) +retained clients ([\d.]+)", printed)
    ]


def test_fedosd_in_a_plain_training_loop(tmp_path):
    trained, unlearned, recovered = accuracies("own_loop.py", tmp_path)
    assert trained[0] > 0.9
    assert unlearned[0] < 0.1
    assert recovered[0] < 0.1
    assert recovered[1] >= trained[1] - 0.02


def test_own_model_and_tensors(tmp_path):
    trained, unlearned, recovered = accuracies("own_model.py", tmp_path)
    assert trained[0] > 0.6
    assert unlearned[0] < 0.1
    assert recovered[0] < 0.15
    assert recovered[1] >= trained[1] - 0.03


def test_own_model_takes_under_thirty_lines():
    lines = [line for line in (EXAMPLES / "own_model.py").read_text().splitlines() if line.strip()]
    assert len(lines) < 30
