"""SIGKILL at random moments of a whole experiment: what is resumed ends in the same bits."""

from __future__ import annotations

import json
import multiprocessing
import time
from pathlib import Path

import pytest
import torch

from fedunlearn.core.seeds import generator
from fedunlearn.experiment import check, perform
from fedunlearn.record import read_metrics

KILLS = 20
EXPERIMENT = check(
    {
        "name": "kill",
        "model": "lenet5",
        "data": {"dataset": "fashion-demo", "partition": "pat-50", "clients": 4, "fraction": 0.05},
        "training": {"batch_size": 20},
        "pretraining": {"rounds": 8, "lr": 0.05, "evaluate_every": 3},
        "unlearning": {"rounds": 8, "lr": 0.01},
        "recovery": {"rounds": 8, "lr": 0.01},
    },
    "test",
)


def work(folder: Path, cache: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDUNLEARN_CACHE", str(cache))
        perform(EXPERIMENT, folder, checkpoint_seconds=0)


def ended(folder: Path, cache: Path, after: float | None) -> None:
    """Works in a process of its own, which is killed after so many seconds."""
    process = multiprocessing.get_context("fork").Process(target=work, args=(folder, cache))
    process.start()
    process.join(after)
    process.kill()
    process.join()


def timeless(folder: Path) -> list[dict[str, object]]:
    return [
        {key: value for key, value in row.items() if not key.startswith("seconds")}
        for row in read_metrics(folder)
    ]


def test_runs_killed_at_random_moments_end_in_the_same_model(tmp_path):
    started = time.monotonic()
    ended(tmp_path / "whole", tmp_path / "whole-cache", None)
    duration = time.monotonic() - started
    expected = json.loads((tmp_path / "whole" / "outcome.json").read_text())
    assert expected["status"] == "done"

    random = generator("kills")
    equal = interrupted = 0
    for number in range(KILLS):
        folder, cache = tmp_path / f"run-{number}", tmp_path / f"cache-{number}"
        times = 1 + (number % 4 == 0)
        for _ in range(times):
            ended(folder, cache, duration * float(torch.rand((), generator=random)))
            interrupted += not (folder / "outcome.json").exists()
        if not (folder / "outcome.json").exists():
            ended(folder, cache, None)
        outcome = json.loads((folder / "outcome.json").read_text())
        equal += outcome == expected and timeless(folder) == timeless(tmp_path / "whole")
    assert interrupted >= KILLS // 2, "too few kills hit a running process for this test to mean anything"
    assert equal == KILLS
