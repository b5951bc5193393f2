"""The pages about the folder of a ``Server``: who is out, what was compared with what, and its names."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest
import torch
from torch import nn

import fedunlearn as fu
from fedunlearn.core.seeds import generator
from fedunlearn.report import Collection, collect, write_report
from fedunlearn.report.html.comparison import comparison_page

pytest.importorskip("jinja2")
pytestmark = pytest.mark.filterwarnings("ignore:the retained clients are worse off than before")

EXAMPLES = {"site-1": range(10), "site-3": [2, 5]}


def held(number: int) -> fu.ClientData:
    random = generator("pages", number)
    x = torch.randn(100, 8, generator=random)
    y = (x[:, 0] > 0).long()
    return fu.ClientData((x[:60], y[:60]), {"test": (x[60:], y[60:])})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A client is forgotten and joins anew; then examples are forgotten, and the request is audited."""
    place = tmp_path_factory.mktemp("server") / "ours"
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    clients = {f"site-{number}": held(number) for number in range(4)}
    ours = fu.Server(model, clients, folder=place, training=fu.LocalTraining(batch_size=20), workers=1)
    ours.train(4, 0.3)
    ours.forget("site-2", "retrain", rounds=2, floor=None)
    ours.rejoin("site-2")
    ours.compare(examples=EXAMPLES, rows={"retrain": {"rounds": 3}, "kept": {"method": "finetune"}})
    ours.forget(examples=EXAMPLES, method="fast-retrain", rounds=3, floor=None)
    ours.audit()
    return place


def page(folder: Path, file: Path) -> str:
    text = write_report(collect([folder]), file).read_text()
    text = re.sub(r"(?s)<script.*?</script>", "", text)
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", text)).split())


@pytest.fixture(scope="module")
def whole(folder: Path) -> str:
    return page(folder, folder.parent / "whole.html")


@pytest.fixture(scope="module")
def audited(folder: Path) -> str:
    (place,) = folder.glob("3-forget-*")
    return page(place, folder.parent / "audited.html")


def test_the_page_says_who_is_out_and_who_has_joined_anew(whole):
    assert (
        "Forgotten, and left out of every later step: 10 examples of site-1, 2 examples of site-3." in whole
    )
    assert "Forgotten, and joined anew since: site-2." in whole


def test_steps_have_a_start_each_and_none_in_common(folder, whole, tmp_path):
    assert re.search("Distance start – .* ω⁰ \\(1-forget-site-2-retrain\\) – ", whole)
    assert "The steps follow one another; seed 0." in whole
    assert "All rows start at" not in whole
    assert "The result is ω⁰" not in whole
    assert "Distance to the start" in page(folder / "0-train", tmp_path / "page.html")
    (place,) = folder.glob("3-compare-*")
    assert "All rows start at ω⁰." in page(place, tmp_path / "page.html")


def test_steps_with_several_requests_are_not_ranked(whole):
    assert "finished, not ranked: they answer several requests" in whole
    assert "The rows are not ranked: see the first sentence." in whole
    assert "Without a finished retrain row" not in whole


def test_the_same_target_at_another_step_is_another_request(folder):
    (place,) = folder.glob("3-compare-*")
    (row, runs), *others = collect([place]).rows.items()
    later = [replace(run, config={**run.config, "start": "0" * 64}) for run in runs]
    assert comparison_page(Collection("", {row: runs, **dict(others)}, comparison=False))["differences"]
    assert not comparison_page(Collection("", {row: later, **dict(others)}, comparison=False))["differences"]


def test_a_training_is_not_compared_with_retraining(folder):
    grid = comparison_page(collect([folder / "0-train", *folder.glob("3-compare-*")]))["differences"]
    assert "minus 3-compare-" in grid.caption
    assert "0-train" not in [name for name, *_ in grid.lines]


def test_scores_of_different_clients_are_not_subtracted(folder):
    (place,) = folder.glob("3-compare-*")
    whole = collect([place])
    others = [
        replace(run, rows=[{key: row[key] for key in row if key != "r_acc site-0"} for row in run.rows])
        for run in whole.rows["kept"]
    ]
    before = comparison_page(whole)["differences"]
    after = comparison_page(replace(whole, rows={**whole.rows, "kept": others}))["differences"]
    assert before.caption == "At the end, minus retrain (% are points)"
    assert after.caption == (
        "At the end, minus retrain (% are points; R-Acc is left out where other clients were measured)"
    )
    for grid, hidden in ((before, set()), (after, {"R-Acc", "Worst"})):
        ((_, _, cells),) = (line for line in grid.lines if line[0] == "kept")
        shown = {
            heading.title for heading, cell in zip(grid.headings, cells, strict=True) if cell.text != "–"
        }
        assert {"R-Acc", "Worst", "Forget acc"} - shown == hidden


def test_a_server_is_reproduced_by_its_script_not_by_a_command(folder, whole, tmp_path):
    assert "No command repeats a step of a server" in whole
    assert "then run the command" not in whole
    assert 'class="command"' not in write_report(collect([folder]), tmp_path / "page.html").read_text()


def test_clients_are_counted_once_however_many_parts_they_have(audited):
    assert "4 clients trained the model" in audited


def test_an_audit_says_how_each_model_was_made(audited):
    models = re.search(r"Models of the audit (.*) What was measured", audited)
    assert models is not None
    told = re.findall(r"(run of [a-z-]+|training) (\d+) [0-9a-f]{64}", models[1])
    assert told == [
        ("run of fast-retrain", "3"),
        ("run of retrain", "4"),
        ("run of retrain", "4"),
        ("run of retrain", "2"),
    ]


def test_no_digest_fills_the_settings_in_which_rows_differ(whole):
    settings = re.search(r"Settings in which rows differ (.*) Is it forgotten", whole)
    assert settings is not None
    assert not re.search(r"[0-9a-f]{9}", settings[1])
    assert "data.clients" not in settings[1]


def test_training_a_new_model_is_not_called_post_training(audited):
    assert "3 rounds of retraining at learning rate" in audited
    assert "NC in retraining" in audited
    assert "post-trained" not in audited.partition("Glossary")[0]


def test_a_table_of_named_examples_has_a_row_for_each_part(folder):
    (place,) = folder.glob("3-compare-*")
    last = [row for row in fu.table(place) if row["run"] == "kept" and row["role"] == "target"][-2:]
    assert [row["client"].partition("#")[0] for row in last] == ["site-1", "site-3"]
    assert all({"loss_target", "forget_acc"} <= row.keys() for row in last)


def test_a_measure_whose_interval_holds_the_model_before_ranks_nothing(folder, tmp_path):
    (place,) = folder.glob("3-compare-*")
    text = page(place, tmp_path / "rows.html")
    assert re.search(r"Forget acc of ω⁰ was .* \(retraining: .*, 95 % interval .* to .*, n = 12\)", text)
    assert "so this measure ranks nothing here" in text
    assert "together" not in text.partition("Glossary")[0]
    assert "The request: forget 10 examples of site-1, 2 examples of site-3 (Target acc is left out" in text
    assert "Target acc" not in text.partition("Results")[2].partition("Glossary")[0]


def test_parts_repeat_no_measure_of_their_client(audited):
    harm = audited.partition("Who was harmed?")[2].partition("What can be claimed")[0]
    assert "site-1#" not in harm
    assert "(n = 40)" in harm
    assert "the unseen data is that of the client, so its accuracy counts once" in audited
    assert "The linear probe needs 30 forgotten examples: not shown for site-1#forget-" in audited


def test_an_exact_method_comes_first_and_a_verdict_says_what_it_needs(audited, whole):
    told = audited.partition("Is it forgotten? ")[2]
    assert told.startswith("This model never saw the data that was to be forgotten")
    assert "INCONCLUSIVE. A verdict needs 600 forgotten and 600 unseen examples, and there are" in told
    told = whole.partition("Is it forgotten? ")[2]
    assert told.startswith(
        "Never saw the data that was to be forgotten, because the method is exact: 3-forget-"
    )
    assert "not a pass (a verdict needs 600 forgotten and 600 unseen examples)" in told


def test_the_folder_of_forget_says_who_is_out(folder, tmp_path):
    shutil.copytree(folder / "0-train", tmp_path / "0-forget")
    answered = [{"targets": [name], "model_sha256": "0" * 64} for name in ("site-1", "site-3")]
    (tmp_path / "answered.json").write_text(json.dumps(answered))
    text = page(tmp_path, tmp_path / "page.html")
    assert "Forgotten, and left out of every later step: site-1, site-3." in text


def test_a_damaged_run_beside_an_audited_one_does_not_hide_the_audit(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "copy")
    (tmp_path / "copy/0-train/outcome.json").write_text("{")
    (place,) = (tmp_path / "copy").glob("3-forget-*")
    assert "run of fast-retrain 3" in page(place, tmp_path / "page.html")
