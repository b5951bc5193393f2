"""Folders of runs and comparisons: their files, read once and validated."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from numbers import Real
from pathlib import Path
from typing import Any

from ..core import FedUnlearnError, Metrics
from ..measures.metrics import METRICS
from ..runs import (
    RECOVERY_HINT,
    earlier,
    public,
    read_json,
    read_metrics,
    read_outcome,
    tell_unverified,
    verify,
)
from .runs import STAGES, Collection, Run
from .settings import flat, setting

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
"""Settings that reports use as numbers."""

EXAMPLES = ("request", "examples")
MEMORIES = ("server.json", "answered.json")
"""The requests of a ``Server``, and of ``forget``, in their order."""


def collect(folders: Sequence[Path]) -> Collection:
    """The runs in these folders; each is the folder of a run, a comparison, a column or a ``Server``."""
    found = {place: _rows(place) for folder in dict.fromkeys(folders) for place in _columns(folder)}
    every = [run for rows in found.values() for runs in rows.values() for run in runs]
    tell_unverified(run.folder for run in every if not run.verified)
    members = [told for folder in dict.fromkeys(folders) for told in _members(folder, every)]
    if len(found) == 1:
        (folder, rows), *_ = found.items()
        name, place = next(iter(rows.values()))[0].config.get("name"), folder.resolve().name
        alone = _is_run(folder) or place.startswith(str(name))
        return Collection(
            f"{name}, {place}" if name and not alone else str(name or place),
            rows,
            comparison=not _is_run(folder),
            members=members,
        )
    labels = _labels(found)
    rows = {
        labels[folder] if _is_run(folder) else f"{labels[folder]}/{row}": runs
        for folder, by_row in found.items()
        for row, runs in by_row.items()
    }
    kind = "runs" if all(len(runs) == 1 for runs in rows.values()) else "rows"
    place = f"{folders[0].resolve().name}, " if len({*folders}) == 1 else ""
    return Collection(f"{place}{len(rows)} {kind}", rows, comparison=False, members=members)


def _members(folder: Path, runs: Sequence[Run]) -> Iterator[str]:
    """Say who is out and who has joined anew, by the memory of a ``Server`` or of ``forget``."""
    path = next((path for name in MEMORIES if (path := folder / name).exists()), None)
    if path is None:
        return
    verify(folder, only=path.name)
    out: dict[str, str] = {}
    back: dict[str, str] = {}
    parts = {name: rows for run in runs for name, rows in (setting(run.config, *EXAMPLES) or {}).items()}
    try:
        for entry in read_json(path):
            joined = entry.get("kind") == "rejoin"
            for target in entry["targets"] if entry.get("kind") != "train" else ():
                held = len(parts.get(target, ()))
                (out if joined else back).pop(target, "")
                (back if joined else out)[target] = (
                    f"{held} example{'s' * (held > 1)} of {target.partition('#')[0]}" if held else target
                )
    except (AttributeError, KeyError, TypeError):
        raise FedUnlearnError(f"{path} is damaged: {RECOVERY_HINT}") from None
    if out:
        yield f"Forgotten, and left out of every later step: {', '.join(out.values())}."
    if back:
        yield f"Forgotten, and joined anew since: {', '.join(back.values())}."


def read_run(folder: Path) -> Run:
    """Reads a run folder and compares it with its manifest; without one, missing files are read as empty."""
    manifest = verify(folder)
    config, environment = _read_table(folder / "experiment.json"), _read_table(folder / "environment.json")
    _check_config(config, folder / "experiment.json")
    outcome = read_outcome(folder) if (folder / "outcome.json").exists() else {}
    started = (folder / "metrics.jsonl").exists() or (outcome and not earlier(folder, 1).exists())
    rows = _read_rows(folder) if started else []
    verified = manifest is not None and manifest.verified
    run = _with_earlier(Run(folder, public(config), environment, outcome, rows, verified))
    if outcome and not run.rows:
        raise FedUnlearnError(
            f"{folder / 'metrics.jsonl'} is empty although the run has ended: {RECOVERY_HINT}"
        )
    return run


def _with_earlier(run: Run) -> Run:
    """The run with its successive requests so far; the last is not begun before the others have ended."""
    found: list[Run] = []
    for number in range(1, run.requests):
        place = earlier(run.folder, number)
        if _is_run(place):
            found.append(read_run(place))
        elif run.rows:
            raise FedUnlearnError(
                f"{place} is missing, where an earlier request was recorded: {RECOVERY_HINT}"
            )
        else:
            break
    if run.rows or not found:
        return replace(run, earlier=found)
    return replace(run, rows=found[-1].rows, earlier=found[:-1])


def _check_config(config: Mapping[str, Any], path: Path) -> None:
    for key in TABLES:
        if not isinstance(config.get(key, {}), dict):
            raise FedUnlearnError(f"{path}: {key} must be a table of settings: {RECOVERY_HINT}")
    values = flat(config)
    for keys, kind in NUMBERS.items():
        value = values.get(keys)
        if value is not None and not (isinstance(value, kind) and _finite(value)):
            raise FedUnlearnError(
                f"{path}: {'.'.join(keys)} must be a number, not {value!r:.40}: {RECOVERY_HINT}"
            )


def _finite(value: Any) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _read_rows(folder: Path) -> list[Metrics]:
    rows = read_metrics(folder)
    for number, row in enumerate(rows, 1):
        if not _valid(row):
            raise FedUnlearnError(
                f"{folder / 'metrics.jsonl'}, line {number} is not a valid row of metrics: {RECOVERY_HINT}"
            )
    return rows


def _valid(row: Any) -> bool:
    """Whether a row has a stage, a round and a distance, and all its known metrics are numbers."""
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
    """The folder itself, or its subfolders that are columns of a comparison or steps of a ``Server``."""
    if _is_run(folder) or any(folder.glob("seed-*/*/experiment.json")):
        return [folder]
    columns = {path.parents[2] for path in folder.glob("*/seed-*/*/experiment.json")}
    columns |= {path.parent for path in folder.glob("*/experiment.json")}
    if not folder.exists():
        raise FedUnlearnError(
            f"{folder} does not exist: name the folder of a run, of a comparison or of a Server",
            code="missing",
        )
    if not columns:
        raise FedUnlearnError(
            f"{folder} has neither an experiment.json nor seed-N/ROW folders: name the folder of a run, of a "
            "comparison or of a Server"
        )
    return sorted(columns, key=_in_order)


def _in_order(folder: Path) -> list[str]:
    """What sorts step 10 after step 9."""
    return [part.zfill(9) if part.isdigit() else part for part in folder.name.split("-")]


def _is_run(folder: Path) -> bool:
    return (folder / "experiment.json").exists()


def _seed(run: Path) -> tuple[int, str]:
    number = re.fullmatch(r"seed-(\d+)", run.parent.name)
    return (int(number[1]) if number else -1, run.parent.name)


def _labels(folders: Iterable[Path]) -> dict[Path, str]:
    """Each folder's name, with as many parent folders as make the names distinct."""
    parts = {folder: folder.resolve().parts for folder in folders}
    depth = 1
    while len({path[-depth:] for path in parts.values()}) < len(set(parts.values())):
        depth += 1
    return {folder: "/".join(path[-depth:]) for folder, path in parts.items()}


def _read_table(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    value = read_json(path)
    if not isinstance(value, dict):
        raise FedUnlearnError(f"{path} is not a JSON object: {RECOVERY_HINT}")
    return value
