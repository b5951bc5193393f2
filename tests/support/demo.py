"""What the demo promises with the settings it ships with."""

from __future__ import annotations

from pathlib import Path

from fedunlearn.report import read_run


def check_promise(folder: Path) -> None:
    start, unlearned, recovered = read_run(folder).stages.values()
    assert start["asr"] >= 0.70
    assert unlearned["asr"] <= 0.02
    assert recovered["asr"] <= 0.08
    assert recovered["r_acc"] >= start["r_acc"] - 0.01
