"""The HTML report of one run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...measures.metrics import metric
from ..conclusions import verdict
from ..runs import Collection, Run
from ..summary import column, costs, summarise
from ..tables import stage_keys
from . import plots
from .evidence import run_evidence
from .plots import Curve, Plot, Style, series, style
from .tables import Grid, bars, cell, heading, heat


@dataclass(frozen=True)
class Card:
    """One key number, a note about it, and its course over the rounds."""

    name: str
    term: str
    value: str
    note: str
    course: Plot | None = None


def run_page(collection: Collection) -> dict[str, Any]:
    """Everything that the template shows of a single run."""
    run = collection.runs[0]
    return {
        "single": True,
        "lede": verdict(run),
        "rule": "",
        "warnings": [],
        "noted": [],
        "evidence": run_evidence(run),
        "cards": _cards(run) if run.evaluated else [],
        "results": _stage_table(run) if run.evaluated else None,
        "differences": None,
        "clients": _clients(run) if run.evaluated else None,
        "costs": _stage_costs(run) if len(run.rows) > 1 else None,
        "plots": _figures(run) if run.evaluated else [],
        "points": [],
        "scatter": None,
        "panels": [],
    }


def _cards(run: Run) -> list[Card]:
    """Key numbers at the end, each with its earlier values."""
    cards = []
    for key in filter(None, (run.forgetting, run.utility, f"{run.utility}_worst", "distance")):
        score = metric(key)
        steps = [(label, float(row[key])) for label, row in run.stages.items() if key in row]
        if steps:
            before = ", ".join(f"{label} {score.text(value)}" for label, value in steps[:-1])
            plot = course(f"course-{key}", score.title, [run], [key])
            cards.append(Card(score.title, key, score.text(steps[-1][1]), before, plot))
    return cards + _conflict_card(run) + _cost_cards(run)


def _conflict_card(run: Run) -> list[Card]:
    """Conflicts of the first stage that counts them; the card names the stage."""
    score = metric("conflicts")
    counts = [
        (run.stage(str(row["stage"])), float(row["conflicts"]))
        for row in run.stages.values()
        if "conflicts" in row
    ]
    if not counts:
        return []
    (stage, value), *others = counts
    most = max(float(row.get("conflicts", 0)) for row in run.rows)
    note = ", ".join(f"{name} {score.text(count)}" for name, count in others)
    note = f"{note}; maximum per round {most:g}" if note else f"maximum per round {most:g}"
    return [Card(f"{score.title} in {stage}", "conflicts", score.text(value), note)]


def _cost_cards(run: Run) -> list[Card]:
    found = summarise(run)
    text = {key: metric(key).text(value) for key, value in found.items()}
    notes = {
        "local_trainings": f"in {text['rounds']} rounds",
        "bytes": f"{text['bytes_up']} up, {text['bytes_down']} down",
        "seconds": "rounds only, without evaluation",
    }
    return [Card(metric(key).title, key, text[key], note) for key, note in notes.items()]


def _stage_table(run: Run) -> Grid:
    columns = [column(key) for key in stage_keys(run.stages)]
    lines = [
        (
            label,
            None,
            [
                cell(shown, [{shown.key: float(row[shown.key])}] if shown.key in row else [])
                for shown in columns
            ],
        )
        for label, row in run.stages.items()
    ]
    return Grid("The last evaluated round of each stage", "Stage", list(map(heading, columns)), lines)


def _clients(run: Run) -> Grid | None:
    ends = [(label, None, row) for label, row in run.stages.items()]
    return heat("Accuracy of each retained client at the end of each stage", "Stage", ends)


def _stage_costs(run: Run) -> Grid:
    """Conflicts and costs of each stage, as bars."""
    names = list(dict.fromkeys(str(row["stage"]) for row in run.all_rows if row["stage"] != "start"))
    found = {run.stage(n): [costs([row for row in run.all_rows if row["stage"] == n])] for n in names}
    return bars("Conflicts and costs by stage", "Stage", found, {})


def _figures(run: Run) -> list[Plot]:
    """Forgetting and utility with the band of clients, distance, and conflicts, over both stages."""
    keys = [key for key in (run.forgetting, run.utility) if key]
    banded = f"{run.utility}_worst" in run.evaluated[0] and f"{run.utility}_best" in run.evaluated[0]
    about = "The band spans the worst to the best retained client." if banded else ""
    scores = course("scores", "Forgetting and utility", [run], keys, about=about, band=banded)
    about = "How far the parameters have moved."
    origin = "the start" if run.trains else "ω⁰"
    drawn = [scores, course("distance", f"Distance to {origin}", [run], ["distance"], about=about)]
    counted = series([run], "conflicts")
    if counted:
        y = plots.amounts([*counted.values(), 1.0], whole=True)
        about = "Retained clients whose loss the step increased."
        curve = [Curve(0, "Conflicts", counted, style(4))]
        edges = plots.borders(run)
        drawn.append(
            Plot("conflicts", "Conflicts", about, scores.x, y, False, curve, edges, None, bars=counted)
        )
    return drawn


REMEMBERED, KEPT, MOVED = Style(0, "7 4", 0), style(1), style(4)


def course(
    key: str,
    title: str,
    runs: Sequence[Run],
    metrics: Sequence[str],
    *,
    about: str = "",
    band: bool = False,
) -> Plot:
    """Metrics of one row over the rounds."""
    found = {name: series(runs, name) for name in metrics}
    styles = {runs[0].forgetting: REMEMBERED, "distance": MOVED}
    curves = [
        Curve(place, metric(name).title, values, styles.get(name, KEPT))
        for place, (name, values) in enumerate(found.items())
        if values
    ]
    share = all(metric(name).unit == "share" for name in metrics)
    y = (
        plots.shares(())
        if share
        else plots.amounts(value for values in found.values() for value in values.values())
    )
    last = max((at for values in found.values() for at in values), default=1)
    edges = plots.borders(max(runs, key=lambda run: run.turn))
    ends = (f"{runs[0].utility}_worst", f"{runs[0].utility}_best")
    around = (series(runs, ends[0]), series(runs, ends[1])) if band else None
    return Plot(
        key, title, about or f"{title} over the rounds.", plots.rounds(last), y, share, curves, edges, around
    )
