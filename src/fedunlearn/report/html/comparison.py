"""The HTML report of several rows: a comparison, or runs side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ...core import Metrics
from ...measures.metrics import metric
from ..conclusions import RULE, Judgement, headline, judge, noted, verdict, warnings
from ..runs import STAGES, Collection, Run
from ..settings import setting, shared
from ..summary import Column, Numbers, mean, minus, origins, result_columns, summarise
from . import plots
from .evidence import rows_evidence
from .plots import Curve, Plot, Point, series, style
from .run import course
from .tables import Cell, Grid, Heading, bars, by_client, cell, heading, heat


@dataclass(frozen=True)
class Rows:
    """The rows of a collection, and the runs that represent each of them."""

    collection: Collection

    @cached_property
    def shown(self) -> dict[str, list[Run]]:
        """The runs that represent each row: those that ended, or else those that were evaluated."""
        shown = {}
        for row, runs in self.collection.rows.items():
            measured = [run for run in runs if run.evaluated]
            if measured:
                shown[row] = [run for run in measured if run.ended] or measured
        return shown

    @cached_property
    def whole(self) -> dict[str, list[Run]]:
        """The runs of each row that did not fail, if any; a failed run would shorten curves."""
        return {row: [run for run in runs if not run.failed] or runs for row, runs in self.shown.items()}

    @cached_property
    def finished(self) -> dict[str, list[Run]]:
        """The rows whose runs have all ended without failing."""
        return {
            row: runs for row, runs in self.shown.items() if all(run.ended and not run.failed for run in runs)
        }

    @cached_property
    def numbers(self) -> dict[str, list[Numbers]]:
        return {row: [summarise(run) for run in runs] for row, runs in self.shown.items()}

    @cached_property
    def starts(self) -> dict[str, list[Numbers]]:
        """ω⁰, in the columns of the first stage."""
        return origins(self.shown, same_request=self.collection.comparison)

    @cached_property
    def judgement(self) -> Judgement:
        asked = {
            (run.config.get("start"), *run.targets)
            for runs in self.finished.values()
            for run in runs
            if run.forgetting
        }
        return judge(self.finished if self.collection.comparison or len(asked) == 1 else {})

    @cached_property
    def forgetting(self) -> str | None:
        return next((key for runs in self.shown.values() for run in runs if (key := run.forgetting)), None)

    @cached_property
    def utility(self) -> str | None:
        return next((key for runs in self.shown.values() for run in runs if (key := run.utility)), None)

    @property
    def places(self) -> dict[str, int]:
        return {row: place for place, row in enumerate(self.collection.rows)}

    @property
    def failed(self) -> bool:
        return any(run.failed for run in self.collection.runs)


def comparison_page(collection: Collection) -> dict[str, Any]:
    """Everything that the template shows of rows side by side."""
    rows = Rows(collection)
    return {
        "single": False,
        "lede": headline(rows.finished, rows.judgement),
        "rule": RULE if rows.judgement.judged else "",
        "warnings": warnings(rows.judgement),
        "noted": noted(rows.collection.rows),
        "evidence": rows_evidence(collection, rows.places),
        "cards": [],
        "results": _results(rows),
        "differences": _differences(rows),
        "clients": _clients(rows),
        "costs": _costs(rows),
        "plots": _overlays(rows),
        "points": _points(rows),
        "scatter": _scatter(rows),
        "panels": _panels(rows),
    }


def _results(rows: Rows) -> Grid:
    """ω⁰ and every row after each stage; several seeds are shown as mean ± standard deviation."""
    columns = result_columns(run for runs in rows.numbers.values() for run in runs)

    def cells(found: Sequence[Numbers]) -> list[Cell]:
        return [cell(column, found) for column in columns]

    lines: list[tuple[str, int | None, Cell, list[Cell]]] = [
        (name, None, Cell("–"), cells(start)) for name, start in rows.starts.items()
    ]
    lines += [
        (row, rows.places[row], _ends(runs), cells(rows.numbers.get(row, [])))
        for row, runs in rows.collection.rows.items()
    ]
    plain = all(run.ended and not run.failed for run in rows.collection.runs)
    counts = {len(runs) for runs in rows.shown.values()}
    upto = "up to " if len(counts) > 1 else ""
    spread = f"; mean ± standard deviation of {upto}{max(counts)} runs" if max(counts, default=1) > 1 else ""
    if rows.failed:
        spread += "; a failed run counts with its last numbers"
    return Grid(
        f"After unlearning (¹) and after post-training or retraining (²){spread}",
        "Row",
        [*([] if plain else [Heading("Ended", "ended")]), *map(heading, columns)],
        [(name, place, shown if plain else [end, *shown]) for name, place, end, shown in lines],
    )


def _differences(rows: Rows) -> Grid | None:
    """What every row of the same request has more or less than retraining at the end."""
    judged = {row: rows.finished[row] for row in rows.judgement.memories}
    if len(judged) < 2 or not rows.judgement.references:
        return None
    reference = rows.judgement.references[0]
    found = minus(judged, reference)
    keys = dict.fromkeys(key for runs in found.values() for numbers in runs for key in numbers)
    columns = [Column(key, metric(key), sign="+") for key in keys]
    lines = [(row, rows.places[row], [cell(shown, runs) for shown in columns]) for row, runs in found.items()]
    units, key = "% are points", rows.utility
    if key and any(key not in numbers for runs in found.values() for numbers in runs):
        units += f"; {metric(key).title} is left out where other clients were measured"
    return Grid(f"At the end, minus {reference} ({units})", "Row", [*map(heading, columns)], lines)


def _ends(runs: Sequence[Run]) -> Cell:
    """How the runs of a row ended, with counts if they differ."""
    counts = Counter(run.standing.partition(":")[0] for run in runs)
    text = (
        ", ".join(f"{count} {end}" for end, count in counts.items())
        if len(counts) > 1
        else next(iter(counts))
    )
    return Cell(text, text)


def _clients(rows: Rows) -> Grid | None:
    """The accuracy of each client with ω⁰ and at the end of every row, for the row's first seed."""
    first = {row: runs[0] for row, runs in rows.whole.items()}
    starts: dict[str, tuple[str, int | None, Metrics]] = {}
    for row, run in first.items():
        name = f"{run.origin} ({row})" if starts else run.origin
        starts.setdefault(str(by_client(run.evaluated[0])), (name, None, run.evaluated[0]))
    ends = [(row, rows.places[row], run.evaluated[-1]) for row, run in first.items()]
    seeds = {run.config.get("seed") for run in first.values()}
    which = f"seed {seeds.pop()}" if len(seeds) == 1 else "the first seed of each row"
    return heat(f"Accuracy of each retained client at the end; {which}", "Row", [*starts.values(), *ends])


def _costs(rows: Rows) -> Grid:
    """The conflicts and costs of each row, as bars."""
    found = {row: [summarise(run) for run in runs] for row, runs in rows.whole.items()}
    return bars("Conflicts and costs of each row, after the request", "Row", found, rows.places)


def _overlays(rows: Rows) -> list[Plot]:
    """One plot for each metric, with a curve for each row."""
    planned = setting(shared(run.config for run in rows.collection.runs), "unlearning", "rounds")
    elsewhere = [
        row
        for row, runs in rows.whole.items()
        if planned and not all(_turns_at(run, planned) for run in runs)
    ]
    failed = "; failed runs are omitted if the row has others" if rows.failed else ""
    shown = []
    worst = f"{rows.utility}_worst" if rows.utility else None
    for key in filter(None, (rows.forgetting, rows.utility, worst, "distance")):
        curves = [
            Curve(place, row, values, style(place))
            for place, row in enumerate(rows.collection.rows)
            if row in rows.whole and (values := _curve(rows.whole[row], key))
        ]
        if curves:
            seen = [value for curve in curves for value in curve.values.values()]
            last = max(at for curve in curves for at in curve.values)
            title, share = metric(key).title, metric(key).unit == "share"
            about = f"{title} over the rounds, one curve for each row{failed}."
            divided = planned and planned < last and len(elsewhere) <= len(rows.whole) / 2
            if divided and elsewhere:
                about += f" Post-training begins at another round for {', '.join(elsewhere)}."
            edges = [(0.0, "unlearning"), (float(planned), "post-training")] if divided else []
            y = _axis(key, seen, whole=key == rows.forgetting)
            shown.append(Plot(key, title, about, plots.rounds(last), y, share, curves, edges))
    return shown


def _axis(key: str, values: Sequence[float], *, whole: bool) -> plots.Axis:
    if key == "distance":
        return plots.magnitudes(values)
    return plots.shares(values, whole=whole) if metric(key).unit == "share" else plots.amounts(values)


def _turns_at(run: Run, planned: float) -> bool:
    """Whether post-training begins at the planned round, or one later, or has not begun yet."""
    begun = any(row["stage"] == "post-training" for row in run.rows)
    return abs(run.turn - planned) <= 1 or not begun


def _curve(runs: Sequence[Run], key: str) -> dict[float, float]:
    """A metric by round, without distances of zero, which a logarithmic axis cannot show."""
    return {at: value for at, value in series(runs, key).items() if key != "distance" or value > 0}


def _axes(rows: Rows) -> tuple[plots.Axis, plots.Axis]:
    """The axes of forgetting and utility that cover the points of the trade-off."""
    shown = [*(rows.numbers[row] for row in rows.finished), *rows.starts.values()]

    def seen(key: str) -> list[float]:
        return [run[name] for runs in shown for run in runs for name in (key, f"{key}_1") if name in run]

    forgetting, utility = str(rows.forgetting), str(rows.utility)
    x = plots.roots() if metric(forgetting).unit == "share" else plots.amounts(seen(forgetting))
    return x, _axis(utility, seen(utility), whole=False)


def _scatter(rows: Rows) -> dict[str, Any] | None:
    """The axes of the trade-off, which direction is better, and the level of retraining."""
    if not rows.forgetting or not rows.utility:
        return None
    (x, y), judgement, score = _axes(rows), rows.judgement, metric(rows.forgetting)
    aim = judgement.aim
    useful = metric(rows.utility)
    better = "Down and left is better." if useful.better == "lower" else "Up and left is better."
    if judgement.metric is None:
        better = "The rows are not ranked: see the first sentence."
    elif judgement.nothing_to_forget:
        better = f"{score.title} ranks nothing here: see the first sentence."
    elif score.better == "retraining":
        better = (
            f"Closer to the line is better, and {'lower' if useful.better == 'lower' else 'higher'} "
            f"{useful.title}; the line is the {score.title} of retraining."
            if aim is not None
            else f"Without a finished retrain row, no side is better: no {score.title} is good in itself."
        )
    if [*rows.starts] == [STAGES["start"]]:
        better += " All rows start at ω⁰."
    return {
        "x": x.marks(),
        "y": y.marks(),
        "x_title": score.title + (" (square-root scale)" if score.unit == "share" else ""),
        "y_title": metric(rows.utility).title,
        "better": better,
        "aim": None if aim is None else x.place(aim),
    }


def _points(rows: Rows) -> list[Point]:
    """Forgetting and utility of ω⁰ and at the end of each finished row."""
    if not rows.forgetting or not rows.utility:
        return []
    (x, y), key, utility = _axes(rows), rows.forgetting, rows.utility

    def place(found: Sequence[Numbers], stage: str) -> tuple[float, float] | None:
        remembered, kept = mean(found, key + stage), mean(found, utility + stage)
        return None if remembered is None or kept is None else (x.place(remembered), y.place(kept))

    def described(name: str, found: Sequence[Numbers], stage: str) -> str:
        values = ((metric(name), mean(found, name + stage) or 0.0) for name in (key, utility))
        return f"{name}: " + ", ".join(f"{score.title} {score.text(value)}" for score, value in values)

    points = []
    for row in rows.finished:
        found = rows.numbers[row]
        if at := place(found, ""):
            begin = place(found, "_1") if mean(found, f"{utility}_2") is not None else None
            look = style(rows.places[row])
            points.append(Point(rows.places[row], row, *at, begin, look, described(row, found, "")))
    for name, found in rows.starts.items():
        if rows.finished and (at := place(found, "_1")):
            points.append(Point(-1, name, *at, None, None, described(name, found, "_1")))
    return plots.scattered(points)


def _panels(rows: Rows) -> list[dict[str, Any]]:
    """A small plot for each row."""
    panels = []
    keys = [key for key in (rows.forgetting, rows.utility) if key and metric(key).unit == "share"]
    for row, runs in rows.whole.items() if keys else ():
        plot = course("panel", row, runs, keys, about=f"{row}: forgetting and utility over the rounds.")
        panels.append({"plot": plot, "verdicts": [verdict(run) for run in runs]})
    return panels
