"""A comparison file: which methods run on which requests, at which scale, with which seeds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from ...config.tables import Count, Name, Natural, Rate, Share, Table
from ...core import FedUnlearnError
from ...core.registry import did_you_mean
from ...report.audits import REFERENCES
from .. import Experiment, add_code, check, first_problem, named_after, override, parse

PACKAGED = [
    Path(str(files("fedunlearn"))) / folder for folder in ("experiments", "studies/paper/experiments")
]
"""Folders of the files that come with the package; others may extend them by name."""

Figure = Literal["tradeoff", "radar", "conflicts", "curves", "clients", "costs", "triggers"]


class Grid(Table):
    """Learning rates to choose from, by short trials: one rate serves unlearning and recovery."""

    rates: list[Rate] = Field(min_length=1)
    """The choice; it replaces `unlearning.lr` and `recovery.lr`."""
    share: Share = 0.2
    """Of the rounds of each stage, in a trial."""
    seed: Natural | None = None
    """Of the trials; the first of the comparison unless given."""
    columns: tuple[str, ...] = ()
    """Where trials are made; each serves all columns whose targets are backdoored, or clean, like its own.
    Unless given, every column has its own trials."""
    rule: Literal["least", "retraining"] = "least"
    """`least` prefers to forget as much as possible; `retraining`, as much as a retraining does."""


class Shown(Table):
    """Which columns and rows of the file that it extends a comparison shows, and in which figures."""

    columns: list[str] | None = None
    """All unless given."""
    rows: list[str] | None = None
    """All unless given."""
    figures: tuple[Figure, ...] = ()
    """Drawn by `reproduce`."""


class Plan(Table):
    """What a file says about the comparison, beside the experiment it starts from."""

    seeds: Count = 1
    """How many, from `seed` on."""
    paper: str = ""
    """The paper's table that `reproduce` puts beside it."""
    relearn: Natural = 0
    """Rounds within which audits measure how soon the forgotten returns; 0: they do not."""
    grid: Grid | None = None
    show: Shown = Shown()
    scale: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """`[scale.NAME]`: settings of one size of the comparison; `--scale` names one, else it is the first."""
    columns: dict[Name, dict[str, Any]] = Field(default_factory=dict)
    """`[columns.NAME]`: what a request changes; it may have a `scale` too."""
    methods: dict[Name, dict[str, Any]] = Field(default_factory=dict)
    """`[methods.NAME]`: what a row changes; `method` is its name unless given."""


@dataclass(frozen=True)
class Comparison:
    """Experiments by column (a request) and row (a method), and the seeds to repeat them with."""

    name: str
    columns: Mapping[str, Mapping[str, Experiment]]
    seeds: tuple[int, ...]
    listed: tuple[str, ...]
    """All rows of the file, wanted now or not."""
    requests: tuple[str, ...]
    """All columns of the file."""
    grid: Grid | None = None
    printed: str = ""
    """The table of the paper that it reproduces."""
    figures: tuple[str, ...] = ()
    relearn: int = 0
    """Rounds of relearning in audits."""
    tried: Mapping[str, Mapping[str, Experiment]] = field(default_factory=dict)
    """The columns in which trials are made for others."""
    refused: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """Why a row cannot answer the request of a column, by column and row."""

    def places(self, folder: Path, column: str, *, listed: bool = False) -> dict[str, list[Path]]:
        """The run folders of a column, by row: of what is wanted, or of all rows and seeds there are."""
        rows, seeds = self.listed if listed else self.columns[column], self._seeds(folder, column, listed)
        return {row: [place(folder, column, seed, row) for seed in seeds] for row in rows}

    def audited(self, folder: Path, column: str, *, listed: bool = False) -> dict[str, list[Path]]:
        """The folders with evidence of a column, by row of its table: of ω⁰, of retrainings and of runs."""
        seeds = self._seeds(folder, column, listed)
        return {
            title: [reference_place(folder, column, seed, name) for seed in seeds]
            for name, title in REFERENCES.items()
        } | self.places(folder, column, listed=listed)

    def _seeds(self, folder: Path, column: str, listed: bool) -> Sequence[int]:
        names = [path.name.removeprefix("seed-") for path in (folder / column).glob("seed-*")]
        return sorted(int(name) for name in names if name.isdecimal()) if listed else self.seeds


def place(folder: Path, column: str, seed: int, row: str) -> Path:
    """The run folder of one cell and seed."""
    return folder / column / f"seed-{seed}" / row


def reference_place(folder: Path, column: str, seed: int, name: str = "") -> Path:
    """Where the evidence about a reference of a column and seed is."""
    return folder / column / "references" / f"seed-{seed}" / name


def read_comparison(
    path: Path,
    overrides: Iterable[str] = (),
    *,
    scale: str | None = None,
    only: Sequence[str] = (),
    seeds: int | None = None,
    use: Iterable[Path] = (),
    rows: Iterable[str] = (),
    lenient: bool = False,
) -> Comparison:
    """A comparison from a TOML file: an experiment, and what its parts change in it.

    ``[methods.ROW]`` is a row, named like its method unless it names another; ``[columns.NAME]`` is a
    request; ``[scale.NAME]`` is a size of the whole, the first unless named, which a column may state
    otherwise in ``[columns.NAME.scale.NAME]``. A file that ``extends`` another ``show``s some of its rows
    and columns; ``only`` some of these may be wanted. ``rows`` are methods beside those of the file. With
    ``lenient``, a row that cannot answer a request is left out there and ``refused``; else it is an error.
    """
    values = _extended(path, ())
    add_code(values, use)
    overrides = list(overrides)
    for text in overrides:
        if text.partition("=")[0].partition(".")[0] in Plan.model_fields:
            override(values, text)
    given = {key: values.pop(key) for key in Plan.model_fields if key in values}
    try:
        plan = Plan.model_validate(given)
    except ValidationError as error:
        raise FedUnlearnError(f"{path}: {first_problem(error, Plan)}") from None
    columns = _chosen(path, plan.columns, plan.show.columns) or {"": {}}
    table = _chosen(path, plan.methods, plan.show.rows) | {name: {} for name in rows}
    if not table:
        raise FedUnlearnError(f"{path} compares nothing: add a table [methods.NAME] for each method")
    if scale is not None and scale not in plan.scale:
        hint = did_you_mean(scale, plan.scale) if plan.scale else "; it has none"
        raise FedUnlearnError(f"{path} has no scale {scale!r}{hint}", code="unknown")
    size = scale or next(iter(plan.scale), "")
    for name in only:
        if name not in table and name not in columns:
            hint = did_you_mean(name, [*table, *filter(None, columns)])
            raise FedUnlearnError(f"{path} has no row or column {name!r}{hint}", code="unknown")
    for place, part in [("columns", columns), ("methods", table)]:
        for name, changes in part.items():
            _refuse_own(changes, f"{path}, {place}.{name}")
    base = _merged({"name": named_after(path), **values}, plan.scale.get(size, {}))
    refused: dict[tuple[str, str], str] = {}

    def experiments_of(column: str) -> dict[str, Experiment]:
        changes = dict(columns[column])
        own = _sizes(changes.pop("scale", {}), plan, f"{path}, columns.{column}").get(size, {})
        asked = _merged(_merged(base, changes), own)
        found = {}
        for row in _wanted(table, only):
            values = _merged(asked, {"method": row, **table[row]})
            try:
                found[row] = _experiment(values, overrides, "" if lenient else f"{path}, methods.{row}")
            except FedUnlearnError as error:
                if not lenient:
                    raise
                refused[column, row] = str(error)
        return found

    experiments = {column: experiments_of(column) for column in _wanted(columns, only)}
    tried = plan.grid.columns if plan.grid else ()
    for column in tried:
        if column not in columns:
            raise FedUnlearnError(
                f"{path}: grid names an unknown column {column!r}{did_you_mean(column, columns)}",
                code="unknown",
            )
    first = next(iter(next(iter(experiments.values())).values()))
    return Comparison(
        first.name,
        experiments,
        tuple(range(first.seed, first.seed + (seeds or plan.seeds))),
        tuple(table),
        tuple(columns),
        plan.grid,
        plan.paper,
        plan.show.figures,
        plan.relearn,
        {column: experiments_of(column) for column in tried},
        refused,
    )


def _sizes(sizes: Any, plan: Plan, source: str) -> Mapping[str, Mapping[str, Any]]:
    """What a column changes in the scales of the whole."""
    if not isinstance(sizes, dict) or not all(isinstance(changes, dict) for changes in sizes.values()):
        raise FedUnlearnError(
            f"{source}: scale holds a table for each scale, as in scale.laptop.data.fraction = 0.1"
        )
    for name, changes in sizes.items():
        if name not in plan.scale:
            hint = did_you_mean(name, plan.scale) if plan.scale else "; the file has none"
            raise FedUnlearnError(f"{source} names an unknown scale {name!r}{hint}", code="unknown")
        _refuse_own(changes, f"{source}.scale.{name}")
    return sizes


def _refuse_own(changes: Mapping[str, Any], source: str) -> None:
    for key in {"seed", "name"} & changes.keys():
        raise FedUnlearnError(f"{source}: {key} applies to the whole comparison: set it at the top level")


def _experiment(values: dict[str, Any], overrides: Iterable[str], source: str) -> Experiment:
    for text in overrides:
        if text.partition("=")[0].partition(".")[0] not in Plan.model_fields:
            override(values, text)
    return check(values, source)


def _extended(path: Path, seen: tuple[Path, ...]) -> dict[str, Any]:
    if path in seen:
        raise FedUnlearnError(f"{path} extends itself")
    values = parse(path)
    extends = values.pop("extends", None)
    if extends is None:
        return values
    places = [folder / str(extends) for folder in (path.parent, *PACKAGED)]
    source = next((place for place in places if place.exists()), places[0])
    extended = _extended(source, (*seen, path))
    add_code(extended, values.pop("use", []))
    return _merged(extended, values)


def _chosen(
    path: Path, tables: Mapping[str, dict[str, Any]], names: Sequence[str] | None
) -> dict[str, dict[str, Any]]:
    for name in names or ():
        if name not in tables:
            raise FedUnlearnError(
                f"{path} shows an unknown {name!r}{did_you_mean(name, tables)}", code="unknown"
            )
    return dict(tables) if names is None else {name: tables[name] for name in names}


def _wanted(names: Mapping[str, object], only: Sequence[str]) -> list[str]:
    """The names that are asked for, or all where none of them is."""
    return [name for name in names if name in only] or list(names)


def _merged(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The values with the changes, table by table."""
    merged = dict(values)
    for key, value in changes.items():
        old = merged.get(key)
        merged[key] = _merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged
