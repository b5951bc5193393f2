"""What a report shows of several rows: the runs of a comparison, or runs that are put side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ...core import Metrics
from ..glossary import GLOSSARY
from ..runs import Collection, Run, setting, shared
from ..summary import SCORES, Numbers, mean, numbers, origins
from . import plots
from .plots import Curve, Plot, Point, series, style
from .run import Card, course
from .tables import COLUMNS, RESULTS, Cell, Column, Grid, bars, cell, clients, heat, percent

FORGOTTEN = 0.1
"""Rows are ranked among those that end with at most this attack success."""

Finished = Mapping[str, Sequence[Numbers]]
"""The rows that have ended well, with the numbers of each run."""


def many(collection: Collection) -> dict[str, Any]:
    """Everything that the template shows of rows side by side."""
    finished = {
        row: [numbers(run) for run in runs]
        for row, runs in _shown(collection).items()
        if all(run.ended and not run.failed for run in runs)
    }
    points = _points(collection, finished)
    forgotten = _forgotten(collection)
    return {
        "single": False,
        "lede": _summary(finished),
        "cards": _best(finished),
        "ranked": _ranked(finished),
        "results": _results(collection),
        "clients": _clients(collection),
        "costs": _costs(collection),
        "plots": _overlays(collection),
        "points": points,
        "scatter": {
            "x": plots.roots().marks(),
            "y": _utility_axis(collection, finished).marks(),
            "forgotten": GLOSSARY[forgotten][0],
        },
        "panels": _panels(collection, forgotten),
    }


def _shown(collection: Collection) -> dict[str, list[Run]]:
    """The runs that speak for each row: those that ended, well or not, or else those with numbers."""
    shown = {}
    for row, runs in collection.rows.items():
        measured = [run for run in runs if run.evaluated]
        if measured:
            shown[row] = [run for run in measured if run.ended] or measured
    return shown


def _whole(collection: Collection) -> dict[str, list[Run]]:
    """For what a failed run would cut short: those of each row that did not fail, where there are any."""
    return {row: [run for run in runs if not run.failed] or runs for row, runs in _shown(collection).items()}


def _forgotten(collection: Collection) -> str:
    rows = [row for run in collection.runs for row in run.evaluated]
    return "forget_acc" if rows and not any("asr" in row for row in rows) else "asr"


def _candidates(finished: Finished) -> Finished:
    """The rows that have forgotten; all, where none has or nothing shows it."""
    chosen = {row: found for row, found in finished.items() if (mean(found, "asr") or 0.0) <= FORGOTTEN}
    return chosen or finished


def _summary(finished: Finished) -> str:
    """A comparison in one sentence."""
    if not finished:
        return "No run has ended yet."
    judged = {row: found for row, found in finished.items() if mean(found, "asr") is not None}
    best = max(_candidates(finished).items(), key=lambda item: mean(item[1], "r_acc") or 0.0)
    kept = f"{best[0]} keeps the highest R-Acc ({percent(mean(best[1], 'r_acc') or 0.0)})"
    below = [row for row, found in judged.items() if (mean(found, "asr") or 0.0) <= FORGOTTEN]
    if not judged:
        return f"Of {len(finished)} rows, {kept}."
    count = f"{len(below)} of {len(judged)} finished rows end with an ASR of at most {FORGOTTEN:.0%}"
    return f"{count}; among {'them' if below else 'all'}, {kept}."


def _ranked(finished: Finished) -> str:
    chosen = _candidates(finished)
    if not chosen or len(chosen) == len(finished):
        return ""
    return f"Best of the {len(chosen)} rows that end with an ASR of at most {FORGOTTEN:.0%}."


def _best(finished: Finished) -> list[Card]:
    """For each key number, the row that does best."""
    cards = []
    chosen = _candidates(finished)
    for key, name, sign in BEST:
        values = {row: value for row, found in chosen.items() if (value := mean(found, key)) is not None}
        if values:
            best = min(values.values(), key=lambda value: sign * value)
            rows = [row for row, value in values.items() if value == best]
            column = COLUMNS[key]
            who = ", ".join(rows[:3]) + (f" and {len(rows) - 3} more" if len(rows) > 3 else "")
            cards.append(Card(name, column.term, column.write(best), who))
    return cards


BEST = (
    ("asr", "Lowest ASR", 1),
    ("forget_acc", "Lowest forget accuracy", 1),
    ("r_acc", "Highest R-Acc", -1),
    ("r_acc_worst", "Best worst client", -1),
    ("distance", "Smallest distance", 1),
    ("conflicts", "Lowest NC", 1),
    ("local_trainings", "Fewest local trainings", 1),
    ("megabytes", "Fewest MB exchanged", 1),
    ("seconds", "Fewest seconds", 1),
)


def _results(collection: Collection) -> Grid:
    """ω⁰ and every row after each stage; several seeds are a mean ± deviation."""
    shown = _shown(collection)
    found = {row: [numbers(run) for run in shown.get(row, [])] for row in collection.rows}
    columns = [
        column for key, column in RESULTS.items() if any(key in of for many in found.values() for of in many)
    ]

    def cells(numbers: Sequence[Numbers]) -> list[Cell]:
        return [cell(column, [of[column.key] for of in numbers if column.key in of]) for column in columns]

    places = _places(collection)
    lines: list[tuple[str, int | None, Cell, list[Cell]]] = [
        (name, None, Cell("–"), cells(begun)) for name, begun in _origins(collection).items()
    ]
    lines += [(row, places[row], _ends(runs), cells(found[row])) for row, runs in collection.rows.items()]
    plain = all(run.ended and not run.failed for run in collection.runs)
    ended = [] if plain else [Column("ended", "Ended", "ended", str)]
    counts = {len(runs) for runs in shown.values()}
    upto = "up to " if len(counts) > 1 else ""
    spread = f"; mean ± standard deviation of {upto}{max(counts)} runs" if max(counts, default=1) > 1 else ""
    if _failed(collection):
        spread += "; a failed run counts as it ended"
    return Grid(
        f"After unlearning (¹) and after post-training (²){spread}",
        "Row",
        [*ended, *columns],
        [(name, place, of if plain else [end, *of]) for name, place, end, of in lines],
    )


def _origins(collection: Collection) -> dict[str, list[Numbers]]:
    """ω⁰, in the columns of the first stage."""
    rows = {
        row: {int(run.config.get("seed", 0)): _beginning(run) for run in runs}
        for row, runs in _shown(collection).items()
    }
    return origins(rows, same_request=collection.comparison)


def _beginning(run: Run) -> Numbers:
    row = run.evaluated[0]
    found = {f"{key}_1": float(row[key]) for key in SCORES if key in row and key != "distance"}
    return found | {key: float(row[key]) for key in ("target_acc", "distance") if key in row}


def _ends(runs: Sequence[Run]) -> Cell:
    """How the runs of a row ended; the number of each where they differ."""
    counts = Counter(run.standing.partition(":")[0] for run in runs)
    text = (
        ", ".join(f"{count} {end}" for end, count in counts.items())
        if len(counts) > 1
        else next(iter(counts))
    )
    return Cell(text, text)


def _clients(collection: Collection) -> Grid | None:
    """ω⁰ and every row at its end, client by client, in the first of its seeds."""
    first = {row: runs[0] for row, runs in _whole(collection).items()}
    places = _places(collection)
    begun: dict[str, tuple[str, int | None, Metrics]] = {}
    for row, run in first.items():
        name = f"ω⁰ ({row})" if begun else "ω⁰"
        begun.setdefault(str(clients(run.evaluated[0])), (name, None, run.evaluated[0]))
    ends = [(row, places[row], run.evaluated[-1]) for row, run in first.items()]
    seeds = {run.config.get("seed") for run in first.values()}
    which = f"seed {seeds.pop()}" if len(seeds) == 1 else "the first seed of each row"
    return heat(f"Accuracy of each retained client at the end; {which}", "Row", [*begun.values(), *ends])


def _costs(collection: Collection) -> Grid:
    """What each row did to the clients and cost, as bars."""
    rows = {row: [numbers(run) for run in runs] for row, runs in _whole(collection).items()}
    return bars("Conflicts and costs of each row, after the request", "Row", rows, _places(collection))


def _places(collection: Collection) -> dict[str, int]:
    return {row: place for place, row in enumerate(collection.rows)}


def _overlays(collection: Collection) -> list[Plot]:
    """One plot for each metric, with a curve for each row."""
    forgotten, shown = _forgotten(collection), _whole(collection)
    plan = setting(shared(run.config for run in collection.runs), "unlearning", "rounds")
    elsewhere = [row for row, runs in shown.items() if plan and not all(_turns_at(run, plan) for run in runs)]
    failed = "; failed runs are left out of rows that have others" if _failed(collection) else ""
    drawn = []
    for key in (forgotten, "r_acc", "r_acc_worst", "distance"):
        curves = [
            Curve(place, row, values, style(place))
            for place, row in enumerate(collection.rows)
            if row in shown and (values := _curve(shown[row], key))
        ]
        if curves:
            seen = [value for curve in curves for value in curve.values.values()]
            last = max(at for curve in curves for at in curve.values)
            y = plots.magnitudes(seen) if key == "distance" else plots.shares(seen, whole=key == forgotten)
            title = GLOSSARY[COLUMNS[key].term][0]
            about = f"{title} over the rounds, one curve for each row{failed}."
            parted = plan and plan < last and len(elsewhere) <= len(shown) / 2
            if parted and elsewhere:
                about += f" Post-training begins elsewhere for {', '.join(elsewhere)}."
            edges = [(0.0, "unlearning"), (float(plan), "post-training")] if parted else []
            drawn.append(Plot(key, title, about, plots.rounds(last), y, key != "distance", curves, edges))
    return drawn


def _turns_at(run: Run, planned: float) -> bool:
    """Whether its post-training, as far as it has begun, begins there; preparing may cost a round more."""
    begun = any(row["stage"] == "post-training" for row in run.rows)
    return abs(run.turn - planned) <= 1 or not begun


def _failed(collection: Collection) -> bool:
    return any(run.failed for run in collection.runs)


def _curve(runs: Sequence[Run], key: str) -> dict[float, float]:
    """A metric by round; a distance of zero has no place on a logarithmic axis."""
    return {at: value for at, value in series(runs, key).items() if key != "distance" or value > 0}


def _utility_axis(collection: Collection, finished: Finished) -> plots.Axis:
    """R-Acc, as far as the points of the trade-off reach."""
    of_rows = [found for many in (*finished.values(), *_origins(collection).values()) for found in many]
    seen = [found[key] for found in of_rows for key in ("r_acc", "r_acc_1") if key in found]
    return plots.shares(seen, whole=False)


def _points(collection: Collection, finished: Finished) -> list[Point]:
    """Forgetting against utility at the end of each finished row, and of ω⁰."""
    x, y, key = plots.roots(), _utility_axis(collection, finished), _forgotten(collection)
    places = _places(collection)

    def place(found: Sequence[Numbers], stage: str) -> tuple[float, float] | None:
        forgotten, utility = mean(found, key + stage), mean(found, "r_acc" + stage)
        return None if forgotten is None or utility is None else (x.place(forgotten), y.place(utility))

    def said(name: str, found: Sequence[Numbers], stage: str) -> str:
        forgotten, utility = mean(found, key + stage) or 0.0, mean(found, "r_acc" + stage) or 0.0
        return f"{name}: {GLOSSARY[key][0]} {percent(forgotten)}, R-Acc {percent(utility)}"

    points = []
    for row, found in finished.items():
        if at := place(found, ""):
            before = place(found, "_1") if mean(found, "r_acc_2") is not None else None
            points.append(Point(places[row], row, *at, before, style(places[row]), said(row, found, "")))
    for name, found in _origins(collection).items():
        if finished and (at := place(found, "_1")):
            points.append(Point(-1, name, *at, None, None, said(name, found, "_1")))
    return plots.scattered(points)


def _panels(collection: Collection, forgotten: str) -> list[dict[str, Any]]:
    """A small plot of its own for each row."""
    panels = []
    for row, runs in _whole(collection).items():
        names = {forgotten: COLUMNS[forgotten].name, "r_acc": "R-Acc"}
        plot = course("panel", row, runs, names, about=f"{row}: forgetting and utility over the rounds.")
        panels.append({"plot": plot, "verdicts": [run.verdict for run in runs]})
    return panels
