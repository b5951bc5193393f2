"""The demo keeps its promise with the settings it ships with."""

from __future__ import annotations

import pytest

from fedunlearn.report import read_run


def check_promise(folder):
    start, unlearned, recovered = read_run(folder).stages.values()
    assert start["asr"] >= 0.70
    assert unlearned["asr"] <= 0.02
    assert recovered["asr"] <= 0.08
    assert recovered["r_acc"] >= start["r_acc"] - 0.01


def test_demo(here, tmp_path):
    (tmp_path / "runs/demo").mkdir(parents=True)
    (tmp_path / "runs/demo/mine.txt").write_text("not a run")
    result = here("demo")
    assert result.returncode == 0, result.stderr
    folder = tmp_path / "runs/demo-2"
    check_promise(folder)
    for words in ("ω⁰", "The backdoor of client-", "runs/demo-2/curves.png"):
        assert words in result.stdout
    assert [path.name for path in (tmp_path / "runs/demo").iterdir()] == ["mine.txt"]


@pytest.mark.paper
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_demo_of_other_seeds(here, tmp_path, seed):
    result = here("demo", "--seed", seed, "--out", "demo")
    assert result.returncode == 0, result.stderr
    check_promise(tmp_path / "demo")
