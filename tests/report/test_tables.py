from __future__ import annotations

import io

import pytest
from rich.console import Console

from fedunlearn.core import FedUnlearnError
from fedunlearn.report import markdown, page, shown, stages, table, verdict
from fedunlearn.report.runs import read_run


def test_a_stage_is_its_last_evaluated_round(folder):
    rows = stages(folder)
    assert list(rows) == ["ω⁰", "unlearned", "post-trained"]
    assert [row["elapsed"] for row in rows.values()] == [0, 3, 5]
    assert [row["asr"] for row in rows.values()] == [0.9, 0.0, 0.02]


def test_a_line_cut_off_by_a_kill_does_not_count(folder):
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"stage": "post-training", "r_acc": 0.1')
    assert stages(folder)["post-trained"]["r_acc"] == 0.85


def test_the_terminal_table_fits_eighty_columns(folder):
    console = Console(file=io.StringIO(), width=80)
    console.print(shown(table(folder)))
    header, first, unlearned, last = console.file.getvalue().splitlines()
    for name in ("ASR", "R-Acc", "std", "worst", "best", "Target clean", "Distance", "NC"):
        assert name in header
    assert first.split() == ["ω⁰", "0.900", "0.800", "0.050", "0.700", "0.900", "0.500", "0.000", "-"]
    assert unlearned.split()[:3] == ["unlearned", "0.000", "0.600"]
    assert last.split()[-2:] == ["0.800", "2.50"]


def test_markdown_has_the_same_cells(folder):
    header, rule, *lines = markdown(table(folder)).splitlines()
    assert header.count("|") == rule.count("|") == lines[0].count("|")
    assert lines[2].startswith("| post-trained | 0.020 | 0.850 |")


def test_the_verdict_is_one_plain_sentence(folder):
    assert verdict(folder) == (
        "The backdoor works on 2.0% of the forgotten data (before: 90.0%); "
        "the retained clients' accuracy went from 80.0% to 85.0%, that of the worst from 70.0% to 75.0%."
    )


def test_without_a_backdoor_the_forgotten_data_itself_is_judged(folder):
    path = folder / "metrics.jsonl"
    path.write_text(path.read_text().replace('"asr"', '"forget_acc"'))
    assert verdict(folder).startswith("The model is right on 2.0% of the forgotten data")
    assert "Forget acc" in markdown(table(folder))
    assert "ASR" not in markdown(table(folder))


def test_the_verdict_of_a_run_that_never_left_its_start(folder):
    path = folder / "metrics.jsonl"
    path.write_text(path.read_text().splitlines(keepends=True)[0])
    assert "from 80.0% to 80.0%" in verdict(folder)


def test_the_page_of_a_run_whose_request_was_lost_says_less(folder):
    (folder / "experiment.json").write_text("{}")
    assert "- Asked: unknown;" in page(folder).read_text()


def test_the_page_says_what_was_asked_and_how_it_ended(folder):
    text = page(folder).read_text()
    for words in ("# made", "seed `3`", "partition `pat-20`", "`abc123`", "torch 2.13.0", verdict(folder)):
        assert words in text


def test_a_run_that_ended_and_lost_its_metrics_is_no_new_one(folder):
    (folder / "metrics.jsonl").unlink()
    with pytest.raises(FedUnlearnError, match=r"holds no metrics\.jsonl"):
        read_run(folder)


def test_a_folder_without_metrics_is_refused(tmp_path):
    with pytest.raises(FedUnlearnError, match="not a run folder"):
        stages(tmp_path)
