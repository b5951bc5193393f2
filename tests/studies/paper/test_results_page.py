"""The results page: generated parts are current, and the text around them speaks of everything that fails."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

from fedunlearn.core import Status
from fedunlearn.studies.paper.conditions import Verdict
from fedunlearn.studies.paper.results import Result, Results, load, save
from fedunlearn.studies.paper.results_page import MARKED, PARTS, renewed, stored, tables
from fedunlearn.studies.paper.verdicts import judge

DOCS = Path(__file__).parents[3] / "docs"
PAGE = DOCS / "results.md"


def test_the_committed_page_is_what_the_stored_results_say():
    page = PAGE.read_text(encoding="utf-8")
    assert renewed(page, stored(DOCS / "results")) == page, (
        "docs/results.md is out of date: run python -m fedunlearn.studies.paper.results_page docs/results.md"
    )
    for name, text in tables(stored(DOCS / "results")).items():
        assert (DOCS / "results" / name).read_text(encoding="utf-8") == text


def test_every_stored_run_is_in_the_table():
    for found in stored(DOCS / "results").values():
        lines = tables({found.scale: found})["paper-tables.csv"].splitlines()
        shown = {tuple(line.split(",")[1:3]) for line in lines}
        assert {(run.column, run.row) for run in found.runs} <= shown


def test_every_claim_that_fails_is_spoken_of():
    told = PAGE.read_text(encoding="utf-8").partition("## What does not reproduce")[2].partition("\n## ")[0]
    for found in stored(DOCS / "results").values():
        failing = {one.claim.id for one in judge(found) if one.verdict is Verdict.FAILS}
        assert failing
        assert {name for name in failing if f"`{name}`" not in told} == set()


def test_every_marker_of_the_page_belongs_to_a_generator():
    evidence, scale = (
        runpy.run_path(str(DOCS.parent / "scripts" / f"store_{name}.py"))
        for name in ("evidence", "paper_scale")
    )
    used = {found["part"] for found in MARKED.finditer(PAGE.read_text(encoding="utf-8"))}
    assert used == {*PARTS, *evidence["PARTS"], scale["PART"]}


@pytest.fixture
def one_run() -> Results:
    """One run of FedOSD at laptop scale."""
    scores = {"asr": 0.9, "r_acc": 0.8, "r_acc_std": 0.1, "r_acc_worst": 0.7, "r_acc_best": 0.9}
    run = Result(
        column="fmnist-pat-50",
        row="fedosd",
        seed=1,
        rate=0.025,
        status=Status.DONE,
        model_sha256="0" * 64,
        before={**scores, "distance": 0.0},
        unlearned={**scores, "asr": 0.123, "distance": 1.0},
        recovered={**scores, "asr": 0.0, "distance": 1.0},
        cost={"seconds": 1.0, "seconds_server": 0.1},
        course={"rounds": [0, 50, 100], "asr": [0.9, 0.123, 0], "r_acc": [0.8] * 3, "distance": [0, 1, 1]},
    )
    setting = {
        "model": "mlp",
        "data": {"dataset": "fmnist", "partition": "pat-50", "clients": 10, "fraction": 0.1},
        "training": {"epochs": 1, "batch_size": 50},
        "pretraining": {"rounds": 300},
        "unlearning": 50,
        "recovery": 50,
    }
    made_with = {
        "cores": "2",
        "cpu_capability": "AVX2",
        "system": "Linux x86_64",
        "torch": "2.0",
        "python": "3.11",
        "fedunlearn": "0.1.0",
    }
    return Results("laptop", {"fmnist-pat-50": setting}, {"made": made_with}, {}, [run])


def part(words: str, results: Results) -> str:
    """What is written for a marker."""
    page = renewed(
        f"before\n<!-- begin {words} -->\noutdated\n<!-- end -->\nafter\n", {results.scale: results}
    )
    before, made = page.split(" -->\n\n", 1)
    assert before == f"before\n<!-- begin {words}"
    assert made.endswith("\n\n<!-- end -->\nafter\n")
    made = made.removesuffix("\n\n<!-- end -->\nafter\n")
    assert "outdated" not in made
    return made


def test_tables_and_claims_come_from_stored_results(one_run):
    assert "| fedosd¹ | .123 / .800 (.000 / .806) |" in part("overview laptop fmnist", one_run)
    assert "1 runs" in part("agreement", one_run)
    made = tables({"laptop": one_run})
    assert "laptop,fmnist-pat-50,fedosd,1,asr,0.025,1,0,0.12300,,0.0,0.12300\n" in made["paper-tables.csv"]
    assert "laptop,fedosd-forgets,fmnist-pat-50,fails,1,1,fedosd ASR¹ .123," in made["paper-claims.csv"]


def test_a_scale_without_results_says_so(one_run):
    assert part("overview paper fmnist", one_run) == "Nothing has been run at this scale yet."


def test_one_command_renews_the_page(tmp_path, monkeypatch):
    (tmp_path / "results").mkdir()
    save(load(DOCS / "results/paper.json"), tmp_path / "results/paper.json")
    page = tmp_path / "results.md"
    page.write_text("# Mine\n\n<!-- begin overview paper fmnist -->\n<!-- end -->\n")
    monkeypatch.setattr(sys, "argv", ["results_page", str(page)])
    monkeypatch.delitem(sys.modules, "fedunlearn.studies.paper.results_page")
    runpy.run_module("fedunlearn.studies.paper.results_page", run_name="__main__")
    assert "| fedosd² |" in page.read_text()
    assert (tmp_path / "figures/results.svg").read_text().startswith("<?xml")
    assert "\npaper,mnist-pat-50,fedosd,2,asr," in (tmp_path / "results/paper-tables.csv").read_text()
    assert [path.name for path in (tmp_path / "figures").iterdir()] == ["results.svg"]
