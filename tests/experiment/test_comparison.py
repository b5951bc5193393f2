"""Comparisons: what a file says, what runs, and what is left alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.codes import refused
from support.comparisons import perform
from support.folders import edit

from fedunlearn.experiment import read
from fedunlearn.experiment.comparison import Comparison, missing, planned, read_comparison
from fedunlearn.report import collect, comparison_tables, markdown, round_table
from fedunlearn.runs import read_json, read_metrics

BASE = """
model = "lenet5"
seeds = 2
[data]
partition = "pat-50"
clients = 4
fraction = 0.05
[training]
batch_size = 20
[pretraining]
rounds = 2
[unlearning]
rounds = 2
lr = 0.01
[recovery]
rounds = 1
"""
ROWS = """
[methods.fedosd]
[methods.loud]
method = "puf"
options.scale = 3.0
"""
EXPERIMENTS = Path(__file__).parents[2] / "experiments"
PAPER = Path(__file__).parents[2] / "src/fedunlearn/studies/paper/experiments"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDUNLEARN_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def write(tmp_path):
    def _write(text: str, name: str = "mine.toml") -> Path:
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return _write


def test_rows_are_experiments_that_differ_in_what_they_say(write):
    comparison = read_comparison(write(BASE + ROWS), ["unlearning.lr=0.5"], seeds=3)
    assert comparison.seeds == (1, 2, 3)
    (rows,) = comparison.columns.values()
    assert {row: experiment.method for row, experiment in rows.items()} == {"fedosd": "fedosd", "loud": "puf"}
    assert rows["loud"].options == {"scale": 3.0}
    assert {experiment.unlearning.lr for experiment in rows.values()} == {0.5}


def test_overrides_come_last_and_reach_the_plan(write):
    text = BASE + ROWS + '[columns.a]\ndata.partition = "iid"\n[grid]\nrates = [0.1]\n'
    comparison = read_comparison(write(text), ["data.partition=pat-20", "grid.rates=[0.3]", "seeds=1"])
    assert {e.data.partition for e in comparison.columns["a"].values()} == {"pat-20"}
    assert comparison.grid.rates == [0.3]
    assert comparison.seeds == (1,)


def test_scales_and_extended_files(write):
    write(
        BASE
        + ROWS
        + "[scale.full]\n[scale.tiny.pretraining]\nrounds = 1\n"
        + "[columns.a]\nscale.tiny.unlearning.rounds = 9\n[columns.b]\n",
        "whole.toml",
    )
    part = write('extends = "whole.toml"\nname = "part"\n[show]\ncolumns = ["a"]\nrows = ["loud"]\n')
    full, tiny = read_comparison(part), read_comparison(part, scale="tiny")
    assert full.name == "part"
    assert list(full.columns) == ["a"]
    assert list(full.columns["a"]) == ["loud"]
    full_run, tiny_run = full.columns["a"]["loud"], tiny.columns["a"]["loud"]
    assert (full_run.pretraining.rounds, full_run.unlearning.rounds) == (2, 2)
    assert (tiny_run.pretraining.rounds, tiny_run.unlearning.rounds) == (1, 9)


@pytest.mark.wording
@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (BASE, "compares nothing"),
        (BASE + "[methods.fedsod]", "unknown method 'fedsod'; did you mean 'fedosd'"),
        (BASE + '[methods."../out"]\nmethod = "puf"', "methods = '../out'"),
        (BASE + ROWS + '[columns."/tmp/x"]', "columns = '/tmp/x'"),
        (BASE + "[methods]\nloud = 3", "methods.loud = 3: input should be a valid dictionary"),
        (BASE + ROWS + "[show]\nrow = []", "unknown key 'show.row'; did you mean 'show.rows'"),
        (BASE + ROWS + '[show]\nrows = ["lout"]', "unknown 'lout'; did you mean 'loud'"),
        (BASE.replace("seeds = 2", "seeds = 0") + ROWS, "seeds = 0"),
        (BASE.replace("seeds = 2", 'seeds = "x"') + ROWS, "seeds = 'x'"),
        (BASE.replace("seeds = 2", "show = 3") + ROWS, "show = 3"),
        (BASE + ROWS + "[grid]\nrates = []", "grid.rates = []: list should have at least 1 item"),
        (
            BASE + ROWS + "[grid]\nrates = [0.1]\nshar = 0.2",
            "unknown key 'grid.shar'; did you mean 'grid.share'",
        ),
        (BASE + ROWS + "[grid]\nshare = 0.2", "grid.rates is missing"),
        ('extends = "mine.toml"', "extends itself"),
        ('extends = "nowhere.toml"', "nowhere.toml"),
        (BASE + ROWS + "[columns.a]\nseed = 5", "columns.a: seed applies to the whole comparison"),
        (BASE + ROWS + 'name = "z"', "methods.loud: name applies to the whole comparison"),
        (BASE + ROWS + "[scale.tiny]\n[columns.a]\nscale.tinny.seed = 3", "'tinny'; did you mean 'tiny'"),
        (
            BASE + ROWS + "[scale.tiny]\n[columns.a]\nscale.tiny.seed = 3",
            "columns.a.scale.tiny: seed applies to",
        ),
        (BASE + ROWS + "[columns.a]\nscale.tiny.seed = 3", "unknown scale 'tiny'; the file has none"),
        (BASE + ROWS + "[scale.tiny]\n[columns.a]\nscale.tiny = 3", "scale holds a table for each scale"),
    ],
)
def test_a_bad_file_gets_one_sentence(write, text, sentence):
    with refused("file", "invalid", "unknown") as problem:
        read_comparison(write(text))
    assert sentence in str(problem.value)


@pytest.mark.parametrize(
    ("options", "sentence"), [({"scale": "x"}, "no scale 'x'"), ({"only": ["x"]}, "'x'")]
)
def test_unknown_parts_are_refused(write, options, sentence):
    with refused("unknown", says=sentence):
        read_comparison(write(BASE + ROWS), **options)


def test_what_has_ended_is_left_alone_and_other_settings_are_refused(write, tmp_path):
    path, folder = write(BASE + ROWS), tmp_path / "runs"
    assert perform(read_comparison(path, only=["loud"], seeds=1), folder) == ["seed-1/loud"]
    assert perform(read_comparison(path), folder) == ["seed-1/fedosd", "seed-2/fedosd", "seed-2/loud"]
    assert perform(read_comparison(path), folder) == []
    older = read_json(folder / "seed-1/fedosd/experiment.json")
    del older["unlearning"]["stop_below"]
    (folder / "seed-1/fedosd/experiment.json").write_text(json.dumps(older))
    assert perform(read_comparison(path), folder) == []
    with refused("occupied", says="another configuration"):
        perform(read_comparison(path, ["unlearning.rounds=3"]), folder)
    assert read_json(folder / "seed-1/fedosd/experiment.json")["unlearning"]["rounds"] == 2


def tables(comparison: Comparison, folder: Path, *, listed: bool = False):
    return comparison_tables(collect([folder]).select(comparison.places(folder, "", listed=listed)))


def test_the_tables_show_each_row_with_its_spread(write, tmp_path):
    comparison, folder = read_comparison(write(BASE + ROWS)), tmp_path / "runs"
    perform(comparison, folder)
    (header, origin, fedosd, loud), costs = tables(comparison, folder)
    assert header[1:5] == ["ASR¹", "R-Acc¹", "Worst¹", "ASR²"]
    assert [line[0] for line in (origin, fedosd, loud)] == ["ω⁰", "fedosd", "loud"]
    runs = [folder / f"seed-{seed}/fedosd" for seed in (1, 2)]
    ends = [next(r for r in reversed(read_metrics(run)) if r["stage"] == "unlearning") for run in runs]
    mean = sum(end["r_acc"] for end in ends) / 2
    spread = abs(ends[0]["r_acc"] - ends[1]["r_acc"]) / 2**0.5
    shown = f"{100 * mean:.1f}% ±{100 * spread:.1f}"
    assert fedosd[2] == shown
    assert costs[1][costs[0].index("Trainings")] == "11 ±0"  # 2 rounds of 4 clients, one of 3

    def after(*rounds: int) -> list[list[str]]:
        return round_table(collect([folder]).rows, rounds)

    lines = after(0, 2, 7)
    assert lines[0] == ["", "after 0", "after 2", "after 7"]
    assert lines[1][2].endswith(shown)
    assert lines[1][3] == "– / –"
    assert markdown(lines).startswith("|  | after 0 | after 2 | after 7 |\n| --- | ---: |")
    lines = (runs[0] / "metrics.jsonl").read_text().splitlines(True)
    # A round that only one seed has evaluated is not a mean of both.
    edit(runs[0], {"metrics.jsonl": "".join(line for line in lines if '"elapsed": 2' not in line)})
    assert after(0, 2)[1][2] == "– / –"
    outcome = read_json(runs[1] / "outcome.json")
    edit(runs[1], {"outcome.json": json.dumps(outcome | {"status": "diverged"})})
    results, *_ = tables(comparison, folder)
    assert results[2][-1] == "1 of 2 diverged"


def test_seeds_and_rows_that_were_not_run_do_not_change_the_origin(write, tmp_path):
    path, folder = write(BASE + ROWS), tmp_path / "runs"
    perform(read_comparison(path, only=["loud"]), folder)
    late = read_comparison(path, only=["fedosd"], seeds=1)
    perform(late, folder)
    (_, origin, *rows), _ = tables(late, folder, listed=True)
    assert (origin[0], [row[0] for row in rows]) == ("ω⁰", ["fedosd", "loud"])
    assert "±" in origin[1]  # of both seeds
    assert "±" in rows[1][1]  # though one was wanted now
    (_, origin, *rows), _ = tables(late, folder)
    assert (origin[0], [row[0] for row in rows]) == ("ω⁰", ["fedosd"])
    assert "–" not in origin[1:4]


def test_without_a_backdoor_the_table_says_what_is_left_of_the_forgotten(write, tmp_path):
    comparison = read_comparison(write(BASE + ROWS + "[backdoor]\nenabled = false\n"), seeds=1)
    perform(comparison, tmp_path / "runs")
    (header, *_), _ = tables(comparison, tmp_path / "runs")
    assert header[1:3] == ["Forget acc¹", "R-Acc¹"]
    last = read_metrics(tmp_path / "runs/seed-1/fedosd")[-1]
    _, fedosd, _ = round_table(collect([tmp_path / "runs"]).rows, [3])
    assert fedosd[1] == f"{last['forget_acc']:.1%} / {last['r_acc']:.1%}"


def test_a_pre_training_that_diverges_says_where_and_can_be_mended(write, tmp_path):
    columns = "[columns.a]\n[columns.b]\npretraining.lr = {}\n"
    path = write(BASE + ROWS + columns.format("1e30"))
    with refused("diverged", says=r"^b/seed-1/fedosd: .*not finite.*lower the learning rate"):
        perform(read_comparison(path, seeds=1), tmp_path / "runs")
    mended = read_comparison(write(BASE + ROWS + columns.format("0.1")), seeds=1)
    assert perform(mended, tmp_path / "runs") == ["b/seed-1/fedosd", "b/seed-1/loud"]


def test_a_file_elsewhere_may_extend_those_of_the_package(write):
    path = write(
        'extends = "protocol.toml"\n[show]\ncolumns = ["fmnist-iid"]\nrows = ["mine", "retrain"]\n'
        '[methods.mine]\nmethod = "retrain"\n'
    )
    (rows,) = read_comparison(path, scale="laptop").columns.values()
    assert rows["mine"] == rows["retrain"]


@pytest.mark.parametrize("scale", ["laptop", "paper"])
def test_in_the_protocol_those_that_climb_a_loss_stop_and_no_others(scale):
    for rows in read_comparison(PAPER / "protocol.toml", scale=scale).columns.values():
        stopping = {row for row, experiment in rows.items() if experiment.unlearning.stop_below > 0}
        assert stopping == {"ewcsga", "fupga", "sfu", "fedosd-m1"}


@pytest.mark.parametrize(
    ("row", "rates"), [("finetune", 2), ("not", 0), ("reset", 2), ("fast-retrain", 0), ("fedosd", 2)]
)
def test_trials_are_for_those_whose_rate_matters(write, tmp_path, row, rates):
    text = BASE + f"[grid]\nrates = [0.1, 0.2]\n[methods.{row}]\n"
    comparison = read_comparison(write(text), ["unlearning.lr=0.01", "recovery.lr=0.02"], seeds=1)
    assert missing(comparison, tmp_path) == 1 + rates


def test_the_rounds_of_all_runs_count_a_shared_pre_training_once(write, tmp_path):
    comparison = read_comparison(write(BASE + ROWS))
    assert planned(comparison, tmp_path) == {
        "seed-1/fedosd": (2, 3),
        "seed-1/loud": (0, 3),
        "seed-2/fedosd": (2, 3),
        "seed-2/loud": (0, 3),
    }


def test_the_grid_chooses_by_training_data_and_only_where_a_rate_matters(write, tmp_path):
    grid = "[grid]\nrates = [1e-9, 0.5]\nshare = 0.5\n[methods.retrain]\n"
    comparison = read_comparison(write(BASE + "[methods.fedosd]\n" + grid), seeds=2)
    ran = perform(comparison, tmp_path / "runs")
    # Once, on the first seed: the others are not looked at before they are run.
    assert ran[:4] == ["trials/fedosd/1e-09", "trials/fedosd/0.5", "seed-1/fedosd", "seed-1/retrain"]
    assert ran[4:] == ["seed-2/fedosd", "seed-2/retrain"]
    assert {read_json(tmp_path / f"runs/{trial}/experiment.json")["seed"] for trial in ran[:2]} == {1}

    def score(rate: str) -> float:
        rows = read_metrics(tmp_path / f"runs/trials/fedosd/{rate}")
        ends = [
            [row for row in rows if row["stage"] == stage][-1] for stage in ("unlearning", "post-training")
        ]
        return sum(row["r_seen"] - row["asr"] for row in ends) / 2

    best = max(("1e-09", "0.5"), key=score)
    assert score("1e-09") != score("0.5")
    for seed in (1, 2):
        chosen = read_json(tmp_path / f"runs/seed-{seed}/fedosd/experiment.json")
        assert chosen["unlearning"]["lr"] == float(best)
    assert perform(comparison, tmp_path / "runs") == []


def test_a_data_set_that_is_not_there_is_missed_before_anything_runs(write, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDUNLEARN_DATA", str(tmp_path))
    columns = '[columns.here]\n[columns.elsewhere]\ndata.dataset = "cifar10"\n'
    comparison = read_comparison(write(BASE + ROWS + columns))
    with refused("missing", says=r"'cifar10'.* name other columns than elsewhere with --only"):
        perform(comparison, tmp_path / "runs")
    assert not (tmp_path / "runs").exists()
    assert perform(
        read_comparison(write(BASE + ROWS + columns), only=["here", "loud"], seeds=1), tmp_path / "runs"
    )


@pytest.mark.parametrize(
    "path", sorted([*EXPERIMENTS.glob("*.toml"), *PAPER.glob("*.toml")]), ids=lambda path: path.stem
)
def test_the_files_of_the_package_can_be_read(path):
    if path.stem in ("audit", "fedosd", "per-example"):
        assert read(path).phases()
        return
    if path.stem.startswith("benchmark"):
        assert read_comparison(path.with_name("benchmark-methods.toml"), lenient=True).columns
        return
    paper = "protocol.toml" in path.read_text() or path.stem == "protocol"
    for scale in ("paper", "laptop") if paper else (None,):
        assert read_comparison(path, scale=scale).columns
