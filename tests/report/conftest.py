from __future__ import annotations

import json
from pathlib import Path

import pytest

ROWS = [
    {"phase": 0, "stage": "start", "round": 0, "elapsed": 0, "distance": 0.0, "asr": 0.9, "r_acc": 0.8},
    {"phase": 0, "stage": "unlearning", "round": 1, "elapsed": 1, "distance": 0.4, "conflicts": 0},
    {
        "phase": 0,
        "stage": "unlearning",
        "round": 2,
        "elapsed": 2,
        "distance": 0.5,
        "conflicts": 1,
        "asr": 0.1,
        "r_acc": 0.7,
    },
    {
        "phase": 0,
        "stage": "unlearning",
        "round": 3,
        "elapsed": 3,
        "distance": 0.6,
        "conflicts": 0,
        "asr": 0.0,
        "r_acc": 0.6,
    },
    {"phase": 1, "stage": "post-training", "round": 1, "elapsed": 4, "distance": 0.7, "conflicts": 2},
    {
        "phase": 1,
        "stage": "post-training",
        "round": 2,
        "elapsed": 5,
        "distance": 0.8,
        "conflicts": 3,
        "asr": 0.02,
        "r_acc": 0.85,
    },
]


def spread(row: dict[str, object]) -> dict[str, object]:
    if "r_acc" not in row:
        return row
    mean = float(str(row["r_acc"]))
    return {
        **row,
        "target_acc": 0.5,
        "r_acc_std": 0.05,
        "r_acc_worst": mean - 0.1,
        "r_acc_best": mean + 0.1,
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run folder as a run leaves it, made by hand: reports know nothing but files."""
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(spread(row)) + "\n" for row in ROWS))
    config = {
        "name": "made",
        "seed": 3,
        "method": "fedosd",
        "model": "mlp",
        "request": {"level": "client"},
        "data": {"clients": 10, "dataset": "fashion-demo", "partition": "pat-20"},
    }
    (tmp_path / "experiment.json").write_text(json.dumps(config))
    (tmp_path / "environment.json").write_text(json.dumps({"torch": "2.13.0"}))
    (tmp_path / "outcome.json").write_text(
        json.dumps({"status": "done", "reason": "", "model_sha256": "abc123"})
    )
    return tmp_path
