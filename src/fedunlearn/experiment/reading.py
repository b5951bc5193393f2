"""An experiment from a TOML file, with overrides, checked as a whole."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from shlex import quote
from typing import Any

from pydantic import ValidationError

from ..config.options import check_options
from ..config.problems import first_problem
from ..config.tables import UserFile
from ..core import FedUnlearnError, requirements
from ..core.history import require_kinds
from ..core.registry import dataset as datasets
from ..core.registry import model as models
from ..core.registry import partition as partitions
from ..data import check_reserved
from ..methods.groups import require_groups
from .code import import_code, sha256
from .settings import Experiment

SMALLEST_RATE = 1e-38
"""Smaller numbers become zero in float32."""


def read(path: Path, overrides: Iterable[str] = (), *, use: Iterable[Path] = ()) -> Experiment:
    """An experiment from a TOML file; overrides look like ``data.partition=iid``.

    It may ``use`` Python files beside those that it names itself.
    """
    values = parse(path)
    if values.keys() & {"methods", "extends"}:
        raise FedUnlearnError(f"{path} is a comparison: run it with `fedunlearn compare {quote(str(path))}`")
    for text in overrides:
        override(values, text)
    add_code(values, use)
    return check({"name": named_after(path), **values}, str(path))


def named_after(path: Path) -> str:
    """The name of an experiment that does not state one: its file's, in letters that a folder may have."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", path.stem).lstrip("._-") or "experiment"


def parse(path: Path) -> dict[str, Any]:
    """The tables of a TOML file, unchecked; the files that it names are relative to it."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FedUnlearnError(f"cannot read {path}: {error.strerror}", code="file") from error
    except ValueError as error:  # not TOML, not UTF-8, a number of too many digits, no path
        raise FedUnlearnError(f"{str(path)!r} is not TOML: {error}") from error
    except RecursionError:
        raise FedUnlearnError(f"{path} is nested too deeply: flatten its arrays and tables") from None
    if isinstance(files := values.get("use"), list):
        values["use"] = [path.parent / file if isinstance(file, str) else file for file in files]
    if isinstance(start := values.get("checkpoint"), str):
        values["checkpoint"] = path.parent / start
    return values


def add_code(values: dict[str, Any], files: Iterable[Path]) -> None:
    """Add Python files to those that the values ``use``."""
    if files := list(files):
        named = values.get("use", [])
        values["use"] = [*(named if isinstance(named, list) else [named]), *files]


def override(values: dict[str, Any], text: str) -> None:
    """Set what ``table.key=value`` says."""
    key, sign, written = text.partition("=")
    if not sign:
        raise FedUnlearnError(
            f"override {text!r} has no '=': write it as key=value, e.g. seed=2 or data.partition=iid"
        )
    if not key.strip():
        raise FedUnlearnError(f"override {text!r} names no setting: write it as key=value, e.g. seed=2")
    try:
        value = tomllib.loads(f"value = {written}")["value"]
    except tomllib.TOMLDecodeError:
        value = written
    except (ValueError, RecursionError):
        raise FedUnlearnError(f"override of {key}: the value has too many digits or levels") from None
    *tables, last = key.strip().split(".")
    for table in tables:
        values = values.setdefault(table, {})
        if not isinstance(values, dict):
            raise FedUnlearnError(f"override {text!r}: {table!r} is a value, not a table")
    values[last] = value


def check(values: Mapping[str, Any], source: str) -> Experiment:
    """A valid experiment, or one sentence about the first thing that is wrong with it."""
    where = f"{source}: " if source else ""
    try:
        experiment = Experiment.model_validate(values)
    except ValidationError as error:
        raise FedUnlearnError(f"{where}{first_problem(error, Experiment)}") from None
    try:
        experiment = _with_files(experiment)
        datasets.entry(experiment.data.dataset)
        partition = experiment.data.partition
        check_options(f"partition {partition!r}", partitions[partition], experiment.data.options)
        models.entry(experiment.model)
        check_reserved(experiment.data.audit, experiment.data.twins, experiment.request.level)
        _check_needs(experiment)
        _check_successive(experiment)
        _check_decay(experiment)
    except FedUnlearnError as error:
        raise FedUnlearnError(f"{where}{error}", code=error.code) from None
    return experiment


def _with_files(experiment: Experiment) -> Experiment:
    """Import the code that is used, and record the digests of all files."""
    changes: dict[str, Any] = {}
    if experiment.use:
        paths = {file.path.absolute(): file.sha256 for file in experiment.use}
        changes["use"] = [
            UserFile(path=path, sha256=import_code(path, recorded)) for path, recorded in paths.items()
        ]
    if (start := experiment.checkpoint) is not None and not start.sha256:
        path = start.path.absolute()
        changes["checkpoint"] = UserFile(path=path, sha256=sha256(path))
    return experiment.model_copy(update=changes)


def _check_successive(experiment: Experiment) -> None:
    """Whether there are several requests to answer in turn, and the method can answer a second one."""
    request, name = experiment.request, experiment.method
    if not request.successive:
        return
    if request.level != "client":
        raise FedUnlearnError(
            f"request.successive = true with level = {request.level!r}: only whole clients are forgotten one "
            "after the other, so use level = 'client'"
        )
    if request.requests < 2:
        raise FedUnlearnError(
            "request.successive = true with one target: name at least two, or set request.targets = 2"
        )
    if "locals" in requirements.needs(experiment.phases()):
        raise FedUnlearnError(
            f"{name} cannot serve a second request, because the local models that it starts from still know "
            "the first client: use another method, or request.successive = false",
            code="unsuitable",
        )


def _check_decay(experiment: Experiment) -> None:
    """Whether the learning rate is above zero in the last round, too: steps are divided by it."""
    decay = experiment.training.decay
    before, after = experiment.rounds
    rates = [(experiment.pretraining.lr, before)]
    each = after // experiment.request.requests  # every request counts its own rounds
    rates += [(phase.lr, each) for phase in experiment.phases() if phase.rounds]
    for rate, rounds in rates:
        if rate * decay**rounds < SMALLEST_RATE:
            raise FedUnlearnError(
                f"training.decay = {decay:g}: the learning rate is zero after {rounds} rounds: "
                "set decay closer to 1"
            )


def _check_needs(experiment: Experiment) -> None:
    """Whether pre-training leaves behind what the method needs."""
    plan, name = experiment.pretraining, experiment.method
    require_kinds(plan.history)
    require_groups(experiment.data.clients, plan.clusters, plan.slices, plan.history)
    if plan.slices > plan.rounds > 0:
        raise FedUnlearnError(
            f"{plan.rounds} rounds are too few for {plan.slices} slices: set rounds in [pretraining] to "
            f"{plan.slices} or more",
            code="unsuitable",
        )
    phases = experiment.phases()
    # What a model file holds is known when it is read.
    needed = set() if experiment.checkpoint else requirements.recorded(phases)
    recorded = {"slice"} if plan.slices > 1 else {"cluster"} if plan.clusters > 1 else {*plan.history}
    public = requirements.needs(phases) & {"public"} if not experiment.data.public else set()
    for kind in sorted({*(needed - recorded), *public}):
        wanted = {
            "cluster": f"clusters = {max(2, min(5, experiment.data.clients // 2))} in [pretraining]",
            "slice": f"slices = {max(2, min(5, experiment.data.clients // 2))} in [pretraining]",
            "public": "public = 1000 in [data], examples that no client will hold",
        }.get(kind, f'history = ["{kind}"] in [pretraining]')
        raise FedUnlearnError(
            f"{name} needs {kind}, and this experiment has none: set {wanted}", code="history"
        )
    if needed and not plan.rounds:
        kinds = " and ".join(sorted(needed))
        raise FedUnlearnError(
            f"{name} needs {kinds}, which pre-training records, and here it has no rounds: "
            "set rounds in [pretraining]",
            code="history",
        )
    if experiment.request.level != "client" and needed - {"cluster", "slice"}:
        raise FedUnlearnError(
            f"{name} needs history, which knows whole clients only: use level = 'client'", code="history"
        )
