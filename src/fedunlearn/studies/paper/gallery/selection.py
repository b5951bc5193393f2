"""The runs that a figure shows, and a note about those that it does not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from ....core import FedUnlearnError
from ....core.registry import did_you_mean
from ..results import Result, Results, Scores
from .style import Style, style


@dataclass(frozen=True)
class Selection:
    """The runs of one column by row, in the requested order, and a note about missing runs."""

    column: str
    runs: Mapping[str, Sequence[Result]]
    styles: Mapping[str, Style]
    missing: str


def select(results: Results, column: str, rows: Sequence[str], *, alone: bool = False) -> Selection:
    """The runs that did not fail; ``alone`` keeps only the first seed."""
    columns = {run.column for run in results.runs}
    if column not in columns:
        raise FedUnlearnError(
            f"the results have no run of column {column!r}{did_you_mean(column, columns)}", code="unknown"
        )
    first = min(run.seed for run in results.runs if run.column == column)
    styles = {row: style(row, {run.row for run in results.runs} | set(rows)) for row in rows}
    runs: dict[str, list[Result]] = {}
    absent: dict[str, list[str]] = {}
    for row in rows:
        found = [run for run in results.of(column, row) if not alone or run.seed == first]
        good = [run for run in found if not run.failed]
        if good:
            runs[row] = good
        if len(good) < len(found) or not found:
            reason = "Failed" if len(good) < len(found) else "Not run"
            part = f" ({len(found) - len(good)} of {len(found)} seeds)" if good else ""
            absent.setdefault(reason, []).append(styles[row].name + part)
    if not runs:
        raise FedUnlearnError(
            f"column {column!r} has no finished run of {', '.join(rows)}: name other rows", code="missing"
        )
    missing = ". ".join(f"{reason}: {', '.join(names)}" for reason, names in absent.items())
    return Selection(column, runs, styles, missing)


def origin(selection: Selection) -> Scores:
    """The scores of ω⁰, averaged over seeds."""
    starts: dict[int, Scores] = {}
    for run in (run for runs in selection.runs.values() for run in runs):
        starts.setdefault(run.seed, run.before)
    return average(list(starts.values()))


def average(found: Sequence[Scores]) -> Scores:
    """The mean of every score that all have."""
    common = set.intersection(*map(set, found)) if found else set()
    return {key: fmean(scores[key] for scores in found) for key in sorted(common)}


def missing(shown: Sequence[Selection]) -> list[str]:
    """The missing runs of each column, named only once if they are the same in all."""
    if len({of.missing for of in shown}) == 1:
        return [shown[0].missing]
    return [f"{of.column}: {of.missing}" for of in shown if of.missing]


def seeds(shown: Sequence[Selection]) -> str:
    """The number of seeds, if the figure shows means."""
    counts = {len(runs) for of in shown for runs in of.runs.values()}
    upto = "up to " if len(counts) > 1 else ""
    return f"Mean of {upto}{max(counts)} seeds" if max(counts) > 1 else ""


def spread(shown: Sequence[Selection], what: str) -> str:
    """Explains the bands or whiskers, if there are several seeds."""
    return f"{seeds(shown)}, {what} from the lowest to the highest" if seeds(shown) else ""
