"""What one looks at: forgetting without sets for it, a server's folder as a page, and tables for pandas."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch
from support.codes import refused, says
from torch import nn
from typer.testing import CliRunner

import fedunlearn as fu
from fedunlearn.cli.commands import app
from fedunlearn.core.seeds import generator

pytestmark = pytest.mark.filterwarnings("ignore:the retained clients are worse off than before")

ROWS = {
    "kept": {"method": "finetune"},
    "fresh": {"method": "fast-retrain", "rounds": 20},
    "retrain": {"rounds": 40},
}
SCHEDULE = fu.Schedule(2, 0.1, 2, 0.1)
WILD = fu.Schedule(400, 1e30, 1, 0.1)


def held(number: int) -> fu.ClientData:
    """A rule that all clients share, and labels against it, which only a model that saw them can know."""
    random = generator("looking", number)
    x = torch.randn(160, 30, generator=random)
    y = (x[:, 0] > 0).long()
    y[:60] = torch.where(torch.rand(60, generator=random) < 0.3, 1 - y[:60], y[:60])
    return fu.ClientData((x[:60], y[:60]), {"test": (x[60:], y[60:])})


def server(folder: Path, clients: Any = None, **options: Any) -> fu.Server:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(30, 64), nn.ReLU(), nn.Linear(64, 2))
    clients = clients or {f"site-{number}": held(number) for number in range(4)}
    return fu.Server(model, clients, folder=folder, training=fu.LocalTraining(batch_size=20), **options)


@pytest.fixture(scope="module")
def year(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, fu.Outcome]]:
    """A training, a comparison, a request that fails, and one that is answered."""
    folder = tmp_path_factory.mktemp("year") / "ours"
    ours = server(folder, workers=1)
    ours.train(40, 0.3)
    outcomes = ours.compare("site-1", ROWS, SCHEDULE)
    with refused("diverged", says=r"site-1 sent .* not finite") as failed:
        ours.forget("site-1", "ascent", WILD)
    assert says(failed.value.outcome.warnings[0], "left out of 1 of 1 rounds")
    ours.forget("site-1", "retrain", rounds=40)
    return folder, outcomes


def test_a_comparison_without_sets_for_it_shows_who_remembers(year):
    before = year[1]["kept"].metrics[0]
    ends = {row: outcome.metrics[-1] for row, outcome in year[1].items()}
    assert before["forget_auc"] > ends["retrain"]["forget_auc"] + 0.1
    assert ends["kept"]["forget_auc"] > ends["retrain"]["forget_auc"] + 0.05
    assert abs(ends["fresh"]["forget_auc"] - ends["retrain"]["forget_auc"]) < 0.05
    assert before["loss_target"] < ends["kept"]["loss_target"] < ends["retrain"]["loss_target"]
    assert before["forget_acc"] > ends["retrain"]["forget_acc"]


def test_the_auc_of_a_target_is_that_of_its_losses(year, tmp_path):
    ours = server(tmp_path, workers=1)
    ours.train(40, 0.3)
    with torch.no_grad():
        train, test = held(1).train, held(1).evaluations["test"]
        losses = [nn.functional.cross_entropy(ours.model(x), y, reduction="none") for x, y in (train, test)]
    known, unseen = losses
    share = (known[:, None] < unseen).double().mean() + (known[:, None] == unseen).double().mean() / 2
    assert year[1]["kept"].metrics[0]["forget_auc"] == pytest.approx(float(share), abs=1e-6)
    assert year[1]["kept"].metrics[0]["loss_target"] == pytest.approx(float(known.mean()), abs=1e-6)


@pytest.mark.parametrize("name", ["forget", "backdoor"])
def test_a_set_of_ones_own_is_what_is_measured(tmp_path, name):
    clients = {f"site-{number}": held(number) for number in range(3)}
    x, y = held(0).train
    clients["site-0"] = fu.ClientData((x, y), {**held(0).evaluations, name: (x[:5], 1 - y[:5])})
    ours = server(tmp_path, clients, workers=1)
    row = ours.compare("site-0", {"retrain": {"rounds": 1}})["retrain"].metrics[0]
    assert "forget_auc" not in row
    assert ("forget_acc" in row) == (name == "forget")


def test_the_same_is_measured_in_worker_processes(tmp_path, year):
    ours = server(tmp_path, workers=2)
    ours.train(40, 0.3)
    row = ours.compare("site-1", {"kept": ROWS["kept"]}, SCHEDULE)["kept"].metrics[-1]
    keys = ("forget_auc", "forget_acc", "loss_target", "target_acc")
    assert [row[key] for key in keys] == [year[1]["kept"].metrics[-1][key] for key in keys]


def reported(folder: Path, file: Path) -> str:
    ended = CliRunner().invoke(app, ["report", str(folder), "--out", str(file)])
    assert ended.exit_code == 0, ended.output
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", file.read_text()))


def test_the_folder_of_a_server_is_one_page_and_a_failure_is_labelled(year, tmp_path):
    text = reported(year[0], tmp_path / "all.html")
    for row in ("0-train", "1-compare-site-1/kept", "1-forget-site-1-ascent", "1-forget-site-1-retrain"):
        assert row in text
    assert "1-forget-site-1-ascent: failed (diverged), model unchanged: " in text


def test_the_first_sentence_ranks_by_forgetting_and_utility_together(year, tmp_path):
    text = reported(year[0] / "1-compare-site-1", tmp_path / "rows.html")
    said = re.search(r"Nearest to retrain in forgetting and utility together: (\S+) .*?, then (\S+) ", text)
    assert said is not None
    assert said.groups() == ("fresh", "kept")
    assert "The worse of two distances decides" in text
    assert "At the end, minus retrain" in text


def test_requests_of_different_clients_are_not_ranked_against_each_other(tmp_path):
    ours = server(tmp_path / "ours", workers=1)
    for target in ("site-0", "site-1"):
        ours.compare(target, {"retrain": {"rounds": 2}, "finetune": {}}, SCHEDULE)
    assert "together" not in reported(tmp_path / "ours", tmp_path / "page.html")


def test_step_ten_follows_step_nine(tmp_path):
    for number in (10, 9, 0):
        step = tmp_path / "ours" / f"{number}-train"
        step.mkdir(parents=True)
        (step / "experiment.json").write_text(json.dumps({"kind": "server", "name": "ours"}))
    assert list(dict.fromkeys(row["run"] for row in fu.table(tmp_path / "ours"))) == []
    from fedunlearn.report import collect

    assert list(collect([tmp_path / "ours"]).rows) == ["0-train", "9-train", "10-train"]


def of(rows: list[dict[str, Any]], **wanted: Any) -> list[dict[str, Any]]:
    return [row for row in rows if all(row[key] == value for key, value in wanted.items())]


@pytest.mark.parametrize("given", [lambda year: year[1], lambda year: year[0] / "1-compare-site-1"])
def test_a_table_has_one_row_a_round_and_client(year, given: Callable[[Any], Any]):
    rows, outcomes = fu.table(given(year)), year[1]
    assert len(rows) == 4 * sum(len(outcome.metrics) for outcome in outcomes.values())
    for run, outcome in outcomes.items():
        for metrics in outcome.metrics:
            here = of(rows, run=run, elapsed=metrics["elapsed"])
            assert [row["client"] for row in here] == ["site-1", "site-0", "site-2", "site-3"]
            (target, *retained) = here
            assert [row["role"] for row in here] == ["target", *["retained"] * 3]
            assert "r_acc" not in target
            assert fmean(row["r_acc"] for row in retained) == pytest.approx(metrics["r_acc"])
            for key in ("forget_auc", "loss_target", "target_acc"):
                assert target[key] == metrics[key]
                assert not any(key in row for row in retained)
            assert {row["distance"] for row in here} == {metrics["distance"]}


def test_a_table_of_a_servers_folder_names_run_method_and_seed(year):
    rows = fu.table(str(year[0]))
    assert {row["role"] for row in of(rows, run="0-train")} == {"retained"}
    assert {row["method"] for row in of(rows, run="1-compare-site-1/fresh")} == {"fast-retrain"}
    assert {row["seed"] for row in rows} == {0}


def test_several_targets_each_have_their_own_row(tmp_path):
    def outcome() -> fu.Outcome:
        ours = server(tmp_path, workers=1)
        return ours.compare(["site-0", "site-2"], {"retrain": {"rounds": 2}})["retrain"]

    first = outcome()
    for row in of(fu.table(first), elapsed=2, role="target"):
        assert row["loss_target"] == first.metrics[-1][f"loss_target {row['client']}"]
    assert fu.table(first) == fu.table(outcome())  # read from the folder


def test_a_table_is_what_pandas_takes(year):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(fu.table(year[1]))
    last = frame[frame.elapsed == frame.groupby("run").elapsed.transform("max")]
    assert last.groupby("run").forget_auc.mean()["kept"] == year[1]["kept"].metrics[-1]["forget_auc"]
