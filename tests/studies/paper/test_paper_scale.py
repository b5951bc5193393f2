"""The comparison at the paper's scale: its file, its stored results and its page."""

from __future__ import annotations

import runpy
from pathlib import Path

from support.codes import refused
from support.comparisons import perform

from fedunlearn.experiment import audit_run
from fedunlearn.experiment.comparison import read_comparison
from fedunlearn.runs import read_outcome

ROOT = Path(__file__).parents[3]
SCRIPT = runpy.run_path(str(ROOT / "scripts/store_paper_scale.py"))
TINY = [
    "data.dataset=fashion-demo",
    "data.fraction=0.2",
    "data.clients=4",
    "training.batch_size=20",
    "pretraining.rounds=4",
    "unlearning.rounds=1",
    "recovery.rounds=1",
]


def test_the_file_is_of_the_size_that_the_paper_states():
    comparison = read_comparison(SCRIPT["EXPERIMENT"])
    assert comparison.seeds == (1, 2)
    for rows in comparison.columns.values():
        for experiment in rows.values():
            plan = experiment.pretraining, experiment.unlearning, experiment.recovery
            assert [stage.rounds for stage in plan] == [2000, 100, 100]
            assert experiment.data.fraction == 1
            assert experiment.data.audit == 0


def test_the_committed_page_is_what_the_stored_results_say():
    page = SCRIPT["PAGE"].read_text(encoding="utf-8")
    assert SCRIPT["renewed"](page, SCRIPT["stored"]()) == page, (
        "docs/results.md is out of date: run python scripts/store_paper_scale.py"
    )


def test_audited_runs_are_added_to_those_that_are_stored(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDUNLEARN_CACHE", str(tmp_path / "cache"))
    path, runs = tmp_path / "paper-scale.json", tmp_path / "runs"
    with refused("invalid", says="has no audited runs"):
        SCRIPT["store"](runs, path)
    perform(read_comparison(SCRIPT["EXPERIMENT"], TINY, only=["fmnist-pat-50"], seeds=1), runs)
    folder = runs / "fmnist-pat-50/seed-1"
    for row in ("fedosd", "fast-retrain"):
        audit_run(folder / row, folder / "fast-retrain", again=folder / "fast-retrain-2", workers=1)
    earlier = '[{"column": "fmnist-pat-20", "seed": 2, "row": "fedosd", "kept": true}]'
    path.write_text(earlier)
    assert SCRIPT["store"](runs, path) == "paper-scale.json: 2 runs added or replaced, 3 in all"
    kept, ours, new = SCRIPT["stored"](path)
    assert kept["kept"]
    assert ours["model_sha256"] == read_outcome(folder / "fedosd")["model_sha256"]
    assert ours["omega0_sha256"] == new["omega0_sha256"]
    assert ours["stages"].keys() == {"0", "1", "2"}
    assert new["stages"].keys() == {"0", "2"}
    table = SCRIPT["renewed"]("<!-- begin audited -->\nold\n<!-- end -->", [ours, new])
    for name in ("fmnist-pat-50, seed 1 | ω⁰", "`fedosd`¹", "`fedosd`²", "`fast-retrain` |"):
        assert name in table
    assert "(.021) | " in table  # the paper's ASR
    assert "old" not in table
