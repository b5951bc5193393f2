"""The benchmark: its fixed protocol, its tuning, stored results, and cells that are run again."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest
from support.codes import refused, says
from typer.testing import CliRunner

from fedunlearn import Status, method
from fedunlearn.cli.commands import app
from fedunlearn.experiment.comparison import read_comparison
from fedunlearn.report.trials import score_beside
from fedunlearn.runs import read_json
from fedunlearn.studies.benchmark import (
    METHODS,
    Cell,
    check_results,
    gather,
    leaderboard_tables,
    merge,
    protocol,
    read_results,
    write_leaderboard,
    write_results,
)
from fedunlearn.studies.benchmark.plan import registered_by
from fedunlearn.studies.benchmark.stored import digest


@contextmanager
def unseen(what: str):
    yield lambda event: None


def cells(path: Path) -> dict[tuple[str, str], Cell]:
    return {(cell.request, cell.method): cell for cell in read_results(path).results}


def test_the_packaged_protocol_has_the_requests_that_the_page_names():
    comparison = read_comparison(METHODS, lenient=True)
    kinds = {name: next(iter(rows.values())) for name, rows in comparison.columns.items()}
    for partition in ("pat-20", "pat-50", "iid", "dirichlet"):
        assert not kinds[f"clean-{partition}"].backdoor.enabled
        assert kinds[f"backdoor-{partition}"].backdoor.enabled
        assert {kinds[f"{kind}-{partition}"].data.partition for kind in ("clean", "backdoor")} == {partition}
    assert kinds["several"].request.targets == 3
    assert kinds["successive"].request.successive
    assert kinds["participation"].participation.share == 0.2
    assert comparison.grid.seed not in comparison.seeds
    assert {entry.name for entry in method if entry.make.__module__.startswith("fedunlearn.")} <= {
        *comparison.listed
    }


def test_ablations_are_run_where_they_are_named():
    shown = read_json(Path(__file__).parents[3] / "docs/results/benchmark.json")["methods"]
    for only in ([], ["clean-iid"]):
        rows = protocol(only).columns["clean-iid"]
        assert len(rows) == 25
        assert {*rows} <= {*shown}
    assert list(protocol(["fedosd-m1", "clean-iid"]).columns["clean-iid"]) == ["retrain", "fedosd-m1"]


def test_a_method_is_tuned_by_trials_that_are_not_judged(submission):
    trials = [name for name in submission.ran if "/trials/" in name]
    assert {name.split("/")[0] for name in trials} == {"clean", "backdoored"}
    assert {read_json(submission.runs / name / "experiment.json")["seed"] for name in trials} == {10}
    place = submission.runs / "clean/trials"
    scores = {
        rate: score_beside(place / "step-back" / rate, place / "retraining") for rate in ("0.01", "0.1")
    }
    best = max(scores, key=lambda rate: scores[rate])
    assert cells(submission.results)["successive", "step-back"].rate == float(best)
    assert cells(submission.results)["clean", "retrain"].rate is None


def test_a_trial_is_scored_by_its_distance_to_retraining(submission, tmp_path):
    place = submission.runs / "clean/trials"
    last = [
        json.loads((place / name / "metrics.jsonl").read_text().splitlines()[-1])
        for name in ("step-back/0.1", "retraining")
    ]
    expected = last[0]["r_seen"] - abs(last[0]["forget_acc"] - last[1]["forget_acc"])
    assert score_beside(place / "step-back/0.1", place / "retraining") == pytest.approx(expected)


def test_results_say_what_a_cell_cost_and_what_the_audit_found(submission):
    found = cells(submission.results)
    cell, standard = found["clean", "step-back"], found["clean", "retrain"]
    run = submission.runs / "clean/seed-11/step-back"
    assert cell.model_sha256 == read_json(run / "outcome.json")["model_sha256"]
    assert cell.status == "done"
    assert cell.verdict is not None
    assert 0 < cell.r_acc <= 1
    assert cell.asr is None
    assert found["backdoored", "step-back"].asr is not None
    # Two rounds of a retraining that takes four, and two requests of two rounds each.
    assert standard.work == 0.5
    assert found["successive", "step-back"].rounds == 4
    assert found["clean", "omega0"].verdict is not None


def test_the_leaderboard_shows_what_is_stored(submission, small_protocol, tmp_path):
    results = gather(protocol(["fupga", "step-back"], submission.file), submission.runs)
    diverged = results.results[0].model_copy(
        update={"method": "fupga", "status": Status.DIVERGED, "verdict": None}
    )
    write_results(
        tmp_path / "results.json", results.model_copy(update={"results": (*results.results, diverged)})
    )
    header, *lines = leaderboard_tables(tmp_path / "results.json")["All requests"]
    assert {line[0] for line in lines} >= {"step-back", "retrain", "fupga", "ω⁰"}
    (fupga,) = (line for line in lines if line[0] == "fupga")
    assert fupga[header.index("Failed")] == "3/3"
    write_leaderboard(tmp_path / "results.json", tmp_path / "page.html")
    assert "step-back" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_a_request_that_a_method_cannot_answer_is_refused_and_the_rest_goes_on(small_protocol):
    wanted = protocol(["fupga"])
    assert ("successive", "fupga") in wanted.refused
    assert "fupga" in wanted.columns["clean"]
    (cell,) = gather(wanted, small_protocol / "nothing").results
    assert (cell.request, cell.status) == ("successive", "refused")
    assert says(cell.reason, "second request")
    assert gather(protocol(["fupga", "successive"]), small_protocol / "nothing").methods["fupga"].needs


def test_a_method_that_takes_more_rounds_than_others_is_refused(small_protocol, tmp_path):
    (tmp_path / "long.py").write_text(
        "import fedunlearn as fu\n"
        "@fu.method('long.one', paper='-', source='ours', summary='long')\n"
        "def long(schedule: fu.Schedule) -> tuple[fu.Phase, ...]:\n"
        "    return (fu.Averaging(schedule.rounds + 1, schedule.recover_lr),)\n"
    )
    wanted = protocol((), tmp_path / "long.py")
    assert wanted.refused["clean", "long.one"] == "it takes 3 rounds, and the benchmark gives 2"
    assert wanted.refused["successive", "long.one"] == "it takes 6 rounds, and the benchmark gives 4"
    assert {*wanted.columns["clean"]} == {"retrain"}


def test_cells_of_a_submission_are_made_again_to_the_same_numbers(submission):
    told = [*check_results(submission.results, 3, submission.runs.parent / "checked", unseen, workers=1)]
    assert len({line.split(":")[0] for line in told}) == 3
    assert all("step-back: the same rate, model and numbers" in line for line in told)


def changed(path: Path, copy: Path, change) -> Path:
    """A copy of the results in which somebody has changed the cells of the method, digests included."""
    found = json.loads(path.read_text())
    for row in found["results"]:
        if row["method"] == "step-back":
            row |= change(row)
            row["digest"] = Cell.model_validate(row).repeatable()
    copy.write_text(json.dumps(found))
    return copy


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda row: {"model_sha256": "0" * 64}, "model_sha256 is"),
        (lambda row: {"r_acc": 0.99}, r"r_acc is .*, not 0\.99"),
        (lambda row: {"rate": {0.01: 0.1, 0.1: 0.01}[row["rate"]]}, "rate is"),
    ],
    ids=["model", "number", "rate"],
)
def test_a_forged_cell_does_not_pass_the_check(submission, change, told):
    forged = changed(submission.results, submission.file.with_name("forged.json"), change)
    checked = submission.runs.parent / "checked"
    with refused("damaged", says=f"came out differently: {told}"):
        list(check_results(forged, 1, checked, unseen, workers=1))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"seed": 777}, "is not a request and seed of the protocol"),
        ({"request": "easy"}, "is not a request and seed of the protocol"),
        ({"rate": 0.03}, "which is not in the grid"),
        ({"environment": "elsewhere"}, "does not describe"),
        ({"environment": ""}, "lacks its environment, rounds or model, so it cannot be checked"),
        ({"rounds": None}, "lacks its environment"),
        ({"model_sha256": None, "verdict": "equivalent"}, "lacks its environment"),
    ],
    ids=str,
)
def test_a_cell_outside_the_protocol_is_refused(submission, tmp_path, changes, told):
    with refused("invalid", says=told):
        read_results(changed(submission.results, tmp_path / "x.json", lambda row: changes))


def edited(path: Path, folder: Path, change) -> Path:
    found = json.loads(path.read_text())
    change(found)
    (folder / path.name).write_text(json.dumps(found))
    return folder / path.name


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda found: found["results"][0].update(r_acc=0.99), "was changed after it was written"),
        (lambda found: found["results"][0].update(nonce=1), "holds no results"),
        (lambda found: found["results"][0].update(seed="/../x"), "holds no results"),
        (lambda found: found["methods"]["step-back"]["file"].update(name="../x.py"), "holds no results"),
        (lambda found: found.pop("methods"), "holds no results"),
        (lambda found: found["methods"].pop("step-back"), "has a method that the file does not describe"),
        (lambda found: found.update(results=[1]), "holds no results"),
        (lambda found: found.update(protocol="0" * 64), "another version of the protocol"),
        (lambda found: found.update(format="x"), "holds no results"),
        (
            lambda found: found["requests"]["clean"].update(kind="backdoored"),
            "the protocol's requests",
        ),
        (
            lambda found: found["requests"].update(easy=found["requests"]["clean"]),
            "the protocol's requests",
        ),
        (lambda found: found.update(seeds=[11, 12]), "does not have the protocol's seeds"),
        (lambda found: found["tuning"].update(rates=[0.5]), "does not have the protocol's tuning"),
        (lambda found: found["methods"].update(omega0=found["methods"]["retrain"]), "like a reference"),
    ],
)
def test_a_file_that_was_edited_is_refused(submission, tmp_path, change, told):
    with refused("damaged", "invalid", says=told):
        read_results(edited(submission.results, tmp_path, change))


@pytest.mark.parametrize(("content", "told"), [("{", "is not JSON"), ("[]", "holds no"), ("{}", "holds no")])
def test_a_file_that_holds_no_results_is_refused(tmp_path, content, told):
    (tmp_path / "x.json").write_text(content)
    with refused("damaged", "invalid", says=told):
        read_results(tmp_path / "x.json")


def test_another_file_than_the_submitted_one_is_not_executed(submission, tmp_path, monkeypatch):
    copy = edited(submission.results, tmp_path, lambda found: None)
    ran = tmp_path / "ran"
    (tmp_path / "step_back.py").write_text(f"open({str(ran)!r}, 'w').close()\n")
    # As in a process that has not imported the submitted file yet.
    monkeypatch.setattr("fedunlearn.experiment.code._imported", set())
    with refused("changed", says="has changed"):
        list(check_results(copy, 1, tmp_path / "runs", unseen, workers=1))
    assert not ran.exists()


def test_fewer_cells_than_asked_for_is_an_error(submission, tmp_path):
    with refused("invalid", says="has 3 cells that can be repeated, not 4"):
        list(check_results(submission.results, 4, tmp_path, unseen, workers=1))


@pytest.mark.parametrize("part", ["cpu_capability", "numerics"])
def test_results_of_another_kind_of_machine_are_not_compared(submission, tmp_path, part):
    found = read_results(submission.results)
    (there,) = found.environments.values()
    abacus = {**there, part: "abacus"}
    moved = [
        cell.model_copy(update={"environment": digest(abacus)[:8]}) for cell in found.results if cell.ran
    ]
    copy = tmp_path / "x.json"
    write_results(
        copy, found.model_copy(update={"results": tuple(moved), "environments": {digest(abacus)[:8]: abacus}})
    )
    with refused("environment", says=r"abacus.*check it on a machine of that kind"):
        list(check_results(copy, 1, tmp_path / "runs", unseen))


def test_a_submission_adds_its_own_methods_and_nothing_else(submission, tmp_path):
    ours = gather(protocol(["finetune"]), submission.runs)
    write_results(tmp_path / "ours.json", ours)
    both = merge([tmp_path / "ours.json", submission.results])
    assert {cell.method for cell in both.results} == {cell.method for cell in ours.results} | {"step-back"}
    assert both.tuning.chosen["step-back"].keys() == {"clean", "backdoored"}
    assert both.methods["step-back"].file is not None


def test_what_a_submission_says_of_other_methods_is_not_taken(submission, tmp_path):
    write_results(tmp_path / "ours.json", gather(protocol(["finetune"]), submission.runs))

    def claim(found):
        found["methods"]["retrain"]["summary"] = "the worst of all"
        found["tuning"]["chosen"]["retrain"] = {"clean": 0.1}

    both = merge([tmp_path / "ours.json", edited(submission.results, tmp_path, claim)])
    assert "worst" not in both.methods["retrain"].summary
    assert "retrain" not in both.tuning.chosen


def test_a_submission_alone_is_ranked_by_its_own_references(submission):
    alone = merge([submission.results])
    assert {cell.method for cell in alone.results} == {"step-back", "omega0", "retraining-1", "retraining-2"}


def test_a_description_that_is_not_that_of_the_python_file_does_not_pass_the_check(submission):
    found, forged = json.loads(submission.results.read_text()), submission.file.with_name("described.json")
    found["methods"]["step-back"]["online"] = "retained"
    forged.write_text(json.dumps(found))
    with refused("damaged", says="describes step-back differently from its Python file"):
        list(check_results(forged, 1, submission.runs.parent / "checked", unseen, workers=1))


def test_files_that_contradict_each_other_are_refused(submission, tmp_path):
    other = changed(submission.results, tmp_path / "x.json", lambda row: {"r_acc": 0.5})
    with refused("invalid", says=r"contradicts another file about .*/step-back"):
        merge([submission.results, other])


def test_an_unknown_name_is_answered_with_a_near_one(small_protocol):
    with refused("unknown", says="no method or request 'clen'; did you mean 'clean'"):
        protocol(["clen"])


def test_a_method_that_does_not_say_what_it_was_read_from_is_refused(tmp_path):
    (tmp_path / "silent.py").write_text(
        "import fedunlearn as fu\n"
        "@fu.method('silent', paper='-', summary='silent')\n"
        "def silent(schedule: fu.Schedule) -> tuple[fu.Phase, ...]:\n"
        "    return (fu.Averaging(schedule.rounds, schedule.recover_lr),)\n"
    )
    with refused("invalid", says="'silent' does not state its source"):
        registered_by(tmp_path / "silent.py")


@pytest.mark.parametrize(
    ("file", "name", "option", "told"),
    [
        ("my method.py", "mine", "", "use only letters, digits, - and _ in the file's name"),
        ("mine.py", "a/../b", "", "has a name that cannot be part of a path"),
        ("mine.py", "clean", "", "is named like a request or a reference"),
        ("mine.py", "omega0", "", "is named like a request or a reference"),
        ("mine.py", "retraining", "", "is named like a request or a reference"),
        ("mine.py", "mine", ", *, strength: float", "cannot be made: .*strength"),
    ],
)
def test_what_cannot_be_submitted_is_refused_before_anything_runs(
    small_protocol, tmp_path, file, name, option, told
):
    (tmp_path / file).write_text(
        "import fedunlearn as fu\n"
        f"@fu.method({name!r}, paper='-', source='ours', summary='mine')\n"
        f"def mine(schedule: fu.Schedule{option}) -> tuple[fu.Phase, ...]:\n"
        "    return (fu.Averaging(schedule.rounds, schedule.recover_lr),)\n"
    )
    with refused("invalid", says=told):
        protocol((), tmp_path / file)


def test_a_submission_may_return_one_phase(small_protocol, tmp_path):
    (tmp_path / "single.py").write_text(
        "import fedunlearn as fu\n"
        "class Single(fu.Averaging):\n"
        "    needs = frozenset({'shapes'})\n"
        "@fu.method('single', paper='-', source='ours', summary='single')\n"
        "def single(schedule: fu.Schedule) -> fu.Phase:\n"
        "    return Single(schedule.rounds, schedule.recover_lr)\n"
    )
    wanted = protocol(["clean"], tmp_path / "single.py")
    refused = replace(wanted, refused={("clean", "single"): "it is not run here"})
    assert gather(refused, tmp_path / "nothing").methods["single"].needs == ("shapes",)


def test_a_submission_cannot_import_files_beside_it(tmp_path):
    (tmp_path / "beside.py").write_text("")
    (tmp_path / "mine.py").write_text("import beside\n")
    with refused("invalid", says=r"mine.py, line 1: ModuleNotFoundError"):
        registered_by(tmp_path / "mine.py")


def test_the_commands_make_results_and_a_page(submission, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    def command(*words: object) -> str:
        ended = CliRunner().invoke(app, [str(word) for word in words])
        assert ended.exit_code == 0, ended.output
        return ended.output.replace("\n", " ")

    assert "finetune" in command("benchmark", "--only", "finetune", "--only", "clean", "--workers", 1)
    ours, page = Path("runs/benchmark/results.json"), Path("leaderboard.html")
    assert {cell.request for cell in read_results(ours).results} == {"clean"}
    assert "finetune" in ours.with_name("leaderboard.html").read_text(encoding="utf-8")
    command("leaderboard", ours, submission.results)
    shown = page.read_text(encoding="utf-8")
    assert "finetune" in shown
    assert f"step_back.py, SHA-256 {sha256(submission.file.read_bytes()).hexdigest()[:8]}" in shown
    page.unlink()
    told = command("leaderboard", submission.results, "--check", 1, "--workers", 1)
    assert "step-back: the same rate, model and numbers" in told
    assert not page.exists()


def test_a_file_that_registers_nothing_is_refused(tmp_path):
    (tmp_path / "empty.py").write_text("")
    with refused("invalid", says="registers no new method"):
        registered_by(tmp_path / "empty.py")
