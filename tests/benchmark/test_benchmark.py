"""The benchmark: its fixed protocol, its tuning, stored results, and cells that are run again."""

from __future__ import annotations

import json
from contextlib import contextmanager
from pathlib import Path

import pytest

from fedunlearn import FedUnlearnError, method
from fedunlearn.benchmark import check_results, gather, merge, protocol, read_results, write_results
from fedunlearn.benchmark import results as stored_results
from fedunlearn.benchmark.plan import METHODS, PROTOCOL, registered_by
from fedunlearn.comparison import read_comparison
from fedunlearn.record import read_json
from fedunlearn.report.trials import score_beside


@contextmanager
def unseen(what: str):
    yield lambda event: None


def rows_of(path: Path) -> dict[tuple[str, str], dict]:
    return {(row["request"], row["method"]): row for row in read_results(path)["results"]}


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


def test_a_method_is_tuned_by_trials_that_are_not_judged(submission):
    trials = [name for name in submission.ran if "/trials/" in name]
    assert {name.split("/")[0] for name in trials} == {"clean", "backdoored"}
    assert {read_json(submission.runs / name / "experiment.json")["seed"] for name in trials} == {10}
    place = submission.runs / "clean/trials"
    scores = {
        rate: score_beside(place / "step-back" / rate, place / "retraining") for rate in ("0.01", "0.1")
    }
    best = max(scores, key=lambda rate: scores[rate])
    assert rows_of(submission.results)["successive", "step-back"]["rate"] == float(best)
    assert rows_of(submission.results)["clean", "retrain"]["rate"] is None


def test_a_trial_is_scored_by_its_distance_to_retraining(submission, tmp_path):
    place = submission.runs / "clean/trials"
    last = [
        json.loads((place / name / "metrics.jsonl").read_text().splitlines()[-1])
        for name in ("step-back/0.1", "retraining")
    ]
    expected = last[0]["r_seen"] - abs(last[0]["forget_acc"] - last[1]["forget_acc"])
    assert score_beside(place / "step-back/0.1", place / "retraining") == pytest.approx(expected)


def test_results_say_what_a_cell_cost_and_what_the_audit_found(submission):
    found = rows_of(submission.results)
    row, standard = found["clean", "step-back"], found["clean", "retrain"]
    assert (
        row["model_sha256"]
        == read_json(submission.runs / "clean/seed-11/step-back/outcome.json")["model_sha256"]
    )
    assert row["status"] == "done"
    assert row["verdict"] is not None
    assert 0 < row["r_acc"] <= 1
    assert row["asr"] is None
    assert found["backdoored", "step-back"]["asr"] is not None
    # Two rounds of a retraining that takes four, and two requests of two rounds each.
    assert standard["work"] == 0.5
    assert found["successive", "step-back"]["rounds"] == 4
    assert found["clean", "omega0"]["verdict"] is not None


def test_a_request_that_a_method_cannot_answer_is_refused_and_the_rest_goes_on(small_protocol):
    wanted = protocol(["fupga"])
    assert ("successive", "fupga") in wanted.refused
    assert "fupga" in wanted.columns["clean"]
    rows = gather(wanted, small_protocol / "nothing")["results"]
    assert [(row["request"], row["status"]) for row in rows] == [("successive", "refused")]
    assert "second request" in rows[0]["reason"]


def test_a_cell_of_a_submission_is_run_again_to_the_same_model(submission, tmp_path):
    told = check_results(submission.results, 1, tmp_path, unseen, workers=1)
    assert len(told) == 1
    assert "step-back: the same model" in told[0]


def changed(path: Path, tmp_path: Path, change) -> Path:
    """A copy of the results in which somebody has changed something, digests included."""
    found = json.loads(path.read_text())
    change(found)
    for row in found["results"]:
        row["digest"] = stored_results.row_digest(row)
    copy = tmp_path / path.name
    write_results(copy, found)
    return copy


def test_a_forged_model_does_not_pass_the_check(submission, tmp_path):
    def forge(found):
        for row in found["results"]:
            row["model_sha256"] = "0" * 64

    forged = changed(submission.results, tmp_path, forge)
    (tmp_path / "step_back.py").write_bytes(submission.file.read_bytes())
    with pytest.raises(FedUnlearnError, match="ended in another model"):
        check_results(forged, 1, tmp_path / "runs", unseen, workers=1)


def test_a_changed_number_breaks_the_digest(submission, tmp_path):
    text = submission.results.read_text()
    row = json.loads(next(line for line in text.splitlines() if '"verdict": "' in line).rstrip(","))
    copy = tmp_path / "results.json"
    copy.write_text(text.replace(f'"r_acc": {row["r_acc"]}', '"r_acc": 0.99'))
    with pytest.raises(FedUnlearnError, match="changed after it was written: the digest of"):
        read_results(copy)


def test_another_file_than_the_submitted_one_is_refused(submission, tmp_path):
    copy = changed(submission.results, tmp_path, lambda found: None)
    (tmp_path / "step_back.py").write_text(submission.file.read_text() + "\n# changed\n")
    with pytest.raises(FedUnlearnError, match=r"registered twice|is not the file"):
        check_results(copy, 1, tmp_path / "runs", unseen, workers=1)


def test_results_of_another_kind_of_machine_or_protocol_are_not_compared(submission, tmp_path):
    def elsewhere(found):
        for there in found["environments"].values():
            there["cpu_capability"] = "abacus"

    with pytest.raises(FedUnlearnError, match=r"abacus.*check it on a machine of that kind"):
        check_results(changed(submission.results, tmp_path, elsewhere), 1, tmp_path / "runs", unseen)
    other = changed(submission.results, tmp_path, lambda found: found.update(protocol="0" * 64))
    with pytest.raises(FedUnlearnError, match="another version of the protocol"):
        read_results(other)


@pytest.mark.parametrize(
    ("content", "told"),
    [("", "is not JSON"), ("[]", "holds no results"), ('{"format": "x"}', "holds no results")],
)
def test_a_file_that_holds_no_results_is_refused(tmp_path, content, told):
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(FedUnlearnError, match=told):
        read_results(tmp_path / "x.json")


def test_merged_results_have_the_cells_of_all_files(submission, tmp_path):
    def renamed(found):
        for row in found["results"]:
            row["method"] = row["method"].replace("step-back", "other")
        found["methods"]["other"] = found["methods"].pop("step-back")

    both = merge([submission.results, changed(submission.results, tmp_path, renamed)])
    one = read_results(submission.results)["results"]
    mine = sum(row["method"] == "step-back" for row in one)
    assert len(both["results"]) == len(one) + mine
    assert {"step-back", "other", "retrain"} <= both["methods"].keys()


def test_a_file_that_registers_nothing_is_refused(tmp_path):
    (tmp_path / "empty.py").write_text("")
    with pytest.raises(FedUnlearnError, match="registers no new method"):
        registered_by(tmp_path / "empty.py")


def test_the_packaged_protocol_is_a_file_of_the_package():
    assert PROTOCOL.parent.name == "experiments"
