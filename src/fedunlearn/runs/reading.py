"""The files of a run folder, read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..core import FedUnlearnError, Metrics, Status
from .manifest import METRICS, RECOVERY_HINT, read_manifest


def earlier(folder: Path, number: int) -> Path:
    """Return the folder of a successive request before the last; requests count from 1."""
    return folder / "earlier" / str(number)


def read_json(path: Path) -> Any:
    """Read a file of a run folder written by ``write_json``."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError:
        folder = path.parent
        if not folder.is_dir():
            raise FedUnlearnError(
                f"{folder} does not exist: name the folder of a run", code="missing"
            ) from None
        inside = sorted(found.parent for found in folder.glob(f"*/{path.name}"))
        run = f"one of the runs in it, such as {inside[-1]}" if inside else "the folder of a run"
        raise FedUnlearnError(
            f"{folder} has no {path.name}, so it is not a run folder, or it is damaged: name {run}",
            code="missing",
        ) from None
    except (ValueError, RecursionError) as error:
        raise FedUnlearnError(f"{path} is not JSON ({error}): {RECOVERY_HINT}", code="damaged") from None


def read_outcome(folder: Path) -> dict[str, Any]:
    """Read how the run in a folder ended."""
    ended = read_json(folder / "outcome.json")
    if (
        not isinstance(ended, dict)
        or ended.get("status") not in list(Status)
        or not isinstance(ended.get("model_sha256"), str)
        or not isinstance(ended.get("warnings", []), list)
        or not isinstance(ended.get("guards", {}), dict)
    ):
        raise FedUnlearnError(
            f"{folder / 'outcome.json'} does not say how the run ended: {RECOVERY_HINT}", code="damaged"
        )
    return ended


def public(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration without paths, which do not affect results and may name a person."""

    def cleaned(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: cleaned(item) for key, item in value.items() if key not in ("directory", "path")}
        return [cleaned(item) for item in value] if isinstance(value, list) else value

    return {key: cleaned(value) for key, value in config.items()}


def read_metrics(folder: Path) -> list[Metrics]:
    """Read the rows that a run has written so far; an incomplete last line is ignored.

    So are rows after the last checkpoint of a run that was killed: it repeats them when it is resumed.
    """
    path = folder / METRICS
    if not path.exists():
        raise FedUnlearnError(
            f"{folder} has no metrics.jsonl, so it is not a run folder: name the folder of a run",
            code="missing",
        )
    manifest = read_manifest(folder)
    content = path.read_bytes()
    if manifest is not None:
        listed = manifest.files.get(METRICS)
        content = content[: listed.size if listed else 0]
    rows: list[Metrics] = []
    for number, line in enumerate(content.splitlines(keepends=True), 1):
        if line.endswith(b"\n"):
            try:
                rows.append(json.loads(line))
            except (ValueError, RecursionError) as error:
                raise FedUnlearnError(
                    f"{path}, line {number} is not JSON ({error}): restore it, or run again in "
                    "another folder",
                    code="damaged",
                ) from None
    return rows
