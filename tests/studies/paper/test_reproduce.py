"""A table of the paper, run small, from one command to the files it writes."""

from __future__ import annotations

import runpy
from dataclasses import replace
from pathlib import Path

import pytest
from support.codes import refused, says
from typer.testing import CliRunner

from fedunlearn.cli.commands import app
from fedunlearn.core import Status
from fedunlearn.experiment.comparison import missing, read_comparison
from fedunlearn.report import folders
from fedunlearn.runs import read_metrics
from fedunlearn.studies import paper as reproduction
from fedunlearn.studies.paper import reproduce as reproduce_module
from fedunlearn.studies.paper.paper import printed
from fedunlearn.studies.paper.results import Result, Results, load, same_settings, save, set_up
from fedunlearn.studies.paper.results_page import stored

ROOT = Path(__file__).parents[3]
PROTOCOL = """
name = "paper"
model = "lenet5"
[data]
dataset = "fashion-demo"
clients = 4
fraction = 0.05
[training]
batch_size = 20
[pretraining]
rounds = 2
[unlearning]
rounds = 2
[recovery]
rounds = 1
[grid]
rates = [0.001, 0.02]
share = 0.5
[scale.laptop.data]
fraction = 0.04
[columns.a]
data.partition = "pat-50"
[columns.b]
data.partition = "iid"
[methods.retrain]
[methods.fedosd]
[methods.finetune]
"""
TABLE = """# Table 1: small.
extends = "protocol.toml"
paper = "table1"
[show]
columns = ["a"]
rows = ["retrain", "fedosd"]
"""


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A protocol on embedded data in place of the paper's."""
    folder = tmp_path / "experiments"
    folder.mkdir()
    (folder / "protocol.toml").write_text(PROTOCOL)
    (folder / "table1.toml").write_text(TABLE)
    (folder / "other.toml").write_text(
        TABLE.replace("Table 1: small.", "Other.").replace('"fedosd"', '"finetune"')
    )
    monkeypatch.setattr(reproduce_module, "EXPERIMENTS", folder)
    monkeypatch.setenv("FEDUNLEARN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)
    return folder


def reproduce(*arguments: str) -> str:
    ended = CliRunner().invoke(app, ["reproduce", *arguments, "--workers", "1"])
    if ended.exception is not None:
        raise ended.exception
    return ended.output


def test_every_table_and_figure_of_the_paper_has_a_file():
    assert {of.table for of in printed()} - {"ablation-m6"} <= set(reproduction.titles())
    assert {"radar", "curves"} <= set(reproduction.titles())
    assert all(title.endswith(".") for title in reproduction.titles().values())


@pytest.mark.usefixtures("files")
def test_one_command_runs_what_is_missing_and_ends_with_the_table(tmp_path):
    first = reproduce("table1", "--seeds", "2")
    # Two trials for the one method whose rate matters, two methods, two seeds.
    assert "(6 of 6)" in first
    assert "ω⁰" in first
    assert "fedosd²" in first
    folder = Path("runs/reproduce-laptop")
    assert {path.name for path in folder.iterdir()} >= {
        "table1.md",
        "table1.csv",
        "table1.tex",
        "results.json",
    }
    found = load(folder / "results.json")
    assert {(run.row, run.seed) for run in found.runs} == {
        (r, s) for r in ("retrain", "fedosd") for s in (1, 2)
    }
    assert found.settings["a"]["data"]["fraction"] == 0.04
    best = max(found.trials["a"]["fedosd"].items(), key=lambda item: item[1])[0]
    assert {run.rate for run in found.of("a", "fedosd")} == {float(best)}
    again = reproduce("table1", "--seeds", "2")
    assert " of 6)" not in again
    assert "fedosd²" in again


@pytest.mark.usefixtures("files")
def test_a_table_reads_the_metrics_of_each_run_once(monkeypatch):
    reproduce("table1", "--seeds", "2")
    read = []
    monkeypatch.setattr(folders, "read_metrics", lambda folder: read.append(folder) or read_metrics(folder))
    reproduce("table1", "--seeds", "2")
    finished = [folder for folder in read if folder.parent.name.startswith("seed-")]
    assert len(finished) == len(set(finished)) == 4


@pytest.mark.usefixtures("files")
def test_tables_of_one_scale_share_their_runs():
    reproduce("table1", "--seeds", "1")
    other = reproduction.plan("other", scale="laptop", only=[], seeds=1)
    # Retrain is there already; fine-tuning and its two trials are not.
    assert missing(other, Path("runs/reproduce-laptop")) == 3


@pytest.mark.usefixtures("files")
def test_some_columns_leave_the_others_in_the_table(files):
    wide = TABLE.replace('["a"]', '["a", "b"]').replace('"retrain", ', "")
    (files / "table1.toml").write_text(wide)
    shown = [reproduce("table1"), reproduce("table1", "--only", "b")]
    assert "\na  fashion-demo" in shown[0]
    assert "\na  fashion-demo" not in shown[1]
    rows = Path("runs/reproduce-laptop/table1.csv").read_text().splitlines()[1:]
    assert {tuple(row.split(",")[:2]) for row in rows} == {("laptop", "a"), ("laptop", "b")}
    assert "Scale laptop: 4 \\% of the examples" in Path("runs/reproduce-laptop/table1.tex").read_text()


@pytest.mark.usefixtures("files")
def test_a_column_that_cannot_be_drawn_costs_no_other_figure(files):
    wide = TABLE.replace('["a"]', '["a", "b"]').replace("[show]", '[show]\nfigures = ["tradeoff", "curves"]')
    (files / "table1.toml").write_text(wide)
    (files / "other.toml").write_text(TABLE.replace('"retrain", "fedosd"', '"finetune"'))
    reproduce("other")  # column a, and none of the rows of the table
    shown = reproduce("table1", "--only", "b")
    drawn = {path.name for path in Path("runs/reproduce-laptop/figures").iterdir()}
    assert {"table1-tradeoff.svg", "table1-curves-b.pdf"} <= drawn
    assert "no figure" not in shown
    failing = PROTOCOL.replace("[0.001, 0.02]", "[1e30]")
    (files / "protocol.toml").write_text(failing)
    (files / "table1.toml").write_text(wide.replace('"retrain", ', ""))
    reproduce("table1", "--out", "failed")
    assert not Path("failed/figures").exists()
    assert Path("failed/table1.md").exists()


@pytest.mark.usefixtures("files")
def test_a_figure_that_cannot_be_drawn_says_why(files):
    (files / "table1.toml").write_text(TABLE.replace("[show]", '[show]\nfigures = ["clients"]'))
    wanted = reproduction.plan("table1", scale="laptop", only=[], seeds=1)
    scores = {"r_acc": 0.5, "distance": 1.0}  # without those of each client
    old = Result("a", "fedosd", 1, 0.1, Status.DONE, "", scores, scores, scores, {}, {})
    paths, problems = reproduction.draw(Path("x"), "table1", wanted, Results("laptop", {}, {}, {}, [old]))
    assert paths == []
    assert [problem.partition(":")[0] for problem in problems] == ["clients"]


@pytest.mark.usefixtures("files")
def test_a_figure_that_cannot_be_written_ends_the_command(files):
    (files / "table1.toml").write_text(TABLE.replace("[show]", '[show]\nfigures = ["tradeoff"]'))
    Path("runs/reproduce-laptop").mkdir(parents=True)
    Path("runs/reproduce-laptop/figures").write_text("a file")
    with refused("file", says=r"cannot write .*figures"):
        reproduce("table1")


@pytest.mark.usefixtures("files")
def test_a_folder_of_another_scale_is_refused(files):
    reproduce("table1", "--out", "mixed")
    (files / "protocol.toml").write_text(PROTOCOL + "[scale.paper]\n")
    (files / "table1.toml").write_text(TABLE.replace('["a"]', '["b"]'))
    with refused("occupied", says=r"mixed/a/seed-1/.* does not match scale 'paper' .*--out"):
        reproduce("table1", "--scale", "paper", "--out", "mixed")


@pytest.mark.usefixtures("files")
def test_a_row_that_was_run_by_other_rules_is_refused(files):
    reproduce("table1", "--out", "mixed")
    (files / "protocol.toml").write_text(
        PROTOCOL.replace("[methods.fedosd]", '[methods.fedosd]\noptions.anchor = "never"')
    )
    with refused(
        "occupied", says=r"mixed/a/seed-1/fedosd does not match scale 'laptop' of the current protocol"
    ):
        reproduce("table1", "--only", "retrain", "--out", "mixed")


@pytest.mark.usefixtures("files")
def test_what_fails_at_every_rate_is_shown_to_fail(files):
    (files / "protocol.toml").write_text(PROTOCOL.replace("[0.001, 0.02]", "[1e35, 1e30]"))
    shown = reproduce("table1")
    assert "a/seed-1/fedosd: diverged" in shown
    assert says(shown, "lower the learning rate (now 1e+30)")
    assert "† Failed runs, counted with their last numbers: fedosd in a (1 of 1)." in shown
    assert "retrain" in shown


@pytest.mark.usefixtures("files")
def test_without_a_name_they_are_listed():
    listed = reproduce()
    assert "Table 1: small." in listed
    assert "protocol" not in listed


@pytest.mark.usefixtures("files")
def test_pictures_of_triggers_need_data_and_no_runs(files, tmp_path, monkeypatch):
    text = TABLE.replace("[show]", '[show]\nfigures = ["triggers"]')
    (files / "pictures.toml").write_text(text)
    shown = reproduce("pictures")
    assert shown.splitlines() == [f"runs/reproduce-laptop/figures/pictures.{kind}" for kind in ("svg", "pdf")]
    (files / "protocol.toml").write_text(PROTOCOL.replace("fashion-demo", "cifar10"))
    monkeypatch.setenv("FEDUNLEARN_DATA", str(tmp_path))
    with refused("missing", says="'cifar10'"):
        reproduce("pictures")


@pytest.mark.usefixtures("files")
def test_unknown_names_get_a_suggestion():
    with refused("unknown", says="did you mean 'table1'"):
        reproduce("tabel1")
    with refused("unknown", says="has no scale 'labtop'; did you mean 'laptop'"):
        reproduce("table1", "--scale", "labtop")


@pytest.mark.parametrize(("scale", "found"), stored(ROOT / "docs/results").items())
def test_stored_results_are_what_the_protocol_says_today(scale, found):
    columns = read_comparison(reproduce_module.EXPERIMENTS / "protocol.toml", scale=found.scale).columns
    assert scale == found.scale
    assert found.settings.keys() == {run.column for run in found.runs}
    for run in found.runs:
        said = columns[run.column][run.row].model_dump(mode="json")
        assert same_settings(found.settings[run.column], set_up(said))


def test_a_column_is_added_to_the_stored_results(tmp_path):
    store = runpy.run_path(str(ROOT / "scripts/store_results.py"))["store"]
    whole = load(ROOT / "docs/results/paper.json")
    first, *others = whole.runs
    save(replace(whole, runs=others), tmp_path / "new.json")
    assert store(tmp_path / "new.json", tmp_path) == (f"paper.json: {len(others)} new, 0 stored already")
    save(replace(whole, runs=[first, replace(others[0], model_sha256="0")]), tmp_path / "new.json")
    assert store(tmp_path / "new.json", tmp_path) == (
        f"paper.json: 1 new, 1 stored already; of these have another model: "
        f"{'/'.join(map(str, others[0].place))}"
    )
    assert [run.place for run in load(tmp_path / "paper.json").runs] == [run.place for run in whole.runs]
    save(replace(whole, runs=[first], settings={first.column: {}}), tmp_path / "new.json")
    assert store(tmp_path / "new.json", tmp_path).endswith(
        f"stored runs with other settings were removed: {first.column}"
    )


def test_a_setting_that_older_results_lack_has_its_default():
    now = dict(load(ROOT / "docs/results/paper.json").settings["fmnist-iid"])
    older = {**now, "data": {key: value for key, value in now["data"].items() if key != "public"}}
    assert same_settings(older, now)
    assert not same_settings(older, {**now, "data": {**now["data"], "public": 5}})
    assert not same_settings({}, now)


@pytest.mark.parametrize(
    ("number", "name"),
    [("table1", "table1"), ("table6", "fmnist"), ("table11", "ablation"), ("figure8", "curves")],
)
def test_tables_and_figures_go_by_their_number_too(number, name):
    assert reproduction.named(number) == name


def test_a_table_that_is_not_there_is_missed():
    with refused("unknown", says="the paper has no table or figure 'table13'"):
        reproduction.plan("table13", scale="laptop", only=[], seeds=None)
