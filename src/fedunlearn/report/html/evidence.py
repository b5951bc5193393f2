"""Evidence in the HTML report: an account of one audit, or the audits of all rows side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...evidence import Finding, Interval
from .. import account
from ..audits import REFERENCES, TABLES, CellText, audited, filled, verdict_counts
from ..evidence import read_evidence, verdict_text
from ..runs import Collection, Run
from .plots import Axis, ticks
from .tables import Cell, Grid, Heading

LINE, MARK = 18, 11
"""Pixels of a line of text and of an interval."""
WIDEST = 34
"""Letters of a name and a verdict that fit on one line of a phone."""


@dataclass(frozen=True)
class Bar:
    """The interval of a difference to retraining: where equivalence is claimed, and where alarms are."""

    y: float
    at: float
    inner: tuple[float, float]
    outer: tuple[float, float]


@dataclass(frozen=True)
class Lane:
    """A row of the figure: a name, its verdict, and an interval for each seed."""

    name: str
    verdict: str
    y: float
    verdict_y: float
    bars: Sequence[Bar]


@dataclass(frozen=True)
class Intervals:
    """Differences to retraining in one frame; x in percent, y in pixels."""

    key: str
    about: str
    height: float
    ticks: Sequence[tuple[float, str]]
    zero: float
    band: tuple[float, float] | None
    lanes: Sequence[Lane]


def run_evidence(run: Run) -> dict[str, Any] | None:
    """Return what the template shows of the audit of one run; None if it was not audited."""
    found = read_evidence(run.folder)
    if found is None:
        return None
    lanes: list[tuple[str, str, Sequence[Finding]]] = []
    for name, target in found.targets.items():
        of = f", {name}" if len(found.targets) > 1 else ""
        lanes.append((f"the model{of}", verdict_text(target.finding.verdict), [target.finding]))
        if target.original is not None:
            verdict = verdict_text(target.original.verdict)
            lanes.append((f"ω⁰, before unlearning{of}", verdict, [target.original]))
        if (tail := target.tail) is not None:
            lanes.append((f"the model, hardest tenth{of}", account.alarm(tail), [tail]))
    return {
        "single": True,
        "conclusion": account.conclusion(found),
        "findings": list(account.findings(found)),
        "test": account.test(found),
        "models": account.models(found),
        "intervals": intervals("evidence", lanes),
        "measures": [(name, account.measures(found, name)) for name in found.targets],
        "harm": account.harm(found),
        "clients": account.clients(found),
        "untested": account.untested(found),
        "claims": account.claims(found),
        "revealed": account.revealed(found),
        "left": account.left(found),
        "sentences": found.sentences,
    }


def rows_evidence(collection: Collection, places: Mapping[str, int]) -> dict[str, Any] | None:
    """Return what the template shows of the audits of several rows; None if there were none."""
    found = audited(_folders(collection))
    if not found:
        return None
    lanes = [
        (row, verdict_counts(audits), [target.finding for each in audits for target in each.targets.values()])
        for row, audits in found.items()
    ]
    spread = "; mean ± standard deviation over seeds" if max(map(len, found.values())) > 1 else ""
    grids = [
        Grid(
            f"{caption}{spread}",
            "Row",
            [Heading(column.title, column.key) for column in columns],
            [
                (row, places.get(row), [_cell(column.cell(audits)) for column in columns])
                for row, audits in found.items()
            ],
        )
        for caption, each in TABLES.items()
        if (columns := filled(each, found))
    ]
    return {
        "single": False,
        "told": list(account.rows_of(found)),
        "intervals": intervals("evidence", lanes),
        "grids": grids,
        "test": account.test(next(iter(found.values()))[0]),
    }


def _cell(cell: CellText) -> Cell:
    text, spread, value = cell
    return Cell(text, value, spread=spread)


def _folders(collection: Collection) -> dict[str, list[Path]]:
    """The folders that may hold evidence: of references first, then of each row."""
    references: dict[str, dict[Path, None]] = {}
    for row, runs in collection.rows.items():
        for run in runs:
            seed = run.folder.absolute().parent
            home, column = seed.parent / "references" / seed.name, row.removesuffix(run.folder.name)
            for name, title in REFERENCES.items():
                references.setdefault(f"{column}{title}", {})[home / name] = None
    found = {row: list(folders) for row, folders in references.items()}
    return found | {row: [run.folder for run in runs] for row, runs in collection.rows.items()}


def intervals(key: str, rows: Sequence[tuple[str, str, Sequence[Finding]]]) -> Intervals | None:
    """The figure of differences to retraining; None where nothing was compared with it."""
    compared = [
        (name, verdict, [_compared(finding) for finding in findings if finding.difference is not None])
        for name, verdict, findings in rows
    ]
    compared = [row for row in compared if row[2]]
    if not compared:
        return None
    margin = max((finding.margin or 0.0 for *_, findings in rows for finding in findings), default=0.0)
    outermost = [outer for *_, bars in compared for *_, outer in bars]
    x = _axis([end for outer in outermost for end in (outer.low, outer.high)], margin)
    lanes, y = [], 0.0
    for name, verdict, bars in compared:
        below = len(name) + len(verdict) > WIDEST
        top = y + LINE * (2 if below else 1)
        lanes.append(
            Lane(
                name,
                verdict,
                y + LINE - 4,
                y + LINE * (2 if below else 1) - 4,
                [
                    Bar(
                        top + MARK * (number + 0.5),
                        x.place(at),
                        (x.place(inner.low), x.place(inner.high)),
                        (x.place(outer.low), x.place(outer.high)),
                    )
                    for number, (at, inner, outer) in enumerate(bars)
                ],
            )
        )
        y = top + MARK * len(bars) + 8
    about = "Difference of the AUC to that of retraining: " + "; ".join(
        f"{name} {', '.join(f'{at:+.3f}' for at, *_ in bars)} ({verdict})" for name, verdict, bars in compared
    )
    band = (x.place(-margin), x.place(margin)) if margin else None
    return Intervals(key, f"{about}.", y, x.marks(), x.place(0.0), band, lanes)


def _compared(finding: Finding) -> tuple[float, Interval, Interval]:
    """The difference, its interval of equivalence, and its interval of alarms."""
    assert finding.difference is not None
    point = Interval(finding.difference, finding.difference, 0.0)
    inner = finding.difference_interval or finding.alarm_interval or point
    return finding.difference, inner, finding.alarm_interval or inner


def _axis(values: Sequence[float], margin: float) -> Axis:
    """From below the lowest to above the highest value, with round ticks on both sides of 0."""
    low, high = min(*values, -margin, 0.0), max(*values, margin, 0.0)
    room = 0.03 * (high - low)
    low, high = low - room, high + room
    step = ticks(max(high - low, 1e-6), 6)[1]
    marks = [step * number for number in range(int(low / step), int(high / step) + 1)]
    texts = [(mark, "0" if abs(mark) < step / 2 else f"{mark:+.3g}".replace("-", "−")) for mark in marks]
    return Axis(low, high, tuple(texts))
