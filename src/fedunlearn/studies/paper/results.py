"""Finished runs in two kilobytes each: the source of the tables and figures in the documentation."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, ClassVar

from pydantic import ConfigDict, Field, TypeAdapter

from ...core import FedUnlearnError, Metrics, Status
from ...experiment import check
from ...report.folders import collect
from ...report.runs import Collection, Run
from ...report.trials import score, unmeasured
from ...runs import RECOVERY_HINT, public, read_json, write

FORMAT = "fedunlearn results 2"
COSTS = ("local_trainings", "seconds", "seconds_server", "bytes_up", "bytes_down")
COURSE = ("asr", "r_acc", "distance")
DIGITS = 5
KNOWN = ConfigDict(extra="forbid")

Scores = Mapping[str, float]
"""Evaluated metrics by key; ``r_acc client-3`` is that of one client."""


@dataclass(frozen=True)
class Result:
    """The result of one run."""

    __pydantic_config__: ClassVar = KNOWN

    column: str
    row: str
    seed: int
    rate: float
    """Learning rate of the first round."""
    status: Status
    model_sha256: str
    before: Scores
    """ω⁰."""
    unlearned: Scores
    """At the end of unlearning; empty if the method has no such stage."""
    recovered: Scores
    """At the end of post-training; empty if it was not reached."""
    cost: Mapping[str, float]
    """Sums over rounds; ``bytes_stored`` is a maximum, ``conflicts`` a mean over unlearning."""
    course: Mapping[str, Sequence[float | None]]
    """ASR, R-Acc and distance by ``rounds``, counted over both stages."""
    turn: float = 0.0
    """The last round of unlearning; 0 if the method has no such stage."""
    stopped: bool = False
    """Whether unlearning stopped early without failing."""
    environment: str = ""
    """The key of its environment."""

    @property
    def failed(self) -> bool:
        return self.status.failed

    @property
    def place(self) -> tuple[str, int, str]:
        """Column, seed and row, which identify a run."""
        return self.column, self.seed, self.row

    def stage(self, number: int) -> Scores:
        """The scores before (0), after unlearning (1) or recovery (2), or the last ones of a failed run."""
        reached = (self.before, self.unlearned, self.recovered)[number]
        return self.stage(number - 1) if self.failed and not reached and number else reached


@dataclass(frozen=True)
class Results:
    """All finished runs of one scale, their settings, and the trials that chose their learning rates."""

    __pydantic_config__: ClassVar = KNOWN

    scale: Annotated[str, Field(pattern=r"^[\w-]+$")]
    settings: Mapping[str, Mapping[str, Any]]
    """By column: the experiment without method and learning rates."""
    environments: Mapping[str, Mapping[str, str]]
    """By the start of their hash."""
    trials: Mapping[str, Mapping[str, Mapping[str, float | None]]]
    """Scores by column, row and rate; None if a trial failed."""
    runs: Sequence[Result]

    def of(self, column: str, row: str) -> list[Result]:
        """The runs of a row in a column, one per seed."""
        return [run for run in self.runs if (run.column, run.row) == (column, row)]


def read_columns(folder: Path) -> dict[str, Collection]:
    """The runs of a folder by column: COLUMN/seed-N/ROW."""
    places = sorted({path.parents[2] for path in folder.glob("*/seed-*/*/experiment.json")})
    return {place.name: collect([place]) for place in places}


def gather(folder: Path, columns: Mapping[str, Collection], scale: str) -> Results:
    """The results in a folder so far: the finished runs of its columns, and COLUMN/trials/ROW/RATE."""
    runs: list[Result] = []
    settings: dict[str, Mapping[str, Any]] = {}
    environments: dict[str, Mapping[str, str]] = {}
    every = [run for column in columns.values() for run in column.runs if run.ended]
    for found in sorted(every, key=lambda run: run.folder):
        run = found.folder
        if not run.parent.name.removeprefix("seed-").isdecimal():
            continue  # a copy made by hand
        runs.append(summarise(found))
        if run.parent.name != f"seed-{runs[-1].seed}":
            raise FedUnlearnError(
                f"{run} is a run of seed {runs[-1].seed}: delete it, or move it to seed-{runs[-1].seed}",
                code="occupied",
            )
        # An error if it is missing.
        environments[runs[-1].environment] = read_json(run / "environment.json")
        with _complete_config(run):
            setting = set_up(found.config)
        if not same_settings(settings.setdefault(runs[-1].column, setting), setting):
            raise FedUnlearnError(
                f"{run} has other settings than the other runs of its column, so they cannot be compared: "
                "delete the old runs, or choose another folder with --out",
                code="occupied",
            )
    trials: dict[str, dict[str, dict[str, float | None]]] = {}
    for place in sorted(folder.glob("*/trials/*/*/outcome.json")):
        column, _, row, rate = place.parent.relative_to(folder).parts
        trials.setdefault(column, {}).setdefault(row, {})[rate] = score(place.parent)
    return Results(scale, settings, environments, trials, runs)


def set_up(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The public part of a configuration that all rows of a column share."""
    shown = public(config)
    setting = {key: shown[key] for key in ("model", "data", "request", "backdoor", "training", "pretraining")}
    return setting | {key: config[key]["rounds"] for key in ("unlearning", "recovery")}


def same_settings(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two columns have the same settings; settings missing in older files have their defaults."""
    return one == other or (bool(one) and bool(other) and _complete(one) == _complete(other))


def _complete(setting: Mapping[str, Any]) -> Mapping[str, Any]:
    rounds = {key: {"rounds": setting[key]} for key in ("unlearning", "recovery")}
    return set_up(check({**setting, **rounds}, "stored settings").model_dump(mode="json"))


def summarise(run: Run) -> Result:
    """One finished run, whose folder is COLUMN/seed-N/ROW."""
    rows, evaluated = run.rows, run.evaluated
    if not evaluated:
        raise unmeasured(run.folder)
    counted = [float(row["conflicts"]) for row in rows if row["stage"] == "unlearning" and "conflicts" in row]
    cost = {key: sum(float(row.get(key, 0)) for row in rows) for key in COSTS}
    cost["bytes_stored"] = max((float(row.get("bytes_stored", 0)) for row in rows), default=0.0)
    cost |= {"conflicts": fmean(counted)} if counted else {}
    rates = [float(row["lr"]) for row in rows if "lr" in row]
    with _complete_config(run.folder):
        seed, planned = int(run.config["seed"]), float(run.config["unlearning"]["lr"])
    return Result(
        column=run.folder.parent.parent.name,
        row=run.folder.name,
        seed=seed,
        rate=rates[0] if rates else planned,
        status=Status(run.outcome["status"]),
        model_sha256=run.outcome["model_sha256"],
        environment=hashlib.sha256(_json(run.environment).encode()).hexdigest()[:8],
        before=_scores(evaluated[:1]),
        unlearned=_scores([row for row in evaluated if row["stage"] == "unlearning"]),
        recovered=_scores([row for row in evaluated if row["stage"] == "post-training"]),
        cost={key: round(value, DIGITS) for key, value in cost.items()},
        course={"rounds": [float(row["elapsed"]) for row in evaluated]}
        | {key: [_finite(row[key]) if key in row else None for row in evaluated] for key in COURSE},
        turn=run.turn,
        stopped=any(row["stage"] == "unlearning" and row.get("status") == Status.CONVERGED for row in rows),
    )


@contextmanager
def _complete_config(run: Path) -> Iterator[None]:
    """Turns a missing setting into one clear sentence."""
    try:
        yield
    except KeyError as missing:
        raise FedUnlearnError(
            f"{run / 'experiment.json'} has no {missing}: {RECOVERY_HINT}", code="damaged"
        ) from None


def _finite(value: float | int | str) -> float | None:
    return round(float(value), DIGITS) if math.isfinite(float(value)) else None


def _scores(evaluated: Sequence[Metrics]) -> Scores:
    measures = ("asr", "r_acc", "forget_acc", "target_acc", "distance")
    return {
        key: round(float(value), DIGITS)
        for row in evaluated[-1:]
        for key, value in row.items()
        if key.startswith(measures) and math.isfinite(float(value))
    }


def save(results: Results, path: Path) -> None:
    """Writes JSON with one run per line, so that a diff shows which runs changed."""
    head = {"format": FORMAT} | {key: value for key, value in asdict(results).items() if key != "runs"}
    lines = [f"{json.dumps(key)}: {_json(value)}," for key, value in head.items()]
    runs = ",\n".join(_json(asdict(run)) for run in results.runs)
    write(path, ("{" + "\n".join(lines) + '\n"runs": [\n' + runs + "\n]}\n").encode())


def _json(value: object) -> str:
    return json.dumps(value, sort_keys=True, allow_nan=False)


def load(path: Path) -> Results:
    """Reads a file written by ``save``."""
    if not path.is_file():
        raise FedUnlearnError(
            f"{path} does not exist: name a results.json that `fedunlearn reproduce` wrote", code="missing"
        )
    values = read_json(path)
    try:
        if values.pop("format") != FORMAT:
            raise ValueError
        return TypeAdapter(Results).validate_json(json.dumps(values), strict=True)
    except (AttributeError, KeyError, TypeError, ValueError):
        raise FedUnlearnError(
            f"{path} is not a results file of fedunlearn, or it is damaged: name a file that "
            "`fedunlearn reproduce` wrote",
            code="damaged",
        ) from None


def joined(stored: Results, new: Results) -> Results:
    """Both combined; new runs replace stored ones of the same place, or of a column with other settings."""
    if stored.scale != new.scale:
        raise FedUnlearnError(
            f"results of scale {new.scale!r} cannot be added to those of scale {stored.scale!r}"
        )
    changed = {
        column
        for column, setting in stored.settings.items()
        if not same_settings(new.settings.get(column, setting), setting)
    }
    kept = [run for run in stored.runs if run.column not in changed]
    runs = {run.place: run for run in (*kept, *new.runs)}
    rates: dict[tuple[str, str], float] = {}
    for run in runs.values():
        if rates.setdefault((run.column, run.row), run.rate) != run.rate:
            raise FedUnlearnError(
                f"{run.row} in {run.column} would average seeds with two different learning rates: "
                "run its other seeds at the new rate too"
            )
    tried = {column: rows for column, rows in stored.trials.items() if column not in changed}
    trials = {
        column: {**tried.get(column, {}), **new.trials.get(column, {})}
        for column in sorted({*tried, *new.trials})
    }
    environments = {**stored.environments, **new.environments}
    used = {run.environment for run in runs.values()}
    return Results(
        stored.scale,
        {**stored.settings, **new.settings},
        {key: environments[key] for key in sorted(used & environments.keys())},
        trials,
        [runs[place] for place in sorted(runs)],
    )


def retained(scores: Scores) -> Iterator[tuple[str, float]]:
    """Each retained client's accuracy, in the order of their numbers."""
    found = {key.removeprefix("r_acc "): value for key, value in scores.items() if key.startswith("r_acc ")}
    yield from sorted(found.items(), key=lambda item: (len(item[0]), item[0]))
