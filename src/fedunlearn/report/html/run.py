"""What a report shows of one run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..glossary import GLOSSARY
from ..runs import Collection, Run
from ..summary import numbers, totals
from ..tables import stages
from . import plots
from .plots import Curve, Plot, Style, series, style
from .tables import COLUMNS, HUNDREDTHS, WHOLE, Grid, bars, cell, heat, values


@dataclass(frozen=True)
class Card:
    """One key number, how it came about, and its course."""

    name: str
    term: str
    value: str
    note: str
    course: Plot | None = None


def one(collection: Collection) -> dict[str, Any]:
    """Everything that the template shows of a run alone."""
    run = collection.runs[0]
    drawn = _figures(run) if run.evaluated else []
    return {
        "single": True,
        "lede": run.verdict,
        "cards": _cards(run) if run.evaluated else [],
        "ranked": "",
        "results": _stage_table(run) if run.evaluated else None,
        "clients": _clients(run) if run.evaluated else None,
        "costs": _stage_costs(run) if len(run.rows) > 1 else None,
        "plots": drawn,
        "points": [],
        "scatter": None,
        "panels": [],
    }


def _cards(run: Run) -> list[Card]:
    """Key numbers at the end, each with what it was before."""
    ends = stages(run.folder)
    cards = []
    for key in ("asr", "forget_acc", "r_acc", "r_acc_worst", "distance"):
        steps = [(label, float(row[key])) for label, row in ends.items() if key in row]
        if steps:
            column = COLUMNS[key]
            before = ", ".join(f"{label} {column.write(value)}" for label, value in steps[:-1])
            name = GLOSSARY[column.term][0]
            drawn = course(f"course-{key}", name, [run], {key: name})
            cards.append(Card(name, column.term, column.write(steps[-1][1]), before, drawn))
    counts = [(label, float(row["conflicts"])) for label, row in ends.items() if "conflicts" in row]
    if counts:
        note = ", ".join(f"{label} {HUNDREDTHS(value)}" for label, value in counts)
        most = max(float(row.get("conflicts", 0)) for row in run.rows)
        cards.append(Card("NC", "conflicts", HUNDREDTHS(counts[0][1]), f"{note}; most in a round {most:g}"))
    return cards + _cost_cards(run)


def _cost_cards(run: Run) -> list[Card]:
    found = numbers(run)
    trained = Card(
        "Local trainings",
        "local_trainings",
        WHOLE(found["local_trainings"]),
        f"in {WHOLE(found['rounds'])} rounds",
    )
    sent = f"{WHOLE(found['megabytes_up'])} up, {WHOLE(found['megabytes_down'])} down"
    return [
        trained,
        Card("MB exchanged", "megabytes", WHOLE(found["megabytes"]), sent),
        Card("Seconds", "seconds", WHOLE(found["seconds"]), "of rounds, without evaluation"),
    ]


def _stage_table(run: Run) -> Grid:
    ends = stages(run.folder)
    keys = ["asr", "forget_acc", "r_acc", "r_acc_std", "r_acc_worst", "r_acc_best", "target_acc", "distance"]
    columns = [COLUMNS[key] for key in [*keys, "conflicts"] if any(key in row for row in ends.values())]
    lines = [(label, None, [cell(c, values(row, c.key)) for c in columns]) for label, row in ends.items()]
    return Grid("The last evaluated round of each stage", "Stage", columns, lines)


def _clients(run: Run) -> Grid | None:
    ends = [(label, None, row) for label, row in stages(run.folder).items()]
    return heat("Accuracy of each retained client at the end of each stage", "Stage", ends)


def _stage_costs(run: Run) -> Grid:
    """Conflicts and costs of each stage, as bars."""
    names = list(dict.fromkeys(str(row["stage"]) for row in run.rows if row["stage"] != "start"))
    found = {name: totals([row for row in run.rows if row["stage"] == name]) for name in names}
    return bars("Conflicts and costs by stage", "Stage", {n: [of] for n, of in found.items()}, {})


def _figures(run: Run) -> list[Plot]:
    """Forgetting and utility with the band of clients, distance, and conflicts, over both stages."""
    forgotten = "asr" if "asr" in run.evaluated[0] else "forget_acc"
    names = {forgotten: COLUMNS[forgotten].name, "r_acc": "R-Acc"}
    about = "The band reaches from the worst to the best retained client."
    accuracy = course("accuracy", "Forgetting and utility", [run], names, about=about, band=True)
    about = "How far the parameters have moved."
    distance = course("distance", "Distance to ω⁰", [run], {"distance": "Distance"}, about=about)
    drawn = [accuracy, distance]
    counted = series([run], "conflicts")
    if counted:
        y = plots.amounts([*counted.values(), 1.0], whole=True)
        about = "Retained clients whose loss the step raised."
        curve = [Curve(0, "Conflicts", counted, style(4))]
        edges = plots.borders(run.rows)
        conflict = Plot(
            "conflicts", "Conflicts", about, accuracy.x, y, False, curve, edges, None, bars=counted
        )
        drawn.append(conflict)
    return drawn


STYLES = {"asr": Style(0, "7 4", 0), "forget_acc": Style(0, "7 4", 0), "distance": style(4)}


def course(
    key: str,
    title: str,
    runs: Sequence[Run],
    names: Mapping[str, str],
    *,
    about: str = "",
    band: bool = False,
) -> Plot:
    """Metrics of one row over the rounds."""
    found = {metric: series(runs, metric) for metric in names}
    curves = [
        Curve(place, name, found[metric], STYLES.get(metric, style(1)))
        for place, (metric, name) in enumerate(names.items())
        if found[metric]
    ]
    share = "distance" not in names
    y = plots.shares(()) if share else plots.amounts(found["distance"].values())
    last = max((at for of in found.values() for at in of), default=1)
    edges = plots.borders(max(runs, key=lambda run: run.turn).rows)
    around = (series(runs, "r_acc_worst"), series(runs, "r_acc_best")) if band else None
    return Plot(
        key, title, about or f"{title} over the rounds.", plots.rounds(last), y, share, curves, edges, around
    )
