"""An experiment from a TOML file, with overrides, checked as a whole."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ..core import FedUnlearnError, requirements
from ..core.history import require_kinds
from ..core.registry import dataset as datasets
from ..core.registry import model as models
from ..core.registry import partition as partitions
from .problems import check_options, first_problem
from .settings import Experiment


def read(path: Path, overrides: Iterable[str] = ()) -> Experiment:
    """An experiment from a TOML file; overrides look like ``data.partition=iid``."""
    values = parse(path)
    if values.keys() & {"methods", "extends"}:
        raise FedUnlearnError(f"{path} is a comparison: run it with `fedunlearn compare {path}`")
    for text in overrides:
        override(values, text)
    return check({"name": named_after(path), **values}, str(path))


def named_after(path: Path) -> str:
    """The name of an experiment that does not state one: its file's, in letters that a folder may have."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", path.stem).lstrip("._-") or "experiment"


def parse(path: Path) -> dict[str, Any]:
    """The tables of a TOML file, unchecked."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FedUnlearnError(f"cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise FedUnlearnError(f"{path} is not TOML: {error}") from error


def override(values: dict[str, Any], text: str) -> None:
    """Sets what ``table.key=value`` says."""
    key, sign, written = text.partition("=")
    if not sign:
        raise FedUnlearnError(
            f"override {text!r} has no '=': write it as key=value, e.g. seed=2 or data.partition=iid"
        )
    try:
        value = tomllib.loads(f"value = {written}")["value"]
    except tomllib.TOMLDecodeError:
        value = written
    *tables, last = key.strip().split(".")
    for table in tables:
        values = values.setdefault(table, {})
        if not isinstance(values, dict):
            raise FedUnlearnError(f"override {text!r}: {table!r} is a value, not a table")
    values[last] = value


def check(values: Mapping[str, Any], source: str) -> Experiment:
    """A valid experiment, or one sentence about the first thing that is wrong with it."""
    try:
        experiment = Experiment.model_validate(values)
    except ValidationError as error:
        raise FedUnlearnError(f"{source}: {first_problem(error, Experiment)}") from None
    try:
        datasets.entry(experiment.data.dataset)
        partition = experiment.data.partition
        check_options(f"partition {partition!r}", partitions[partition], experiment.data.options)
        models.entry(experiment.model)
        _check_needs(experiment)
    except FedUnlearnError as error:
        raise FedUnlearnError(f"{source}: {error}") from None
    return experiment


def _check_needs(experiment: Experiment) -> None:
    """Whether pre-training leaves behind what the method needs."""
    plan, name = experiment.pretraining, experiment.method
    require_kinds(plan.history)
    if plan.history and plan.clusters > 1:
        raise FedUnlearnError(
            "a clustered pre-training records its clusters and no other history: remove one"
        )
    if plan.clusters > experiment.data.clients:
        raise FedUnlearnError(
            f"{experiment.data.clients} clients cannot form {plan.clusters} clusters: "
            f"set clusters in [pretraining] to {experiment.data.clients} at most"
        )
    phases = experiment.phases()
    needed, recorded = requirements.recorded(phases), {"cluster"} if plan.clusters > 1 else {*plan.history}
    public = requirements.needs(phases) & {"public"} if not experiment.data.public else set()
    for kind in sorted({*(needed - recorded), *public}):
        wanted = {
            "cluster": f"clusters = {max(2, min(5, experiment.data.clients // 2))} in [pretraining]",
            "public": "public = 1000 in [data], examples that no client will hold",
        }.get(kind, f'history = ["{kind}"] in [pretraining]')
        raise FedUnlearnError(f"{name} needs {kind}, and this experiment has none: set {wanted}")
    if needed and not plan.rounds:
        kinds = " and ".join(sorted(needed))
        raise FedUnlearnError(
            f"{name} needs {kinds}, which pre-training records, and here it has no rounds: "
            "set rounds in [pretraining]"
        )
    if experiment.request.level != "client" and needed - {"cluster"}:
        raise FedUnlearnError(f"{name} needs history, which knows whole clients only: use level = 'client'")
