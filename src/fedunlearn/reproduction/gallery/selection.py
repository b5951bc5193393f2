"""Which runs a figure shows, and what it says about those that it does not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from ...core import FedUnlearnError
from ...core.registry import did_you_mean
from ..results import Result, Results, Scores
from .style import Style, style


@dataclass(frozen=True)
class Selection:
    """Runs of one column by row, in the order of the rows asked for, and the rows that have none."""

    column: str
    runs: Mapping[str, Sequence[Result]]
    styles: Mapping[str, Style]
    missing: str


def select(results: Results, column: str, rows: Sequence[str], *, alone: bool = False) -> Selection:
    """The runs that ended well; ``alone`` keeps the first seed only, for what seeds do not share."""
    columns = {run.column for run in results.runs}
    if column not in columns:
        raise FedUnlearnError(f"no run of column {column!r} is in the results{did_you_mean(column, columns)}")
    first = min(run.seed for run in results.runs if run.column == column)
    styles = {row: style(row, {run.row for run in results.runs} | set(rows)) for row in rows}
    runs: dict[str, list[Result]] = {}
    said: dict[str, list[str]] = {}
    for row in rows:
        found = [run for run in results.of(column, row) if not alone or run.seed == first]
        well = [run for run in found if not run.failed]
        if well:
            runs[row] = well
        if len(well) < len(found) or not found:
            end = "Failed" if len(well) < len(found) else "Not run"
            part = f" ({len(found) - len(well)} of {len(found)} seeds)" if well else ""
            said.setdefault(end, []).append(styles[row].name + part)
    if not runs:
        raise FedUnlearnError(f"column {column!r} has no finished run of {', '.join(rows)}: name other rows")
    missing = ". ".join(f"{end}: {', '.join(names)}" for end, names in said.items())
    return Selection(column, runs, styles, missing)


def origin(selection: Selection) -> Scores:
    """ω⁰, the mean over seeds: what runs measured before their first round."""
    begun: dict[int, Scores] = {}
    for run in (run for runs in selection.runs.values() for run in runs):
        begun.setdefault(run.seed, run.before)
    return average(list(begun.values()))


def average(found: Sequence[Scores]) -> Scores:
    """The mean of every number that all have."""
    common = set.intersection(*(set(of) for of in found)) if found else set()
    return {key: fmean(of[key] for of in found) for key in sorted(common)}


def missing(shown: Sequence[Selection]) -> list[str]:
    """What each column lacks; said once where all lack the same."""
    if len({of.missing for of in shown}) == 1:
        return [shown[0].missing]
    return [f"{of.column}: {of.missing}" for of in shown if of.missing]


def seeds(shown: Sequence[Selection]) -> str:
    """How many seeds a mean is of, where it is one."""
    counts = {len(runs) for of in shown for runs in of.runs.values()}
    upto = "up to " if len(counts) > 1 else ""
    return f"Mean of {upto}{max(counts)} seeds" if max(counts) > 1 else ""


def spread(shown: Sequence[Selection], what: str) -> str:
    """What a band or a whisker is, where there are several seeds."""
    return f"{seeds(shown)}, {what} from the lowest to the highest" if seeds(shown) else ""
