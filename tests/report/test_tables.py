from __future__ import annotations

import json

import pytest
from support.codes import refused

from fedunlearn.report import (
    collect,
    comparison_tables,
    markdown,
    read_run,
    stage_table,
    verdict,
)


def change(folder, **values):
    """The same run with other values in every evaluated row."""
    path = folder / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(row | values) + "\n" for row in rows))


def test_a_stage_is_its_last_evaluated_round(folder):
    rows = read_run(folder).stages
    assert list(rows) == ["ω⁰", "unlearned", "post-trained"]
    assert [row["elapsed"] for row in rows.values()] == [0, 3, 5]
    assert [row["asr"] for row in rows.values()] == [0.9, 0.0, 0.02]


def test_a_line_cut_off_by_a_kill_does_not_count(folder):
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"stage": "post-training", "r_acc": 0.1')
    assert read_run(folder).stages["post-trained"]["r_acc"] == 0.85


def test_tables_and_sentences_write_a_number_alike(folder):
    run = read_run(folder)
    for row in stage_table(run)[1:]:
        for cell in (row[1], row[2]) if row[0] != "unlearned" else ():
            assert cell in verdict(run)


def test_markdown_has_the_same_cells(folder):
    header, rule, *lines = markdown(stage_table(read_run(folder))).splitlines()
    assert header.count("|") == rule.count("|") == lines[0].count("|")
    assert lines[2].startswith("| post-trained | 2.0% | 85.0% |")


def test_the_verdict_says_what_happened_to_both_sides(folder):
    assert verdict(read_run(folder)) == (
        "The backdoor of the target works on 2.0% of the triggered data (before the request: 90.0%). "
        "The accuracy of the retained clients went from 80.0% to 85.0%; "
        "that of the worst client from 70.0% to 75.0%."
    )


def test_the_verdict_names_who_is_forgotten(folder):
    config = json.loads((folder / "experiment.json").read_text())
    retained = {f"r_acc client-{number}": 0.5 for number in range(10) if number != 3}
    change(folder, **retained)
    assert "The backdoor of client-3 works" in verdict(read_run(folder))
    config["request"]["targets"] = ["client-1", "client-2"]
    (folder / "experiment.json").write_text(json.dumps(config))
    assert "The backdoor of client-1, client-2 works" in verdict(read_run(folder))
    change(folder, **{"asr client-7": 0.1})
    assert "The backdoor of client-7 works" in verdict(read_run(folder))


def test_without_a_backdoor_the_forgotten_data_itself_is_shown(folder):
    path = folder / "metrics.jsonl"
    path.write_text(path.read_text().replace('"asr"', '"forget_acc"'))
    run = read_run(folder)
    assert "The model is right on 2.0% of the forgotten data" in verdict(run)
    assert "Compare Forget acc with a retrain run: no value is good in itself." in verdict(run)
    assert "Forget acc" in stage_table(run)[0]
    assert "ASR" not in stage_table(run)[0]


def test_what_comes_back_is_a_relapse(folder):
    path = folder / "metrics.jsonl"
    assert "relapsed" not in verdict(read_run(folder))
    path.write_text(path.read_text().replace('"asr": 0.02', '"asr": 0.8'))
    assert "Forgetting relapsed: ASR was 0.0% after unlearning and is 80.0% at the end." in verdict(
        read_run(folder)
    )


def test_where_there_was_no_backdoor_nothing_can_be_concluded(folder):
    path = folder / "metrics.jsonl"
    path.write_text(path.read_text().replace('"asr": 0.9', '"asr": 0.01'))
    assert "Nothing can be concluded about forgetting" in verdict(read_run(folder))


def test_scores_of_another_task_are_shown_under_their_own_name(folder):
    path = folder / "metrics.jsonl"
    text = path.read_text().replace('"asr"', '"forget_mse"').replace('"r_acc', '"r_mse')
    path.write_text(text.replace('"target_acc"', '"target_mse"'))
    run = read_run(folder)
    header, *_, last = stage_table(run)
    shown = dict(zip(header, last, strict=True))
    assert (shown["Forget MSE"], shown["R-MSE"], shown["Target MSE"]) == ("0.020", "0.850", "0.500")
    assert "The MSE of the retained clients went from 0.800 to 0.850" in verdict(run)
    results, *_ = comparison_tables({"mine": [run]})
    assert results[0][1:4] == ["Forget MSE¹", "R-MSE¹", "Worst R-MSE¹"]


def test_coverage_is_shown_where_not_everybody_was_heard(folder):
    change(folder, coverage=1.0)
    assert "Coverage" not in stage_table(read_run(folder))[0]
    change(folder, coverage=0.6)
    run = read_run(folder)
    assert "Coverage" in stage_table(run)[0]
    assert "Only 60% of the retained clients replied." in verdict(run)
    results, *_ = comparison_tables({"mine": [run]})
    assert "Coverage" in results[0]


def test_the_verdict_of_a_run_that_never_left_its_start(folder):
    path = folder / "metrics.jsonl"
    path.write_text(path.read_text().splitlines(keepends=True)[0])
    assert "from 80.0% to 80.0%" in verdict(read_run(folder))


def test_a_run_that_ended_and_lost_its_metrics_is_no_new_one(folder):
    (folder / "metrics.jsonl").unlink()
    with refused("missing", says=r"has no metrics\.jsonl"):
        read_run(folder)


def test_a_run_that_ended_with_empty_metrics_is_damaged(folder):
    (folder / "metrics.jsonl").write_text("")
    with refused("invalid", says=r"metrics\.jsonl is empty although the run has ended: restore the file"):
        read_run(folder)
    (folder / "outcome.json").unlink()
    assert verdict(read_run(folder)) == "Nothing has been measured yet."


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"unlearning": {"lr": "fast", "rounds": 3}}, "unlearning.lr must be a number, not 'fast'"),
        ({"unlearning": {"lr": 0.1, "rounds": [3]}}, "unlearning.rounds must be a number"),
        ({"training": {"decay": "slow"}}, "training.decay must be a number"),
        ({"data": {"clients": "ten"}}, "data.clients must be a number"),
        ({"recovery": {"lr": 10**400, "rounds": 1}}, "recovery.lr must be a number"),
        ({"seed": "x"}, "seed must be a number"),
    ],
)
def test_a_configuration_with_something_else_for_a_number_is_one_sentence(folder, changes, sentence):
    config = json.loads((folder / "experiment.json").read_text())
    (folder / "experiment.json").write_text(json.dumps(config | changes))
    with refused("invalid", says=sentence):
        collect([folder])


def test_a_folder_without_a_run_is_refused(tmp_path):
    with refused("invalid", says="name the folder of a run, of a comparison or of a"):
        collect([tmp_path])
