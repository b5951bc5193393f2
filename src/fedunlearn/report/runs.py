"""Run folders and comparisons as values: their files, read once and checked before anything is shown."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Real
from pathlib import Path
from statistics import fmean
from typing import Any

from ..core import FedUnlearnError, Metrics, Status
from ..measure.metrics import METRICS, client_of, forgetting_key, utility_key
from ..record import AMENDS, public, read_json, read_metrics, read_outcome
from .settings import flat, setting

STAGES = {
    "start": "ω⁰",
    "pre-training": "pre-trained",
    "unlearning": "unlearned",
    "post-training": "post-trained",
}
"""What tables call the model after each stage."""

TABLES = ("data", "request", "backdoor", "training", "pretraining", "unlearning", "recovery")
NUMBERS: dict[tuple[str, ...], type] = {
    ("seed",): int,
    ("data", "clients"): int,
    ("data", "fraction"): Real,
    ("backdoor", "pretrain_share"): Real,
    ("request", "share"): Real,
    ("training", "decay"): Real,
    **{
        (stage, key): kind
        for stage in ("pretraining", "unlearning", "recovery")
        for key, kind in (("rounds", int), ("lr", Real))
    },
}
"""Settings that reports calculate with or write as numbers."""


@dataclass(frozen=True)
class Run:
    """What the files of one run say; ``outcome`` is empty while the run has not ended."""

    folder: Path
    config: Mapping[str, Any]
    environment: Mapping[str, Any]
    outcome: Mapping[str, Any]
    rows: Sequence[Metrics]

    @property
    def seed(self) -> int:
        return int(self.config.get("seed", 0))

    @property
    def method(self) -> str:
        return str(self.config.get("method", ""))

    @cached_property
    def evaluated(self) -> list[Metrics]:
        """The rows of rounds after which the model was evaluated."""
        return [row for row in self.rows if utility_key(row) or forgetting_key(row)]

    @cached_property
    def forgetting(self) -> str | None:
        """The key of what tells how much is remembered."""
        return forgetting_key(key for row in self.evaluated for key in row)

    @cached_property
    def utility(self) -> str | None:
        """The key of what tells how useful the model is to the retained clients."""
        return utility_key(key for row in self.evaluated for key in row)

    @cached_property
    def stages(self) -> dict[str, Metrics]:
        """The last evaluated row of each stage by its name in tables; conflicts are the stage's mean."""
        last = {str(row["stage"]): row for row in self.evaluated}
        return {STAGES[stage]: {**row, **self._conflicts(stage)} for stage, row in last.items()}

    def _conflicts(self, stage: str) -> Metrics:
        counts = [
            float(row["conflicts"]) for row in self.rows if row["stage"] == stage and "conflicts" in row
        ]
        return {"conflicts": fmean(counts)} if counts else {}

    @cached_property
    def turn(self) -> float:
        """The round that ended unlearning, or the last so far; 0 where there is none."""
        return max((float(row["elapsed"]) for row in self.rows if row["stage"] == "unlearning"), default=0.0)

    @cached_property
    def targets(self) -> list[str]:
        """Who is forgotten: as the rows name them, as the request does, or whoever is not retained."""
        keys = dict.fromkeys(key for row in self.evaluated for key in row if " " in key)
        named = [client_of(key) for key in keys if key.startswith(("asr ", "forget_"))]
        if named:
            return list(dict.fromkeys(named))
        request = setting(self.config, "request", "targets")
        if isinstance(request, str | list):
            return [request] if isinstance(request, str) else [str(name) for name in request]
        retained = {client_of(key) for key in keys if key.startswith("r_")}
        everybody = [f"client-{number}" for number in range(setting(self.config, "data", "clients") or 0)]
        known = bool(retained) and retained <= {*everybody}
        return [name for name in everybody if name not in retained] if known else []

    @property
    def ended(self) -> bool:
        return bool(self.outcome)

    @property
    def failed(self) -> bool:
        return self.ended and Status(self.outcome["status"]).failed

    @property
    def standing(self) -> str:
        """How the run ended, or how far it is."""
        if self.ended:
            status = str(self.outcome["status"]).replace("_", " ")
            return f"{status}: {self.outcome['reason']}" if self.outcome.get("reason") else status
        if not self.rows:
            return "unfinished: nothing measured yet"
        last = self.rows[-1]
        if last["stage"] == "start":
            return "unfinished: no round is over yet"
        return f"unfinished: {last['stage']}, round {last['round']} so far"


@dataclass(frozen=True)
class Collection:
    """Runs by the name of their row; a comparison has one for each seed."""

    name: str
    rows: Mapping[str, Sequence[Run]]
    comparison: bool

    @property
    def runs(self) -> list[Run]:
        return [run for runs in self.rows.values() for run in runs]

    @cached_property
    def labelled(self) -> list[tuple[str, Run]]:
        """Every run with its row, and its seed where a row has several."""
        return [
            (f"{row}, seed {run.config.get('seed')}" if len(runs) > 1 else row, run)
            for row, runs in self.rows.items()
            for run in runs
        ]

    def select(self, places: Mapping[str, Sequence[Path]]) -> dict[str, list[Run]]:
        """The runs in these folders, by row; rows without any are left out."""
        found = {run.folder: run for run in self.runs}
        chosen = {row: [found[place] for place in of if place in found] for row, of in places.items()}
        return {row: runs for row, runs in chosen.items() if runs}


def collect(folders: Sequence[Path]) -> Collection:
    """The runs in some folders, each the folder of a run, of a comparison or of its columns."""
    found = {place: _rows(place) for folder in dict.fromkeys(folders) for place in _columns(folder)}
    if len(found) == 1:
        (folder, rows), *_ = found.items()
        name, place = next(iter(rows.values()))[0].config.get("name"), folder.resolve().name
        alone = _is_run(folder) or place.startswith(str(name))
        return Collection(
            f"{name}, {place}" if name and not alone else str(name or place),
            rows,
            comparison=not _is_run(folder),
        )
    labels = _labels(found)
    rows = {
        labels[folder] if _is_run(folder) else f"{labels[folder]}/{row}": runs
        for folder, of in found.items()
        for row, runs in of.items()
    }
    kind = "runs" if all(len(runs) == 1 for runs in rows.values()) else "rows"
    return Collection(f"{len(rows)} {kind}", rows, comparison=False)


def read_run(folder: Path) -> Run:
    """One run folder; what has not been written yet is empty."""
    config, environment = _read_table(folder / "experiment.json"), _read_table(folder / "environment.json")
    _check_config(config, folder / "experiment.json")
    outcome = read_outcome(folder) if (folder / "outcome.json").exists() else {}
    rows = _read_rows(folder) if outcome or (folder / "metrics.jsonl").exists() else []
    if outcome and not rows:
        raise FedUnlearnError(f"{folder / 'metrics.jsonl'} of a run that ended is empty: {AMENDS}")
    return Run(folder, public(config), environment, outcome, rows)


def _check_config(config: Mapping[str, Any], path: Path) -> None:
    for key in TABLES:
        if not isinstance(config.get(key, {}), dict):
            raise FedUnlearnError(f"{path}: {key} must be a table of settings: {AMENDS}")
    values = flat(config)
    for keys, kind in NUMBERS.items():
        value = values.get(keys)
        if value is not None and not (isinstance(value, kind) and _finite(value)):
            raise FedUnlearnError(f"{path}: {'.'.join(keys)} must be a number, not {value!r:.40}: {AMENDS}")


def _finite(value: Any) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _read_rows(folder: Path) -> list[Metrics]:
    rows = read_metrics(folder)
    for number, row in enumerate(rows, 1):
        if not _sound(row):
            raise FedUnlearnError(
                f"{folder / 'metrics.jsonl'}, line {number} is not what a run writes: {AMENDS}"
            )
    return rows


def _sound(row: Any) -> bool:
    """Whether a row has its stage, round and distance, and numbers wherever we know a metric."""
    return (
        isinstance(row, dict)
        and row.get("stage") in STAGES
        and row.keys() >= {"round", "elapsed", "distance"}
        and all(
            isinstance(value, Real)
            for key, value in row.items()
            if key.partition(" ")[0] in METRICS and key != "missing"  # may be a list of names
        )
    )


def _rows(folder: Path) -> dict[str, list[Run]]:
    if _is_run(folder):
        return {folder.resolve().name: [read_run(folder)]}
    found = [path.parent for path in folder.glob("seed-*/*/experiment.json")]
    rows: dict[str, list[Run]] = {}
    for path in sorted(found, key=lambda path: (path.name, _seed(path))):
        rows.setdefault(path.name, []).append(read_run(path))
    return rows


def _columns(folder: Path) -> list[Path]:
    """The folder itself, or those in it that are the columns of a comparison."""
    if _is_run(folder) or any(folder.glob("seed-*/*/experiment.json")):
        return [folder]
    columns = sorted({path.parents[2] for path in folder.glob("*/seed-*/*/experiment.json")})
    if not columns:
        raise FedUnlearnError(
            f"{folder} holds neither an experiment.json nor seed-N/ROW folders, so it is no run and "
            "no comparison: name the folder of one"
        )
    return columns


def _is_run(folder: Path) -> bool:
    return (folder / "experiment.json").exists()


def _seed(run: Path) -> tuple[int, str]:
    number = re.fullmatch(r"seed-(\d+)", run.parent.name)
    return (int(number[1]) if number else -1, run.parent.name)


def _labels(folders: Iterable[Path]) -> dict[Path, str]:
    """Each folder's name, with as many of the folders above it as it takes to tell them apart."""
    parts = {folder: folder.resolve().parts for folder in folders}
    depth = 1
    while len({of[-depth:] for of in parts.values()}) < len(set(parts.values())):
        depth += 1
    return {folder: "/".join(of[-depth:]) for folder, of in parts.items()}


def _read_table(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    value = read_json(path)
    if not isinstance(value, dict):
        raise FedUnlearnError(f"{path} holds no table of values: {AMENDS}")
    return value
