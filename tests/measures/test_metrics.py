"""The one table of metrics: what runs write is in it, and what it does not know is shown nevertheless."""

from __future__ import annotations

import pytest
import torch

from fedunlearn.core import Outcome, State, Status
from fedunlearn.core.scores import forgetting_key, headline, utility_key
from fedunlearn.experiment import check, perform
from fedunlearn.measures.metrics import METRICS, metric
from fedunlearn.runs import read_metrics

SMALL = {
    "data": {"clients": 4, "fraction": 0.02},
    "training": {"batch_size": 20},
    "pretraining": {"rounds": 1, "lr": 0.05},
    "unlearning": {"rounds": 1, "lr": 0.01},
    "recovery": {"rounds": 1, "lr": 0.01},
}


def test_every_number_of_a_run_is_explained(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDUNLEARN_CACHE", str(tmp_path / "cache"))
    perform(check(SMALL, "small"), tmp_path / "run", workers=1)
    rows = read_metrics(tmp_path / "run")
    keys = {key.partition(" ")[0] for row in rows for key, value in row.items() if not isinstance(value, str)}
    assert {"asr", "r_acc", "bytes_up"} <= keys
    assert keys <= METRICS.keys()
    assert all(of.title and of.help.endswith(".") for of in METRICS.values())


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("asr", 0.9634, "96.3%"),
        ("distance", 1.23456, "1.235"),
        ("conflicts", 0.4, "0.40"),
        ("bytes_up", 1_234_567_890, "1,235 MB"),
        ("bytes_up", 1_234_567, "1.2 MB"),
        ("bytes_up", 640_000, "640 KB"),
        ("seconds", 0.0123, "0.012"),
        ("seconds", 12.3, "12"),
        ("r_acc client-3", 0.5, "50.0%"),
        ("forget_mse", 0.12345, "0.123"),
    ],
)
def test_a_value_is_written_by_its_metric(key, value, text):
    assert metric(key).text(value) == text


@pytest.mark.parametrize(
    ("key", "title", "better"),
    [
        ("r_acc client-3", "R-Acc client-3", "higher"),
        ("r_mse", "R-MSE", "lower"),
        ("r_mse_worst", "Worst R-MSE", "lower"),
        ("forget_mse", "Forget MSE", "retraining"),
        ("target_top_5", "Target top 5", "none"),
        ("my_own_number", "my own number", "none"),
    ],
)
def test_keys_beyond_the_table_get_a_name_of_their_own(key, title, better):
    assert (metric(key).title, metric(key).better) == (title, better)


def test_what_is_remembered_and_what_is_kept_are_found_in_any_task():
    assert forgetting_key(["forget_acc", "asr", "r_acc"]) == "asr"
    assert forgetting_key(["forget_mse", "forget_mse client-1"]) == "forget_mse"
    assert utility_key(["r_seen", "r_acc_worst", "r_acc client-1"]) is None
    assert utility_key(["r_seen", "r_mse_std", "r_mse"]) == "r_mse"
    assert forgetting_key(["distance"]) is None


@pytest.mark.parametrize(
    ("keys", "shown"),
    [
        (["loss_target", "asr", "r_acc"], ["asr", "r_acc"]),
        (["target_acc", "r_acc", "forget_acc", "loss_target", "train_loss_target"], ["loss_target", "r_acc"]),
        (["target_acc", "r_acc", "forget_acc"], ["forget_acc", "r_acc"]),
        (["target_acc", "r_acc", "train_loss_target"], ["train_loss_target", "r_acc"]),
        (["target_acc", "r_acc"], ["r_acc"]),
        (["train_loss_target", "distance"], []),
    ],
)
def test_a_line_is_headed_by_what_shows_forgetting(keys, shown):
    assert headline(keys) == shown


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (
            [{"elapsed": 0, "asr": 0.9, "forget_acc": 0.8, "r_acc": 0.5}],
            "0 rounds, asr 0.900 → 0.900, forget_acc 0.800 → 0.800, r_acc 0.500 → 0.500, 1 warning>",
        ),
        (
            [{"elapsed": 0, "forget_mse": 1, "r_mse": 2.0}, {"elapsed": 1, "forget_mse": 3.0, "r_mse": 4.0}],
            "1 round, forget_mse 1.000 → 3.000, r_mse 2.000 → 4.000, 1 warning>",
        ),
        ([{"elapsed": 2, "forget_acc": 0.5}], "2 rounds, forget_acc 0.500 → 0.500, 1 warning>"),
        ([], "no rounds, 1 warning>"),
    ],
)
def test_an_outcome_shows_the_scores_that_were_measured(rows, said):
    outcome = Outcome(State(torch.zeros(1)), Status.DONE, "", tuple(rows), warnings=("something",))
    assert repr(outcome).startswith(f"<Outcome: done, {said}")
