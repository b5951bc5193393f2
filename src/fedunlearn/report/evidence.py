"""The evidence of an audit, read from a run folder."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..core import FedUnlearnError
from ..evidence import Evidence, Verdict
from ..runs import read_json, read_metrics, read_outcome, verify


def read_evidence(folder: Path) -> Evidence | None:
    """Return the evidence about the model in a run folder; None if it was not audited."""
    path = folder / "evidence.json"
    if not path.exists():
        return None
    verify(folder, only=path.name)
    try:
        found = Evidence.from_json(read_json(path))
        if "model" not in found.models:
            raise ValueError("models: no model is named")
    except ValueError as error:
        raise FedUnlearnError(
            f"{path} is not the evidence of an audit ({error}): delete it and audit the run again"
        ) from None
    return replace(found, models=_made(folder, found.models))


def _made(folder: Path, models: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """The models with what the runs beside this one tell of how those of the same hash were made."""
    if all("rounds" in how for how in models.values()):
        return dict(models)
    outcomes = [*folder.glob("outcome.json"), *folder.parent.glob("*/outcome.json")]
    outcomes += folder.parent.glob("*/seed-*/*/outcome.json")
    made = {}
    for path in reversed(outcomes):
        with suppress(FedUnlearnError):  # a damaged run beside this one says nothing about its model
            made[read_outcome(path.parent).get("model_sha256")] = path.parent
    return {
        name: {**_run(place), **how} if (place := made.get(how.get("sha256"))) else how
        for name, how in models.items()
    }


def _run(folder: Path) -> dict[str, Any]:
    """Return how a run made its model."""
    config, rows = read_json(folder / "experiment.json"), read_metrics(folder)
    rounds = {"rounds": int(rows[-1]["elapsed"])} if rows else {}
    made = {"made": "run", "method": config.get("method")} if "request" in config else {"made": "training"}
    return made | rounds


def verdict_text(verdict: Verdict | None) -> str:
    """A verdict as tables write it."""
    return "none" if verdict is None else verdict.replace("_", " ").upper()
