from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from support.audits import TARGET, before, marked, network, retrained

import fedunlearn as fu

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


CONFIG = {
    "name": "made",
    "seed": 3,
    "method": "fedosd",
    "model": "mlp",
    "request": {"level": "client"},
    "data": {"clients": 10, "dataset": "fashion-demo", "partition": "pat-20"},
}


def make(folder: Path, rows: list[dict[str, object]], **changes: object) -> Path:
    """A run folder as a run leaves it, made by hand: reports know nothing but files."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(spread(row)) + "\n" for row in rows))
    (folder / "experiment.json").write_text(json.dumps({**CONFIG, **changes}))
    (folder / "environment.json").write_text(json.dumps({"torch": "2.13.0"}))
    (folder / "outcome.json").write_text(
        json.dumps({"status": "done", "reason": "", "model_sha256": "abc123"})
    )
    return folder


def by_client(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    """Rows that tell the retained clients apart."""
    return [
        row | {f"r_acc client-{number}": float(str(row["r_acc"])) - 0.05 * number for number in (0, 2, 10)}
        if "r_acc" in row
        else row
        for row in rows
    ]


@pytest.fixture
def clients_run(tmp_path: Path) -> Path:
    return make(tmp_path / "clients", by_client(ROWS))


@pytest.fixture
def clients_comparison(tmp_path: Path) -> Path:
    for seed in (1, 2):
        for number, name in enumerate(("one", "two")):
            rows = [
                row if row["stage"] == "start" or "r_acc" not in row else row | {"r_acc": 0.9 - 0.1 * number}
                for row in ROWS
            ]
            make(tmp_path / "c" / f"seed-{seed}" / name, by_client(rows), method=name, seed=seed)
    return tmp_path / "c"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make(tmp_path, ROWS)


def compared(folder: Path, count: int = 3, seeds: int = 2) -> Path:
    """A comparison whose rows forget less and less, and cost more and more."""
    for seed in range(1, 1 + seeds):
        for number in range(count):
            rows = [{**row, "local_trainings": 10 * number, "bytes_up": 1e6, "seconds": 1.0} for row in ROWS]
            for row in rows[1:]:
                if "asr" in row:
                    row["asr"] = float(str(row["asr"])) + 0.1 * (number % 8) + 0.01 * seed
            if number == 1:
                rows = [row for row in rows if row["stage"] != "unlearning"]
            name = f"method-{number:02d}"
            make(folder / f"seed-{seed}" / name, rows, method=name, seed=seed)
    return folder


@pytest.fixture
def make_comparison() -> Callable[..., Path]:
    return compared


@pytest.fixture
def comparison(tmp_path: Path) -> Path:
    return compared(tmp_path / "comparison")


@cache
def evidence(kind: str) -> str:
    """The evidence of a real audit as text: of ω⁰ itself (``under``), or of a retraining (``equivalent``)."""
    model = before() if kind == "under" else retrained(21)
    found = fu.audit(
        fu.Sequential(network(), marked()),
        model,
        targets=TARGET,
        retrained=retrained(),
        original=before(),
        again=retrained(4),
        references=[retrained(5), retrained(6)],
    )
    assert found.verdict == kind
    made = {"made": "on demand", "rounds": 60}
    models = {
        "model": {"made": "run", "method": "fedosd", "rounds": 4, "sha256": "a" * 64},
        "original": {"made": "pre-training", "rounds": 60, "sha256": "b" * 64},
        "retrained": {**made, "number": 1, "sha256": "c" * 64},
        "again": {**made, "number": 2, "sha256": "d" * 64},
        "twin-1": {**made, "number": 1, "sha256": "e" * 64},
    }
    return json.dumps({**found.to_json(), "models": models})


@pytest.fixture
def audit_of() -> Callable[[str], dict[str, Any]]:
    """The contents of an ``evidence.json`` with this verdict."""
    return lambda kind: dict(json.loads(evidence(kind)))


@pytest.fixture
def audited(tmp_path: Path) -> Path:
    """A run with evidence that it forgot nothing."""
    folder = make(tmp_path / "audited", ROWS)
    (folder / "evidence.json").write_text(evidence("under"))
    return folder


@pytest.fixture
def audited_comparison(comparison: Path) -> Path:
    """A comparison whose first row is like retraining and whose others forgot nothing."""
    for seed in (1, 2):
        for number in range(3):
            kind = "equivalent" if number == 0 else "under"
            (comparison / f"seed-{seed}/method-{number:02d}/evidence.json").write_text(evidence(kind))
        for name, kind in (
            ("omega0", "under"),
            ("retraining-1", "equivalent"),
            ("retraining-2", "equivalent"),
        ):
            home = comparison / f"references/seed-{seed}" / name
            home.mkdir(parents=True)
            (home / "evidence.json").write_text(evidence(kind))
    return comparison
