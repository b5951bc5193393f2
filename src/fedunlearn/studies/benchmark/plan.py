"""What the benchmark asks of every method."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from hashlib import sha256
from importlib.resources import files
from inspect import getsourcefile
from pathlib import Path
from typing import Any

from ...config.options import phases_of
from ...core import FedUnlearnError
from ...core.registry import did_you_mean, method
from ...experiment import Experiment, import_code, parse
from ...experiment.comparison import Comparison, Grid, read_comparison
from ...methods import Schedule
from ...report.audits import REFERENCES
from .leaderboard import ablation

PROTOCOL = Path(str(files("fedunlearn"))) / "experiments/benchmark.toml"
"""The file with requests, seeds and tuning budget."""
METHODS = PROTOCOL.with_name("benchmark-methods.toml")
"""The file with the methods of this release."""
STANDARD = "retrain"
"""The row that time and work of all others are compared with; it is always run."""
FILE_NAME, METHOD_NAME = re.compile(r"[A-Za-z0-9_-]+\.py"), re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
"""Of submissions: both become parts of paths."""


def protocol_digest() -> str:
    """The SHA-256 of what the protocol says, comments aside; results of another one are not comparable."""
    return sha256(json.dumps(parse(PROTOCOL), sort_keys=True).encode()).hexdigest()


def protocol(only: Sequence[str] = (), submitted: Path | None = None, recorded: str = "") -> Comparison:
    """The benchmark, or the named methods and requests of it; ablations are run where they are named.

    ``submitted`` is a Python file that registers methods: they become the rows. If it is not the ``recorded``
    one, it is not executed. A method that takes more rounds than the others is refused.
    """
    added = [] if submitted is None else registered_by(submitted, recorded)
    asked = requests()
    known = {*asked, *_whole().listed, *added}
    for name in only:
        if name not in known:
            raise FedUnlearnError(
                f"the benchmark has no method or request {name!r}{did_you_mean(name, known)}", code="unknown"
            )
    wanted = [*only]
    if not {*only} - asked.keys():  # no method is named
        wanted += added or [name for name in _whole().listed if not ablation(name, _whole().listed)]
    if {*wanted} - asked.keys():
        wanted.append(STANDARD)
    found = read_comparison(
        METHODS,
        only=wanted,
        rows=added,
        use=[submitted.absolute()] if submitted else [],
        lenient=True,
    )
    refused = dict(found.refused) | {
        (column, row): why
        for column, rows in found.columns.items()
        for row, experiment in rows.items()
        if (why := _over_budget(experiment))
    }
    columns = {
        column: {row: experiment for row, experiment in rows.items() if (column, row) not in refused}
        for column, rows in found.columns.items()
    }
    return replace(found, columns=columns, refused=refused)


def registered_by(file: Path, recorded: str = "") -> list[str]:
    """The methods that a Python file adds; it is one file, which cannot import others beside it."""
    if not FILE_NAME.fullmatch(file.name):
        raise FedUnlearnError(
            f"{file.name!r} cannot be submitted: use only letters, digits, - and _ in the file's name, and "
            "end it in .py"
        )
    digest = import_code(file.absolute(), recorded, alone=True)
    added = [entry.name for entry in method if source_digest(entry.name) == digest]
    if not added:
        raise FedUnlearnError(
            f"{file} registers no new method: decorate a function with @fedunlearn.method(NAME, …), "
            "as docs/how-to/own-method.md shows"
        )
    for name in added:
        if problem := _problem(name):
            raise FedUnlearnError(f"{file}: method {name!r} {problem}")
        try:
            phases_of(name, Schedule(), {})
        except FedUnlearnError as error:
            raise FedUnlearnError(f"{file}: {error}", code=error.code) from None
    return added


def _problem(name: str) -> str:
    """Why a method cannot be submitted; empty if it can."""
    if not METHOD_NAME.fullmatch(name):
        return "has a name that cannot be part of a path: use letters, digits, '.', '-' and '_' only"
    if name in (*requests(), *REFERENCES, *REFERENCES.values()):
        return "is named like a request or a reference: choose another name"
    for key in ("paper", "source", "summary"):
        if not method.entry(name).about.get(key):
            return f"does not state its {key}: add {key}=… to @method"
    return ""


def source_digest(name: str) -> str:
    """The SHA-256 of the Python file that registers a method."""
    try:
        source = getsourcefile(method[name])
    except TypeError:  # neither a function nor a class
        return ""
    return sha256(Path(source).read_bytes()).hexdigest() if source and Path(source).is_file() else ""


def describe(experiment: Experiment) -> dict[str, Any]:
    """What a request asks, for tables and filters."""
    targets = experiment.request.targets
    return {
        "kind": "backdoored" if experiment.backdoor.enabled else "clean",
        "dataset": experiment.data.dataset,
        "model": experiment.model,
        "partition": experiment.data.partition,
        "clients": experiment.data.clients,
        "targets": targets if isinstance(targets, int) else len(targets),
        "successive": experiment.request.successive,
        "participation": experiment.participation.share,
        "pretraining": experiment.pretraining.rounds,
        "rounds": experiment.unlearning.rounds + experiment.recovery.rounds,
    }


def requests() -> dict[str, dict[str, Any]]:
    """The requests by name, and what they ask."""
    return {name: describe(rows[STANDARD]) for name, rows in _whole().columns.items()}


def seeds() -> tuple[int, ...]:
    """The seeds that are judged."""
    return _whole().seeds


def grid() -> Grid:
    """The tuning budget."""
    found = _whole().grid
    assert found is not None
    return found


@cache
def _whole() -> Comparison:
    return read_comparison(METHODS, only=[STANDARD])


def _over_budget(experiment: Experiment) -> str:
    """Why a method is refused that takes more rounds than the protocol gives; else empty."""
    allowed = (experiment.unlearning.rounds + experiment.recovery.rounds) * experiment.request.requests
    taken = experiment.rounds[1]
    return f"it takes {taken} rounds, and the benchmark gives {allowed}" if taken > allowed else ""
