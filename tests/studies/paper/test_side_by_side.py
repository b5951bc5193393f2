"""Results as files, and our numbers beside the paper's."""

from __future__ import annotations

import csv
import io
import json
import shutil
from dataclasses import replace

import pytest
from support.codes import refused

from fedunlearn.core import Status
from fedunlearn.report.trials import score
from fedunlearn.studies.paper.latex import as_latex
from fedunlearn.studies.paper.paper import lookup
from fedunlearn.studies.paper.results import (
    Result,
    Results,
    gather,
    joined,
    load,
    read_columns,
    retained,
    save,
)
from fedunlearn.studies.paper.side_by_side import (
    as_csv,
    as_markdown,
    counted,
    grid,
    meaning,
    setup,
    side_by_side,
)


def result(
    row, seed=1, *, column="fmnist-pat-50", unlearned=None, recovered=None, status=Status.DONE, **cost
):
    scores = {"asr": 0.9, "r_acc": 0.8, "r_acc_std": 0.1, "r_acc_worst": 0.7, "r_acc_best": 0.9}
    return Result(
        column=column,
        row=row,
        seed=seed,
        rate=0.025,
        status=status,
        model_sha256="0" * 64,
        before=scores,
        unlearned={**scores, **unlearned} if unlearned else {},
        recovered={**scores, **recovered} if recovered else {},
        cost={"seconds": 10.0, "seconds_server": 1.0, **cost},
        course={"rounds": [0.0], "asr": [0.9], "r_acc": [0.8], "distance": [0.0]},
        environment="old",
    )


def settings(**changes):
    return {
        "model": "mlp",
        "data": {"dataset": "fmnist", "partition": "pat-50", "clients": 10, "fraction": 0.1} | changes,
        "request": {"level": "client"},
        "training": {"epochs": 1, "batch_size": 50},
        "pretraining": {"rounds": 300},
        "unlearning": 50,
        "recovery": 50,
    }


RUNS = [
    result("retrain", 1, recovered={"asr": 0.01}),
    result("retrain", 2, recovered={"asr": 0.03}),
    result("fedosd", 1, unlearned={"asr": 0.0}, recovered={"asr": 0.02}, conflicts=0.0),
    result("fedosd", 2, unlearned={"asr": 0.0}, recovered={"asr": 0.04}, conflicts=0.5),
]
MADE = Results(
    "laptop", {"fmnist-pat-50": settings()}, {"old": {"torch": "2"}}, {"c": {"r": {"0.1": None}}}, RUNS
)


def table(name="table1", results=MADE, rows=("retrain", "fedosd")):
    return side_by_side(results, ["fmnist-pat-50", "fmnist-iid"], rows, name)


def printed(row, stage, name="table1"):
    found = lookup(dataset="fmnist", partition="pat-50", row=row, stage=stage)
    return next(cell for cell in found if cell.table == name)


def test_each_number_stands_beside_that_of_the_paper():
    cells = {(cell.row, cell.stage, cell.measure): cell for cell in table()}
    assert cells["retrain", 2, "asr"].ours == (0.01, 0.03)
    assert cells["retrain", 2, "asr"].paper == printed("retrain", 2).asr == 0.002
    assert cells["retrain", 2, "asr"].difference == pytest.approx(0.018)
    assert cells["omega0", 0, "r_acc"].paper == printed("omega0", 0).r_acc
    assert cells["fedosd", 1, "r_acc_std"].paper == printed("fedosd", 1).r_acc_std
    assert ("retrain", 1, "asr") not in cells
    assert {measure for _, _, measure in cells} == {"asr", "r_acc", "r_acc_std"}


def test_rows_come_in_the_order_of_the_paper_and_missing_ones_are_left_out():
    lines = grid(table(rows=("fedosd", "mode", "retrain")), "fmnist-pat-50")
    assert [line[0] for line in lines] == ["", "ω⁰", "retrain", "fedosd¹", "fedosd²"]
    assert lines[0][1:4] == ["ASR", "paper", "Δ"]
    assert lines[2][1:4] == [".020 ±.014", ".002", "+.018"]
    assert lines[3][1:4] == [".000 ±.000", ".000", "+.000"]


def test_a_table_takes_its_own_number_where_the_paper_prints_two():
    ours = [result("fedosd", column="cifar10-pat-50", unlearned={"asr": 0.0}, recovered={"asr": 0.0})]
    made = Results("paper", {"cifar10-pat-50": settings(dataset="cifar10")}, {}, {}, ours)

    def number(name):
        cells = side_by_side(made, ["cifar10-pat-50"], ["fedosd"], name)
        return next(cell.paper for cell in cells if (cell.stage, cell.measure) == (2, "asr"))

    assert (number("table1"), number("ablation")) == (0.016, 0.024)


def test_a_row_that_only_another_table_prints_is_looked_up_there():
    ours = [result("fedosd-m6", unlearned={"asr": 0.1})]
    cells = side_by_side(
        Results("laptop", MADE.settings, {}, {}, ours), ["fmnist-pat-50"], ["fedosd-m6"], "ablation"
    )
    assert (
        next(c.paper for c in cells if c.stage == 1 and c.measure == "asr")
        == printed("fedosd-m6", 1, "ablation-m6").asr
    )


def test_conflicts_and_seconds_are_costs():
    seconds = {(c.row, c.stage, c.measure): c for c in table("runtime")}
    assert seconds["fedosd", 2, "seconds"].ours == (9.0, 9.0)
    assert seconds["fedosd", 2, "seconds"].paper == 65.16
    assert seconds["fedosd", 2, "seconds"].difference is None  # of two machines
    assert seconds["fedosd", 2, "seconds_server"].ours == (1.0, 1.0)
    counts = {(c.row, c.stage, c.measure): c for c in table("conflicts")}
    assert counts["fedosd", 1, "conflicts"].ours == (0.0, 0.5)
    assert counts["fedosd", 1, "conflicts"].paper is None  # the paper shows other data


def test_what_the_paper_does_not_print_is_shown_without_it():
    lines = grid(table(""), "fmnist-pat-50")
    assert lines[0][1::3] == ["ASR", "R-Acc", "Worst", "Best", "η"]
    other = Results("laptop", {"fmnist-pat-50": settings(clients=7)}, {}, {}, RUNS)
    assert {cell.paper for cell in table(results=other)} == {None}
    assert "the paper prints no accuracy" in counted(table(results=other))


def test_a_part_of_a_data_set_is_compared_with_the_whole():
    whole = Results("laptop", {"fmnist-pat-50": settings(dataset="cifar100", partition="iid")}, {}, {}, RUNS)
    part = Results(
        "laptop", {"fmnist-pat-50": settings(dataset="cifar100-test", partition="iid")}, {}, {}, RUNS
    )
    assert [cell.paper for cell in table("cifar100", part)] == [
        cell.paper for cell in table("cifar100", whole)
    ]
    assert any(cell.paper is not None for cell in table("cifar100", part))


def test_who_stopped_early_is_said():
    runs = [
        replace(
            result("fupga", seed, unlearned={"asr": 0.0}, recovered={"asr": 0.2}),
            turn=turn,
            stopped=turn < 50,
        )
        for seed, turn in ((1, 7.0), (2, 50.0), (3, 5.0))
    ]
    made = Results("laptop", MADE.settings, {}, {}, runs)
    sentence = "Unlearning stopped early: fupga in fmnist-pat-50 (2 of 3, after 5 to 7)."
    assert meaning(table(results=made, rows=["fupga"])).endswith(sentence)
    assert sentence in as_latex(table(results=made, rows=["fupga"]), made, "")
    assert "Unlearning stopped" not in meaning(table())


def test_a_failed_seed_counts_as_it_ended_and_is_marked():
    runs = [
        result("fupga", 1, unlearned={"asr": 0.0}, recovered={"asr": 0.2}),
        result("fupga", 2, unlearned={"asr": 0.4}, status=Status.DIVERGED),
    ]
    cells = table(results=Results("laptop", MADE.settings, {}, {}, runs), rows=["fupga"])
    ours = {(cell.stage, cell.measure): cell for cell in cells}
    assert ours[1, "asr"].ours == (0.0, 0.4)
    assert ours[2, "asr"].ours == (0.2, 0.4)  # where it came no further
    assert ours[0, "asr"].failed == 0
    lines = grid(cells, "fmnist-pat-50")
    assert lines[2][:2] == ["fupga¹", ".200 ±.283 †"]
    assert "† Failed runs, counted with their last numbers: fupga in fmnist-pat-50 (1 of 2)." in meaning(
        cells
    )
    assert "9 numbers; the paper prints 6 of the accuracies" in counted(cells)  # a deviation is none
    assert r".200$\pm$.283$^\dagger$" in as_latex(cells, MADE, "")


def test_near_numbers_are_counted():
    cells = [cell for cell in table("ablation") if cell.row != "retrain"]
    near = [cell.measure for cell in cells if abs(cell.difference) <= 0.05]
    assert 0 < len(near) < len(cells) == 6
    assert counted(cells) == (
        f"6 numbers; the paper prints 6 of the accuracies among them, and {len(near)} of ours are within "
        f"±0.05 of the paper's: ASR {near.count('asr')} of 3, R-Acc {near.count('r_acc')} of 3."
    )
    edge = [replace(cells[0], ours=(0.9,), paper=0.85), replace(cells[0], measure="r_acc_std")]
    assert counted(edge).endswith("and 1 of ours are within ±0.05 of the paper's: ASR 1 of 1.")


def test_a_seed_without_the_number_is_not_among_those_that_failed():
    runs = [
        result("fupga", 1, unlearned={"asr": 0.0}, recovered={"asr": 0.2}, conflicts=3.0),
        result("fupga", 2, status=Status.DIVERGED),
        result("fupga", 3, unlearned={"asr": 0.4}, status=Status.DIVERGED),
    ]
    cells = table("conflicts", Results("laptop", MADE.settings, {}, {}, runs), ["fupga"])
    (counted_,) = (cell for cell in cells if cell.measure == "conflicts")
    assert (counted_.ours, counted_.failed) == ((3.0,), 0)
    assert "† Failed runs, counted with their last numbers: fupga in fmnist-pat-50 (2 of 3)." in meaning(
        cells
    )


def test_where_no_table_of_the_paper_is_meant_each_number_is_looked_up():
    cells = {(c.row, c.stage, c.measure): c.paper for c in table("")}
    assert cells["fedosd", 1, "r_acc"] == printed("fedosd", 1).r_acc
    assert cells["fedosd", 1, "r_acc_worst"] == printed("fedosd", 1, "fmnist").r_acc_worst == 0.746


def test_csv_has_one_number_on_a_line():
    lines = list(csv.DictReader(io.StringIO(as_csv(table(), "laptop"))))
    assert len(lines) == len(table())
    first = next(line for line in lines if (line["row"], line["measure"]) == ("retrain", "asr"))
    assert (first["ours"], first["deviation"], first["paper"], first["difference"]) == (
        "0.02000",
        "0.01414",
        "0.002",
        "0.01800",
    )
    assert (first["scale"], first["seeds"], first["failed"], first["rate"]) == ("laptop", "2", "0", "0.025")


def test_latex_has_the_layout_of_the_paper():
    text = as_latex(table(), MADE, "Table 1, 10 %.")
    assert text.startswith(
        "\\begin{table}\\centering\\small\n\\caption{Table 1, 10 \\%. Our numbers are means $\\pm$"
    )
    assert "\n & \\multicolumn{2}{c}{FMNIST} \\\\\n & \\multicolumn{2}{c}{Pat-50} \\\\\n" in text
    assert "\nMethod & ASR & R-Acc \\\\\n\\midrule\n$\\omega^0$ & .900" in text
    osd = printed("fedosd", 1)
    theirs = f"{osd.r_acc:.3f}({osd.r_acc_std:.3f})".replace("0.", ".")
    assert r"FedOSD$^1$ & .000$\pm$.000 & .800$\pm$.000(.100) \\" in text
    assert rf" & {{\scriptsize .000}} & {{\scriptsize {theirs}}} \\" in text
    apart = f"{0.8 - osd.r_acc:+.3f}".replace("0.", ".")
    assert rf" & {{\scriptsize $+.000$}} & {{\scriptsize ${apart}$}} \\" in text
    assert text.count(r"\midrule") == 4  # ω⁰, one stage, after unlearning, after post-training
    assert text.endswith("\\bottomrule\n\\end{tabular}\n\\end{table}\n")
    body = text[text.index(r"\midrule") : text.index(r"\bottomrule")]
    assert all(line.count("&") == 2 for line in body.splitlines() if line != r"\midrule")
    assert text.isascii()
    assert "mark for reverting" not in text
    risen = result("fupga", unlearned={"asr": 0.0}, recovered={"asr": 0.6})
    marked = as_latex(
        side_by_side(replace(MADE, runs=[risen]), ["fmnist-pat-50"], ["fupga"], "table1"), MADE, "Table 1."
    )
    assert "$^r$ is the paper's mark for reverting." in marked
    assert marked.count(r"{\scriptsize .745$^r$}") == marked.count("$^r$}") == 1


def test_what_is_wide_takes_the_page():
    columns = [f"fmnist-pat-50-e{number}" for number in range(4)]
    runs = [result("fedosd", column=column, unlearned={"asr": 0.0}) for column in columns]
    longer = settings() | {"training": {"epochs": 5, "batch_size": 50}}
    many = Results("laptop", dict.fromkeys(columns, longer), {}, {}, runs)
    text = as_latex(side_by_side(many, columns, ["fedosd"], "table1"), many, "Wide.")
    assert text.startswith("\\begin{table*}")
    assert "\\resizebox{\\textwidth}{!}{%\n\\begin{tabular}" in text
    assert text.endswith("\\end{tabular}}\n\\end{table*}\n")
    assert "Pat-50, E=5" in text


def test_only_what_a_table_shows_is_explained():
    cells = [cell for cell in table("runtime") if cell.stage == 2]
    assert {cell.measure for cell in cells} == {"seconds", "seconds_server"}
    words = meaning(cells)
    assert not any(mark in words for mark in ("Δ", "¹", "std"))
    assert "brackets" not in as_latex(cells, MADE, "Seconds.")


def test_markdown_says_how_it_was_run_and_what_the_numbers_are():
    text = as_markdown(table(), MADE)
    assert "**fmnist-pat-50**, scale laptop: fmnist, pat-50, 10 clients, mlp, 10 % of the examples" in text
    assert "300 rounds of pre-training, 50 + 50 rounds after the request" in text
    assert "over 2 seeds. Δ" in text
    alone = Results("x", MADE.settings, {}, {}, RUNS[:1])
    assert meaning(table(results=alone)).startswith("Our numbers are from one seed. Δ")
    some = Results("x", MADE.settings, {}, {}, RUNS[:3])
    assert "over 2 seeds, or over fewer: fedosd in fmnist-pat-50 (1). Δ" in meaning(table(results=some))
    column = result("fedosd", column="fmnist-iid", unlearned={"asr": 0.0})
    wide = Results("x", {**MADE.settings, "fmnist-iid": settings()}, {}, {}, [*RUNS, column])
    assert "over 2 seeds, or over fewer: fmnist-iid (1). Δ" in meaning(table(results=wide))
    assert "5 local epochs" in setup(settings() | {"training": {"epochs": 5, "batch_size": 50}})


def test_results_come_back_from_their_file(tmp_path):
    path = tmp_path / "results.json"
    save(MADE, path)
    assert load(path) == MADE
    json.loads(path.read_text())  # strict JSON: no NaN, no Infinity
    assert path.read_text().count("\n") < 15  # one run on a line
    save(load(path), tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == path.read_bytes()


@pytest.mark.parametrize(
    "text", ['{"runs": []}', "[]", '{"format": "fedunlearn results 1"}', '{"format": "fedunlearn results 2"}']
)
def test_a_foreign_or_damaged_file_is_refused(tmp_path, text):
    (tmp_path / "other.json").write_text(text)
    with refused("damaged", says="is not a results file of fedunlearn"):
        load(tmp_path / "other.json")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"scale": "laptop"', '"scale": "../laptop"'),
        ('"status": "done"', '"status": "fine"'),
        ('"seed": 1', '"seed": "1"'),
        ('"rate": 0.025', '"rate": null'),
        ('"turn": 0.0', '"turns": 0.0'),
    ],
)
def test_a_value_of_another_kind_is_refused(tmp_path, old, new):
    save(MADE, tmp_path / "other.json")
    text = (tmp_path / "other.json").read_text()
    assert old in text
    (tmp_path / "other.json").write_text(text.replace(old, new, 1))
    with refused("damaged", says="is not a results file of fedunlearn"):
        load(tmp_path / "other.json")


def test_results_of_two_folders_are_joined():
    again = replace(RUNS[0], model_sha256="1" * 64, environment="new")
    later = replace(result("fedosd", column="mnist-iid"), environment="new")
    new = Results("laptop", {"mnist-iid": {}, **MADE.settings}, {"new": {"cores": "8"}}, {}, [later, again])
    both = joined(MADE, new)
    assert [run.place for run in both.runs] == sorted({*(run.place for run in RUNS), later.place})
    assert both.of("fmnist-pat-50", "retrain")[0] == again
    assert both.settings.keys() == {"fmnist-pat-50", "mnist-iid"}
    assert both.environments == {**MADE.environments, **new.environments}
    assert both.trials == MADE.trials
    assert joined(both, new) == both


def test_what_made_no_run_any_more_is_forgotten():
    anew = [replace(run, environment="new") for run in RUNS]
    new = replace(MADE, environments={"new": {"torch": "3"}}, runs=anew)
    assert joined(MADE, new).environments == new.environments


def test_a_column_that_is_set_up_otherwise_is_replaced_whole():
    old = replace(MADE, trials={"fmnist-pat-50": {"fedosd": {"0.1": 0.5}}})
    new = replace(MADE, settings={"fmnist-pat-50": {}}, trials={}, runs=RUNS[:1])
    assert joined(old, new) == new


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"scale": "paper"}, "results of scale 'paper' cannot be added to those of scale 'laptop'"),
        ({"runs": [replace(RUNS[0], rate=0.5)]}, "retrain in fmnist-pat-50 would average seeds with two"),
    ],
)
def test_results_that_do_not_compare_are_not_joined(changes, reason):
    with refused("invalid", says=reason):
        joined(MADE, replace(MADE, **changes))


ROWS = [
    {"stage": "start", "elapsed": 0, "distance": 0.0, "asr": 0.9, "r_acc": 0.8, "r_acc client-2": 0.8},
    {
        "stage": "unlearning",
        "elapsed": 1,
        "distance": 1.0,
        "conflicts": 2,
        "seconds": 1.5,
        "bytes_stored": 8,
    },
    {
        "stage": "unlearning",
        "elapsed": 2,
        "distance": float("inf"),
        "conflicts": 1,
        "seconds": 1.5,
        "asr": 0.1,
        "r_acc": 0.7,
        "r_acc client-10": 0.5,
        "r_acc client-2": 0.6,
        "r_seen": 0.9,
    },
]
SPREAD = {"r_acc_std": 0.1, "r_acc_worst": 0.5, "r_acc_best": 0.9}
CONFIG = settings() | {key: {"rounds": 2, "lr": 0.1} for key in ("unlearning", "recovery")}
CONFIG |= {"seed": 4, "backdoor": {}}


@pytest.fixture
def gathered(tmp_path):
    """A run and a trial of it, as a reproduction leaves them."""
    for place in ("mine/seed-4/fedosd", "mine/trials/fedosd/0.1"):
        run = tmp_path / place
        run.mkdir(parents=True)
        rows = [{"round": row["elapsed"], **row, **(SPREAD if "r_acc" in row else {})} for row in ROWS]
        (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (run / "experiment.json").write_text(json.dumps(CONFIG))
        (run / "environment.json").write_text("{}")
        (run / "outcome.json").write_text('{"status": "done", "model_sha256": "abc"}')
    return tmp_path


@pytest.mark.parametrize(
    ("file", "content", "sentence"),
    [
        ("metrics.jsonl", "3\n", "line 1 is not a valid row"),
        ("metrics.jsonl", '{"round": 0, "elapsed": 0, "distance": 0}\n', "line 1 is not a valid row"),
        ("metrics.jsonl", "", r"metrics\.jsonl is empty although the run has ended"),
        ("outcome.json", '{"status": "done"}', "does not say how the run ended"),
        ("experiment.json", "[]", "is not a JSON object"),
        ("experiment.json", "{}", "has no 'seed'"),
        ("experiment.json", json.dumps(CONFIG | {"data": 3}), "data must be a table of settings"),
        ("experiment.json", json.dumps(CONFIG | {"recovery": {}}), "has no 'rounds'"),
    ],
)
def test_a_damaged_run_is_named(gathered, file, content, sentence):
    (gathered / "mine/seed-4/fedosd" / file).write_text(content)
    with refused("damaged", "invalid", says=sentence):
        gather(gathered, read_columns(gathered), "laptop")


def test_a_run_that_does_not_say_what_made_it_is_named(gathered):
    (gathered / "mine/seed-4/fedosd/environment.json").unlink()
    with refused("missing", says=r"has no environment\.json"):
        gather(gathered, read_columns(gathered), "laptop")


def test_a_run_in_the_folder_of_another_seed_is_named(gathered):
    (gathered / "mine/seed-4").rename(gathered / "mine/seed-5")
    with refused("occupied", says=r"seed-5/fedosd is a run of seed 4: delete it"):
        gather(gathered, read_columns(gathered), "laptop")


def test_a_trial_that_measured_nothing_is_named(gathered):
    row = {"stage": "start", "round": 0, "elapsed": 0, "distance": 0}
    (gathered / "mine/trials/fedosd/0.1/metrics.jsonl").write_text(json.dumps(row) + "\n")
    with refused("invalid", says=r"0\.1 has ended without an evaluated round"):
        gather(gathered, read_columns(gathered), "laptop")


def test_a_folder_of_runs_is_gathered(gathered):
    (gathered / "mine/seed-4/unfinished").mkdir()
    shutil.copytree(gathered / "mine/seed-4", gathered / "mine/seed-4-backup")
    found = gather(gathered, read_columns(gathered), "laptop")
    (run,) = found.of("mine", "fedosd")
    assert (run.seed, run.rate, run.before["asr"], run.unlearned["asr"], run.recovered) == (
        4,
        0.1,
        0.9,
        0.1,
        {},
    )
    assert run.cost["conflicts"] == 1.5
    assert run.cost["seconds"] == 3.0
    assert run.cost["bytes_stored"] == 8
    assert run.course["rounds"] == [0, 2]
    assert list(retained(run.unlearned)) == [("client-2", 0.6), ("client-10", 0.5)]
    assert found.trials == {"mine": {"fedosd": {"0.1": pytest.approx(0.8)}}}
    assert found.settings["mine"]["unlearning"] == 2
    other = gathered / "mine/seed-4/puf"
    shutil.copytree(gathered / "mine/seed-4/fedosd", other)
    changed = CONFIG | {"data": {**CONFIG["data"], "fraction": 0.2}}
    (other / "experiment.json").write_text(json.dumps(changed))
    with refused("occupied", says="puf has other settings than the other runs"):
        gather(gathered, read_columns(gathered), "laptop")
    (gathered / "mine/trials/fedosd/0.1/outcome.json").write_text(
        '{"status": "diverged", "model_sha256": "abc"}'
    )
    assert score(gathered / "mine/trials/fedosd/0.1") is None
