"""The command ``demo``; that it keeps its promise is tested with the wheel, in its whole length."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.demo import check_promise

from fedunlearn import experiment
from fedunlearn.report import read_run
from fedunlearn.runs import read_metrics

SHORT = ["pretraining.rounds=2", "unlearning.rounds=1", "recovery.rounds=1"]


def test_demo(here, tmp_path, monkeypatch):
    whole = experiment.read
    monkeypatch.setattr(experiment, "read", lambda path, overrides: whole(path, [*overrides, *SHORT]))
    (tmp_path / "runs/demo").mkdir(parents=True)
    (tmp_path / "runs/demo/mine.txt").write_text("not a run")
    result = here("demo")
    assert result.returncode == 0, result.stderr
    assert [*read_run(tmp_path / "runs/demo-2").stages] == ["ω⁰", "unlearned", "post-trained"]
    for words in ("ω⁰", "The backdoor of client-", "runs/demo-2/curves.svg"):
        assert words in result.stdout
    assert [path.name for path in (tmp_path / "runs/demo").iterdir()] == ["mine.txt"]


@pytest.mark.paper
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_demo_keeps_its_promise(here, tmp_path, seed):
    result = here("demo", "--seed", seed, "--out", "demo", FEDUNLEARN_CACHE=str(tmp_path / "cache"))
    assert result.returncode == 0, result.stderr
    check_promise(tmp_path / "demo")
    (training,) = (tmp_path / "cache/pretraining").glob("*/metrics.jsonl")
    *_, last = accuracies = [row["r_acc"] for row in read_metrics(training.parent) if "r_acc" in row]
    assert last >= max(accuracies[-6:]) - 0.01, "ω⁰ stands in a dip of the last 25 rounds"
    page = (
        (Path(__file__).parents[2] / "docs/results.md")
        .read_text(encoding="utf-8")
        .partition("## The demo")[2]
    )
    (row,) = re.findall(rf"^\| {seed} \| (.*) \|$", page, re.MULTILINE)
    stages = read_run(tmp_path / "demo").stages.values()
    found = [value for stage in stages for value in (stage["asr"], stage["r_acc"])]
    # Another processor may round differently, and training carries that on.
    assert found == pytest.approx([float(number) for number in re.findall(r"[.\d]+", row)], abs=0.03)
