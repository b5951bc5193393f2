"""Run folders and comparisons as values: what their files say, checked before anything is shown."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ..core import FedUnlearnError, Metrics, Status
from ..record import AMENDS, public, read_json, read_outcome
from .tables import measured, verdict

TABLES = ("data", "request", "training", "pretraining", "unlearning", "recovery")


@dataclass(frozen=True)
class Run:
    """What the files of one run say; ``outcome`` is empty while it has not ended."""

    folder: Path
    config: Mapping[str, Any]
    environment: Mapping[str, Any]
    outcome: Mapping[str, Any]
    rows: Sequence[Metrics]

    @cached_property
    def evaluated(self) -> list[Metrics]:
        return [row for row in self.rows if "r_acc" in row]

    @cached_property
    def turn(self) -> float:
        """The round that ended unlearning, or the last so far; 0 where there is none."""
        return max((float(row["elapsed"]) for row in self.rows if row["stage"] == "unlearning"), default=0.0)

    @property
    def ended(self) -> bool:
        return bool(self.outcome)

    @property
    def failed(self) -> bool:
        return self.ended and Status(self.outcome["status"]).failed

    @property
    def standing(self) -> str:
        """How the run stands, in plain words."""
        if self.ended:
            status = str(self.outcome["status"]).replace("_", " ")
            return f"{status}: {self.outcome['reason']}" if self.outcome.get("reason") else status
        if not self.rows:
            return "unfinished: nothing measured yet"
        last = self.rows[-1]
        if last["stage"] == "start":
            return "unfinished: no round is over yet"
        return f"unfinished: {last['stage']}, round {last['round']} so far"

    @property
    def verdict(self) -> str:
        if not self.evaluated:
            return "Nothing has been measured yet."
        return verdict(self.folder)


@dataclass(frozen=True)
class Collection:
    """Runs by the name of their row; a comparison has one for each seed."""

    name: str
    rows: Mapping[str, Sequence[Run]]
    comparison: bool

    @property
    def runs(self) -> list[Run]:
        return [run for runs in self.rows.values() for run in runs]


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
    config, environment = _recall(folder / "experiment.json"), _recall(folder / "environment.json")
    sound = isinstance(config.get("seed", 0), int) and all(
        isinstance(config.get(key, {}), dict) for key in TABLES
    )
    if not sound:
        raise FedUnlearnError(f"{folder / 'experiment.json'} is not what a run writes: {AMENDS}")
    outcome = read_outcome(folder) if (folder / "outcome.json").exists() else {}
    rows = measured(folder) if outcome or (folder / "metrics.jsonl").exists() else []
    return Run(folder, public(config), environment, outcome, rows)


def setting(config: Mapping[str, Any], *keys: str) -> Any:
    """A value deep in a configuration; None where an older one has no such key."""
    value: Any = config
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def flat(config: Mapping[str, Any], above: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    """A configuration as values by their path; tables that hold nothing vanish."""
    values: dict[tuple[str, ...], Any] = {}
    for key, value in config.items():
        values |= flat(value, (*above, key)) if isinstance(value, Mapping) else {(*above, key): value}
    return values


def nested(values: Mapping[tuple[str, ...], Any]) -> dict[str, Any]:
    """The way back from ``flat``."""
    config: dict[str, Any] = {}
    for path, value in values.items():
        table = config
        for key in path[:-1]:
            table = table.setdefault(key, {})
        table[path[-1]] = value
    return config


def shared(configs: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """What all configurations have in common."""
    first, *others = [flat(config) for config in configs]
    return nested(
        {
            path: value
            for path, value in first.items()
            if all(path in other and other[path] == value for other in others)
        }
    )


def typical(configs: Sequence[Mapping[str, Any]]) -> dict[tuple[str, ...], Any]:
    """For every path that all configurations have, the value that most of them have there."""
    values = [flat(config) for config in configs]
    found = {}
    for path in values[0]:
        if all(of.get(path) is not None for of in values):
            texts = [json.dumps(of[path], sort_keys=True) for of in values]
            found[path] = values[texts.index(max(texts, key=texts.count))][path]
    return found


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


def _recall(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    value = read_json(path)
    if not isinstance(value, dict):
        raise FedUnlearnError(f"{path} holds no table of values: restore it")
    return value
