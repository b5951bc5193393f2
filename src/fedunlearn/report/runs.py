"""Runs and comparisons as values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

from ..core import Metrics, Status
from ..core.scores import forgetting_key, utility_key
from ..evidence.measures import EXACT
from ..measures.metrics import client_of
from .settings import setting

STAGES = {
    "start": "ω⁰",
    "pre-training": "pre-trained",
    "unlearning": "unlearned",
    "post-training": "post-trained",
}
"""The names of the models after each stage in tables."""


@dataclass(frozen=True)
class Run:
    """The contents of a run folder; ``outcome`` is empty until the run has ended.

    Of successive requests, the rows are those of the last one that was begun.
    """

    folder: Path
    config: Mapping[str, Any]
    environment: Mapping[str, Any]
    outcome: Mapping[str, Any]
    rows: Sequence[Metrics]
    verified: bool = False
    """Whether a manifest says that all files are as they were written."""
    earlier: Sequence[Run] = ()
    """Successive requests before the one that the rows are of."""

    @property
    def seed(self) -> int:
        return int(self.config.get("seed", 0))

    @property
    def method(self) -> str:
        return str(self.config.get("method", ""))

    @property
    def trains(self) -> bool:
        """Return whether the run is a training of a ``Server``, which answers no request."""
        return self.config.get("kind") == "server" and "request" not in self.config

    @property
    def retrains(self) -> bool:
        """Whether the method trains a new model, so that its rounds repair nothing."""
        return self.method in EXACT

    def stage(self, name: str) -> str:
        """Return the name of a stage; rounds that train a new model are recorded as post-training."""
        return "retraining" if self.retrains and name == "post-training" else name

    @property
    def all_rows(self) -> list[Metrics]:
        """The rows of all successive requests, whose costs add up."""
        return [row for run in (*self.earlier, self) for row in run.rows]

    @cached_property
    def evaluated(self) -> list[Metrics]:
        """The rows of the rounds in which the model was evaluated.

        Named examples have no test data of their own: the accuracy on that of their client is left out.
        """
        known = [row for row in self.rows if utility_key(row) or forgetting_key(row)]
        if not self.parts:
            return known
        return [{key: row[key] for key in row if key.partition(" ")[0] != "target_acc"} for row in known]

    @property
    def parts(self) -> Mapping[str, Sequence[int]]:
        """The named examples that are to be forgotten, by virtual client."""
        return setting(self.config, "request", "examples") or {}

    @cached_property
    def forgetting(self) -> str | None:
        """The key of the metric that shows how much the model remembers."""
        return forgetting_key(key for row in self.evaluated for key in row)

    @cached_property
    def utility(self) -> str | None:
        """The key of the metric that shows how useful the model is to the retained clients."""
        return utility_key(key for row in self.evaluated for key in row)

    @cached_property
    def stages(self) -> dict[str, Metrics]:
        """The last evaluated row of each stage, by its name in tables; conflicts are means over the stage."""
        last = {str(row["stage"]): row for row in self.evaluated}
        labels = {**STAGES, "start": self.origin}
        labels |= {"post-training": "retrained"} if self.retrains else {}
        return {labels[stage]: {**row, **self._conflicts(stage)} for stage, row in last.items()}

    @property
    def origin(self) -> str:
        """The name of the model that the rows start from."""
        if self.trains:
            return "start"
        return "before the last request" if self.earlier else STAGES["start"]

    def _conflicts(self, stage: str) -> Metrics:
        counts = [
            float(row["conflicts"]) for row in self.rows if row["stage"] == stage and "conflicts" in row
        ]
        return {"conflicts": fmean(counts)} if counts else {}

    @cached_property
    def turn(self) -> float:
        """The last round of unlearning so far, or 0."""
        return max((float(row["elapsed"]) for row in self.rows if row["stage"] == "unlearning"), default=0.0)

    @cached_property
    def targets(self) -> list[str]:
        """The clients to forget: those that the rows or the request name, else all that are not retained.

        Of successive requests, it is the one client that the rows are about.
        """
        keys = dict.fromkeys(key for row in self.evaluated for key in row if " " in key)
        named = [client_of(key) for key in keys if key.startswith(("asr ", "forget_"))]
        if named:
            return list(dict.fromkeys(named))
        request = setting(self.config, "request", "targets")
        if isinstance(request, str | list):
            names = [request] if isinstance(request, str) else [str(name) for name in request]
            return [list(dict.fromkeys(names))[len(self.earlier)]] if self.requests > 1 else names
        retained = {client_of(key) for key in keys if key.startswith("r_")}
        clients = [f"client-{number}" for number in range(setting(self.config, "data", "clients") or 0)]
        known = bool(retained) and retained <= {*clients}
        retained |= {name for run in self.earlier for name in run.targets}
        return [name for name in clients if name not in retained] if known else []

    @property
    def requests(self) -> int:
        """How many requests are answered one after the other."""
        targets = setting(self.config, "request", "targets")
        if not setting(self.config, "request", "successive"):
            return 1
        if isinstance(targets, list):
            return len({str(name) for name in targets})
        return targets if isinstance(targets, int) else 1

    @property
    def ended(self) -> bool:
        return bool(self.outcome)

    @property
    def failed(self) -> bool:
        return self.ended and Status(self.outcome["status"]).failed

    @property
    def standing(self) -> str:
        """How the run ended, or its progress."""
        if self.ended:
            status = str(self.outcome["status"]).replace("_", " ")
            if self.failed:
                kept = ", model unchanged" if self.config.get("kind") == "server" else ""
                status = f"failed ({status}){kept}"
            return f"{status}: {self.outcome['reason']}" if self.outcome.get("reason") else status
        if not self.rows:
            return "unfinished: no measurement yet"
        last = self.rows[-1]
        if last["stage"] == "start":
            return "unfinished: no finished round yet"
        return f"unfinished: {self.stage(str(last['stage']))}, round {last['round']} so far"


@dataclass(frozen=True)
class Collection:
    """Runs by row; a row of a comparison has one run per seed."""

    name: str
    rows: Mapping[str, Sequence[Run]]
    comparison: bool
    members: Sequence[str] = ()
    """Who has been forgotten and who has joined anew, in sentences, as the folder of a ``Server`` knows."""

    @property
    def runs(self) -> list[Run]:
        return [run for runs in self.rows.values() for run in runs]

    @cached_property
    def labelled(self) -> list[tuple[str, Run]]:
        """Every run with its row, and its seed if the row has several runs."""
        return [
            (f"{row}, seed {run.config.get('seed')}" if len(runs) > 1 else row, run)
            for row, runs in self.rows.items()
            for run in runs
        ]

    def select(self, places: Mapping[str, Sequence[Path]]) -> dict[str, list[Run]]:
        """The runs in these folders, by row; rows without runs are omitted."""
        found = {run.folder: run for run in self.runs}
        chosen = {
            row: [found[folder] for folder in folders if folder in found] for row, folders in places.items()
        }
        return {row: runs for row, runs in chosen.items() if runs}
