"""One HTML file about a run, several runs or a comparison, from their files alone; it needs nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from ..methods import method
from ..record import write
from ..types import FedUnlearnError, Metrics
from . import plots
from .comparison import figures
from .folders import Collection, Run, collect, flat, setting, shared
from .glossary import GLOSSARY
from .plots import Curve, Plot, Point, series, style
from .recipes import recipes
from .tables import LABELS, stages

FORGOTTEN = 0.1
"""Rows of a comparison are ranked among those that end with at most this attack success."""


@dataclass(frozen=True)
class Column:
    """A heading, the entry of the glossary that explains it, and how its values are written."""

    key: str
    name: str
    term: str
    write: Callable[[float], str]


@dataclass(frozen=True)
class Cell:
    """What a table shows, what it sorts by, and perhaps a bar or a span in percent."""

    text: str
    value: float | str | None = None
    bar: float | None = None
    span: tuple[float, float, float] | None = None


@dataclass(frozen=True)
class Grid:
    """A table that can be sorted; the first cell of a line names it."""

    caption: str
    first: str
    columns: Sequence[Column]
    lines: Sequence[tuple[str, int | None, Sequence[Cell]]]


@dataclass(frozen=True)
class Card:
    """One key number, how it came about, and its course."""

    name: str
    term: str
    value: str
    note: str
    course: Plot | None = None


def percent(value: float) -> str:
    """A share, as people read it."""
    return f"{value:.1%}"


def number(digits: int, value: float) -> str:
    """A number with thousands separated."""
    return f"{value:,.{digits}f}"


WHOLE, HUNDREDTHS, THOUSANDTHS = (partial(number, digits) for digits in (0, 2, 3))
COLUMNS = {
    "asr": Column("asr", "ASR", "asr", percent),
    "forget_acc": Column("forget_acc", "Forget acc", "forget_acc", percent),
    "r_acc": Column("r_acc", "R-Acc", "r_acc", percent),
    "r_acc_std": Column("r_acc_std", "std", "r_acc_worst", percent),
    "r_acc_worst": Column("r_acc_worst", "Worst", "r_acc_worst", percent),
    "r_acc_best": Column("r_acc_best", "Best", "r_acc_worst", percent),
    "target_acc": Column("target_acc", "Target clean", "target_acc", percent),
    "distance": Column("distance", "Distance", "distance", THOUSANDTHS),
    "conflicts": Column("conflicts", "NC", "conflicts", HUNDREDTHS),
    "local_trainings": Column("local_trainings", "Local trainings", "local_trainings", WHOLE),
    "megabytes_up": Column("megabytes_up", "MB up", "megabytes", WHOLE),
    "megabytes_down": Column("megabytes_down", "MB down", "megabytes", WHOLE),
    "megabytes": Column("megabytes", "MB up + down", "megabytes", WHOLE),
    "megabytes_stored": Column("megabytes_stored", "MB stored", "megabytes_stored", WHOLE),
    "seconds": Column("seconds", "Seconds", "seconds", WHOLE),
}
RESULTS = {
    "asr_1": Column("asr_1", "ASR¹", "asr", percent),
    "forget_acc_1": Column("forget_acc_1", "Forget acc¹", "forget_acc", percent),
    "r_acc_1": Column("r_acc_1", "R-Acc¹", "r_acc", percent),
    "worst_1": Column("worst_1", "Worst¹", "r_acc_worst", percent),
    "asr_2": Column("asr_2", "ASR²", "asr", percent),
    "forget_acc_2": Column("forget_acc_2", "Forget acc²", "forget_acc", percent),
    "r_acc_2": Column("r_acc_2", "R-Acc²", "r_acc", percent),
    "worst_2": Column("worst_2", "Worst²", "r_acc_worst", percent),
    **{key: COLUMNS[key] for key in ("target_acc", "distance", "conflicts")},
}
COSTS = ("conflicts", "local_trainings", "megabytes_up", "megabytes_down", "megabytes_stored", "seconds")


def write_report(folders: Sequence[Path], path: Path) -> Path:
    """Writes one self-contained HTML file about some run or comparison folders."""
    write(path, render(collect(folders)).encode())
    return path


def render(collection: Collection) -> str:
    """The page; whatever comes from files is escaped by the template."""
    try:
        import jinja2
    except ImportError:
        raise FedUnlearnError("the HTML report needs jinja2: pip install 'fedunlearn[report]'") from None
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("fedunlearn.report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    return environment.get_template("report.html").render(_page(collection))


def _page(collection: Collection) -> dict[str, Any]:
    """Everything that the template shows."""
    page = _one(collection) if len(collection.runs) == 1 else _many(collection)
    drawn: list[Plot] = page["plots"]
    points: Sequence[Point] = page["points"]
    return {
        **page,
        "name": collection.name,
        "rows": list(collection.rows),
        "styles": [style(place) for place in range(len(collection.rows))],
        "asked": asked(collection),
        "notes": [f"{row}: {run.standing}" for row, run in _each(collection) if not run.ended or run.failed],
        "differing": _differing(collection),
        "methods": _methods(collection),
        "runs": _each(collection),
        "environments": _environments(collection),
        "recipes": recipes(collection),
        "glossary": GLOSSARY,
        "script": {
            "plots": {plot.key: plot.values() for plot in drawn},
            "points": [{"row": p.row, "x": p.x, "y": p.y, "text": p.text} for p in points],
        },
    }


# One run


def _one(collection: Collection) -> dict[str, Any]:
    (run,) = collection.runs
    drawn = _courses(run) if run.evaluated else []
    return {
        "single": True,
        "lede": run.verdict,
        "cards": _cards(run) if run.evaluated else [],
        "ranked": "",
        "results": _stage_table(run) if run.evaluated else None,
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
            course = _plot(f"course-{key}", name, [run], {key: name})
            cards.append(Card(name, column.term, column.write(steps[-1][1]), before, course))
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
    lines = [(label, None, [_cell(c, _values(row, c.key)) for c in columns]) for label, row in ends.items()]
    return Grid("The last evaluated round of each stage", "Stage", columns, lines)


def _stage_costs(run: Run) -> Grid:
    """Conflicts and costs of each stage, as bars."""
    names = list(dict.fromkeys(str(row["stage"]) for row in run.rows if row["stage"] != "start"))
    found = {name: totals([row for row in run.rows if row["stage"] == name]) for name in names}
    return _bars("Conflicts and costs by stage", "Stage", {n: [of] for n, of in found.items()}, {})


def _courses(run: Run) -> list[Plot]:
    """Forgetting and utility with the band of clients, distance, and conflicts, over both stages."""
    forgotten = "asr" if "asr" in run.evaluated[0] else "forget_acc"
    names = {forgotten: COLUMNS[forgotten].name, "r_acc": "R-Acc"}
    about = "Forgetting and utility over the rounds; the band reaches from the worst to the best client."
    accuracy = _plot("accuracy", "Forgetting and utility", [run], names, about=about, band=True)
    distance = _plot("distance", "Distance to ω⁰", [run], {"distance": "Distance"})
    drawn = [accuracy, distance]
    counted = series([run], "conflicts")
    if counted:
        y = plots.amounts([*counted.values(), 1.0], whole=True)
        about = "Retained clients whose loss the step of a round raised, to first order."
        curve = [Curve(0, "Conflicts", counted, style(4))]
        edges = plots.borders(run.rows)
        conflict = Plot(
            "conflicts", "Conflicts", about, accuracy.x, y, False, curve, edges, None, bars=counted
        )
        drawn.append(conflict)
    return drawn


STYLES = {"asr": style(0), "forget_acc": style(0), "r_acc": style(1), "distance": style(4)}


def _plot(
    key: str, title: str, runs: Sequence[Run], names: Mapping[str, str], *, about: str = "", band: bool = False
) -> Plot:
    """Metrics of one row over the rounds."""
    found = {metric: series(runs, metric) for metric in names}
    looks = {**STYLES, "asr": plots.Style(0, "7 4", 0), "forget_acc": plots.Style(0, "7 4", 0)}
    curves = [
        Curve(place, name, found[metric], looks.get(metric, style(1)))
        for place, (metric, name) in enumerate(names.items())
        if found[metric]
    ]
    share = "distance" not in names
    y = plots.shares(()) if share else plots.amounts(found["distance"].values())
    last = max((at for of in found.values() for at in of), default=1)
    edges = plots.borders([row for run in runs[:1] for row in run.rows])
    around = (series(runs, "r_acc_worst"), series(runs, "r_acc_best")) if band else None
    return Plot(key, title, about or f"{title} over the rounds.", plots.rounds(last), y, share, curves, edges, around)


# Several rows


def _many(collection: Collection) -> dict[str, Any]:
    finished = {
        row: found for row, runs in collection.rows.items() if (found := [numbers(r) for r in runs if _whole(r)])
    }
    points = _points(collection, finished)
    forgotten = _forgotten(collection)
    return {
        "single": False,
        "lede": _summary(finished),
        "cards": _best(finished),
        "ranked": _ranked(finished),
        "results": _results(collection),
        "costs": _costs(collection),
        "plots": _overlays(collection),
        "points": points,
        "scatter": {
            "x": plots.roots().marks(),
            "y": _utility_axis(finished).marks(),
            "forgotten": GLOSSARY[forgotten][0],
        },
        "panels": _panels(collection, forgotten),
    }


def _whole(run: Run) -> bool:
    return run.ended and not run.failed and bool(run.evaluated)


def _forgotten(collection: Collection) -> str:
    rows = [row for run in collection.runs for row in run.evaluated]
    return "forget_acc" if rows and not any("asr" in row for row in rows) else "asr"


def _mean(found: Iterable[Mapping[str, float]], key: str) -> float | None:
    values = [of[key] for of in found if key in of]
    return fmean(values) if values else None


def _candidates(finished: Mapping[str, Sequence[Mapping[str, float]]]) -> dict[str, Sequence[Mapping[str, float]]]:
    """The rows that have forgotten; all, where none has or nothing shows it."""
    chosen = {
        row: found for row, found in finished.items() if (_mean(found, "asr") or 0.0) <= FORGOTTEN
    }
    return chosen or dict(finished)


def _summary(finished: Mapping[str, Sequence[Mapping[str, float]]]) -> str:
    """A comparison in one sentence."""
    if not finished:
        return "No run has ended yet."
    judged = {row: found for row, found in finished.items() if _mean(found, "asr") is not None}
    best = max(_candidates(finished).items(), key=lambda item: _mean(item[1], "r_acc") or 0.0)
    kept = f"{best[0]} keeps the highest R-Acc ({percent(_mean(best[1], 'r_acc') or 0.0)})"
    below = [row for row, found in judged.items() if (_mean(found, "asr") or 0.0) <= FORGOTTEN]
    if not judged:
        return f"Of {len(finished)} rows, {kept}."
    count = f"{len(below)} of {len(judged)} rows end with an ASR of at most {FORGOTTEN:.0%}"
    return f"{count}; among {'them' if below else 'all'}, {kept}."


def _ranked(finished: Mapping[str, Sequence[Mapping[str, float]]]) -> str:
    chosen = _candidates(finished)
    if not chosen or len(chosen) == len(finished):
        return ""
    return f"Best of the {len(chosen)} rows that end with an ASR of at most {FORGOTTEN:.0%}."


def _best(finished: Mapping[str, Sequence[Mapping[str, float]]]) -> list[Card]:
    """For each key number, the row that does best."""
    cards = []
    chosen = _candidates(finished)
    for key, word, sign in BEST:
        values = {row: value for row, found in chosen.items() if (value := _mean(found, key)) is not None}
        if values:
            best = min(values.values(), key=lambda value: sign * value)
            rows = [row for row, value in values.items() if value == best]
            column = COLUMNS[key]
            who = ", ".join(rows[:3]) + (f" and {len(rows) - 3} more" if len(rows) > 3 else "")
            cards.append(Card(f"{word} {GLOSSARY[column.term][0]}", column.term, column.write(best), who))
    return cards


BEST = (
    ("asr", "Lowest", 1),
    ("forget_acc", "Lowest", 1),
    ("r_acc", "Highest", -1),
    ("r_acc_worst", "Highest", -1),
    ("distance", "Smallest", 1),
    ("conflicts", "Lowest", 1),
    ("local_trainings", "Fewest", 1),
    ("megabytes", "Fewest", 1),
)


def _results(collection: Collection) -> Grid:
    """ω⁰ and every row after each stage; several seeds are a mean ± deviation."""
    found = {row: [numbers(run) for run in runs if run.evaluated] for row, runs in collection.rows.items()}
    begun = [_beginning(run) for run in collection.runs if run.evaluated]
    same = begun and all(of == begun[0] for of in begun)
    columns = [
        column for key, column in RESULTS.items() if any(key in of for many in found.values() for of in many)
    ]
    lines: list[tuple[str, int | None, Sequence[Cell]]] = []
    if begun:
        first = begun[:1] if same else begun
        lines.append(("ω⁰", None, [*(_cell(c, [of[c.key] for of in first if c.key in of]) for c in columns), Cell("")]))
    for place, (row, runs) in enumerate(collection.rows.items()):
        cells = [_cell(c, [of[c.key] for of in found[row] if c.key in of]) for c in columns]
        ends = sorted({run.standing.partition(":")[0] for run in runs})
        lines.append((row, place, [*cells, Cell(", ".join(ends), ", ".join(ends))]))
    seeds = max(len(runs) for runs in collection.rows.values())
    caption = "After unlearning (¹) and after post-training (²)"
    spread = f"; mean ± standard deviation of {seeds} runs" if seeds > 1 else ""
    return Grid(caption + spread, "Row", [*columns, Column("ended", "Ended", "stages", str)], lines)


def _costs(collection: Collection) -> Grid:
    """What each row did to the clients and cost, as bars."""
    rows = {row: [numbers(run) for run in runs if run.evaluated] for row, runs in collection.rows.items()}
    return _bars("Conflicts and costs of each row, after the request", "Row", rows, _places(collection))


def _places(collection: Collection) -> dict[str, int]:
    return {row: place for place, row in enumerate(collection.rows)}


def _bars(
    caption: str, first: str, rows: Mapping[str, Sequence[Mapping[str, float]]], places: Mapping[str, int]
) -> Grid:
    keys = [key for key in COSTS if any(of.get(key) for many in rows.values() for of in many)]
    most = {key: max(_mean(found, key) or 0.0 for found in rows.values()) for key in keys}
    spans = any("r_acc_worst" in of for many in rows.values() for of in many)
    columns = [COLUMNS[key] for key in keys]
    lines = []
    for row, found in rows.items():
        cells = [_cell(COLUMNS[key], [of[key] for of in found if key in of], most[key]) for key in keys]
        lines.append((row, places.get(row), [_span(found), *cells] if spans else cells))
    clients = Column("span", "Clients: worst – mean – best", "r_acc_worst", percent)
    return Grid(caption, first, [clients, *columns] if spans else columns, lines)


def _span(found: Sequence[Mapping[str, float]]) -> Cell:
    """The retained clients at the end, from the worst to the best."""
    values = [_mean(found, key) for key in ("r_acc_worst", "r_acc", "r_acc_best")]
    worst, mean, best = (100 * (value or 0.0) for value in values)
    if values[0] is None:
        return Cell("–")
    return Cell(f"{worst:.0f} – {mean:.0f} – {best:.0f} %", values[0], None, (worst, mean, best))


def _cell(column: Column, values: Sequence[float], most: float | None = None) -> Cell:
    if not values:
        return Cell("–")
    mean = fmean(values)
    spread = f" ±{column.write(stdev(values))}" if len(values) > 1 else ""
    return Cell(column.write(mean) + spread, mean, None if most is None else 100 * mean / (most or 1))


def _values(row: Metrics, key: str) -> list[float]:
    return [float(row[key])] if key in row else []


def _beginning(run: Run) -> dict[str, float]:
    """ω⁰ in the columns of both stages' results: it stands before them."""
    row = run.evaluated[0]
    keys = {"asr": "asr", "forget_acc": "forget_acc", "r_acc": "r_acc", "r_acc_worst": "worst"}
    found = {f"{name}_1": float(row[key]) for key, name in keys.items() if key in row}
    return found | {key: float(row[key]) for key in ("target_acc", "distance") if key in row}


def _overlays(collection: Collection) -> list[Plot]:
    """One plot for each metric, with a curve for each row."""
    forgotten = _forgotten(collection)
    drawn = []
    plan = setting(shared(run.config for run in collection.runs), "unlearning", "rounds")
    for key in (forgotten, "r_acc", "r_acc_worst", "distance"):
        curves = [
            Curve(place, row, values, style(place))
            for place, (row, runs) in enumerate(collection.rows.items())
            if (values := _course(runs, key))
        ]
        if curves:
            seen = [value for curve in curves for value in curve.values.values()]
            last = max(at for curve in curves for at in curve.values)
            y = plots.magnitudes(seen) if key == "distance" else plots.shares(seen, whole=key == forgotten)
            title = GLOSSARY[COLUMNS[key].term][0]
            about = f"{title} over the rounds, one curve for each row."
            edges = [(0.0, "unlearning"), (float(plan), "post-training")] if plan and plan < last else []
            drawn.append(Plot(key, title, about, plots.rounds(last), y, key != "distance", curves, edges))
    return drawn


def _course(runs: Sequence[Run], key: str) -> dict[float, float]:
    """A metric by round; a distance of zero has no place on a logarithmic axis."""
    return {at: value for at, value in series(runs, key).items() if key != "distance" or value > 0}


def _utility_axis(finished: Mapping[str, Sequence[Mapping[str, float]]]) -> plots.Axis:
    seen = [of[key] for found in finished.values() for of in found for key in ("r_acc", "r_acc_1", "r_acc_0") if key in of]
    return plots.shares(seen, whole=False)


def _points(collection: Collection, finished: Mapping[str, Sequence[Mapping[str, float]]]) -> list[Point]:
    """Forgetting against utility at the end of each finished row, and of ω⁰."""
    x, y, key = plots.roots(), _utility_axis(finished), _forgotten(collection)
    places = _places(collection)
    points = []
    for row, found in finished.items():
        end = _mean(found, key), _mean(found, "r_acc")
        middle = _mean(found, f"{key}_1"), _mean(found, "r_acc_1")
        if end[0] is not None and end[1] is not None:
            before = None
            if middle[0] is not None and middle[1] is not None and "r_acc_2" in found[0]:
                before = x.place(middle[0]), y.place(middle[1])
            text = f"{row}: {GLOSSARY[key][0]} {percent(end[0])}, R-Acc {percent(end[1])}"
            look = style(places[row])
            points.append(Point(places[row], row, x.place(end[0]), y.place(end[1]), before, look, text))
    origin = [of for found in finished.values() for of in found]
    start = _mean(origin, f"{key}_0"), _mean(origin, "r_acc_0")
    if start[0] is not None and start[1] is not None:
        text = f"ω⁰: {GLOSSARY[key][0]} {percent(start[0])}, R-Acc {percent(start[1])}"
        points.append(Point(-1, "ω⁰", x.place(start[0]), y.place(start[1]), None, None, text))
    return plots.scattered(points)


def _panels(collection: Collection, forgotten: str) -> list[dict[str, Any]]:
    """A small plot of its own for each row."""
    panels = []
    for row, runs in collection.rows.items():
        if any(run.evaluated for run in runs):
            names = {forgotten: COLUMNS[forgotten].name, "r_acc": "R-Acc"}
            plot = _plot("panel", row, runs, names, about=f"{row}: forgetting and utility over the rounds.")
            panels.append({"plot": plot, "verdicts": [run.verdict for run in runs]})
    return panels


# Numbers


def numbers(run: Run) -> dict[str, float]:
    """What a report says about one run: after each stage, at the end, and what it cost."""
    found = {**figures(run.folder), **totals(run.rows)}
    for place, stage in ((1, "unlearning"), (2, "post-training")):
        rows = [row for row in run.evaluated if row["stage"] == stage and "forget_acc" in row]
        if rows:
            found[f"forget_acc_{place}"] = float(rows[-1]["forget_acc"])
    first, last = run.evaluated[0], run.evaluated[-1]
    for key in ("asr", "forget_acc", "r_acc", "r_acc_worst", "r_acc_best", "target_acc", "distance"):
        if key in last:
            found[key], found[f"{key}_0"] = float(last[key]), float(first[key])
    counted = [float(r["conflicts"]) for r in run.rows if r["stage"] == "unlearning" and "conflicts" in r]
    found.pop("conflicts", None)
    return found | ({"conflicts": fmean(counted)} if counted else {})


def totals(rows: Sequence[Metrics]) -> dict[str, float]:
    """Costs summed over rounds; the store is as large as it ever was."""

    def total(key: str) -> float:
        return sum(float(row.get(key, 0)) for row in rows)

    counted = [float(row["conflicts"]) for row in rows if "conflicts" in row]
    return {
        "rounds": float(sum(row["stage"] != "start" for row in rows)),
        "local_trainings": total("local_trainings"),
        "megabytes_up": total("bytes_up") / 1e6,
        "megabytes_down": total("bytes_down") / 1e6,
        "megabytes": (total("bytes_up") + total("bytes_down")) / 1e6,
        "megabytes_stored": max((float(row.get("bytes_stored", 0)) for row in rows), default=0.0) / 1e6,
        "seconds": total("seconds"),
        **({"conflicts": fmean(counted)} if counted else {}),
    }


# Words


def asked(collection: Collection) -> list[str]:
    """The request in plain words, as far as all runs share it."""
    config = shared(run.config for run in collection.runs)
    return [text for text in (_trained(config), _poisoned(config), _requested(config), _scheduled(config)) if text]


def _trained(config: Mapping[str, Any]) -> str:
    data = setting(config, "data") or {}
    clients = f"{data['clients']} clients" if "clients" in data else "Clients"
    what = f" the model {config['model']}" if "model" in config else " a model"
    share = data.get("fraction", 1.0)
    part = f" ({share:.0%} of it)" if isinstance(share, float) and share < 1 else ""
    on = f" on {data['dataset']}{part}" if "dataset" in data else ""
    spread = f", spread over them by {data['partition']}" if "partition" in data else ""
    plan = setting(config, "pretraining", "rounds")
    long = f", in {plan} rounds of federated averaging" if plan else ""
    return f"{clients} trained{what}{on}{spread}{long}. The result is ω⁰."


def _poisoned(config: Mapping[str, Any]) -> str:
    if not setting(config, "backdoor", "enabled"):
        return ""
    if setting(config, "request", "level") == "client":
        share = setting(config, "backdoor", "pretrain_share")
        part = f"{share:.0%} of its training pictures" if isinstance(share, float) else "its training pictures"
        return f"Each client to be forgotten had put a trigger and a wrong label on {part}: a backdoor that shows whether it is forgotten."
    return "What is to be forgotten carried a trigger and a wrong label: a backdoor that shows whether it is forgotten."


def _requested(config: Mapping[str, Any]) -> str:
    request = setting(config, "request") or {}
    targets = request.get("targets", 1)
    if isinstance(targets, int):
        who = "one client, chosen by the seed" if targets == 1 else f"{targets} clients, chosen by the seed"
    else:
        who = targets if isinstance(targets, str) else ", ".join(map(str, targets))
    level = request.get("level")
    if level == "class":
        return f"The request: forget class {request.get('label')}, whoever holds it."
    if level == "sample" and isinstance(request.get("share"), float):
        return f"The request: forget {request['share']:.0%} of the examples of {who}."
    return f"The request: forget {who}." if level == "client" else ""


def _scheduled(config: Mapping[str, Any]) -> str:
    """Which method with which schedule, and the seed."""
    name = config.get("method")
    who = f"The method: {name}" if name else "The methods are compared on the same schedule"
    steps = [
        f"{plan['rounds']} rounds of {stage} at learning rate {plan['lr']:g}"
        for key, stage in (("unlearning", "unlearning"), ("recovery", "post-training"))
        if (plan := setting(config, key)) and {"rounds", "lr"} <= plan.keys()
    ]
    seed = f"; seed {config['seed']}" if "seed" in config else ""
    return f"{who}; {', then '.join(steps)}{seed}." if steps else f"{who}{seed}."


def _methods(collection: Collection) -> list[tuple[str, str, str]]:
    """Name, summary and paper of each method that this program knows."""
    known = {entry.name: entry.about for entry in method}
    used = list(dict.fromkeys(str(run.config.get("method", "")) for run in collection.runs))
    return [(name, known[name]["summary"], known[name]["paper"]) for name in used if name in known]


def _differing(collection: Collection) -> list[tuple[str, list[str]]]:
    """For each row what only some rows have set like that, but for method and seed."""
    if len(collection.rows) == 1:
        return []
    common = flat(shared(run.config for run in collection.runs))
    found = []
    for row, runs in collection.rows.items():
        values = {path: value for path, value in flat(runs[0].config).items() if path not in common}
        if values.get(("method",)) == row or ("method",) in common:
            values.pop(("method",), None)
        if collection.comparison:
            values.pop(("seed",), None)
        found.append((row, [f"{'.'.join(path)} = {value}" for path, value in values.items()]))
    return [(row, changes) for row, changes in found if changes]


def _each(collection: Collection) -> list[tuple[str, Run]]:
    """Every run with its row, and its seed where a row has several."""
    return [
        (f"{row}, seed {run.config.get('seed')}" if len(runs) > 1 else row, run)
        for row, runs in collection.rows.items()
        for run in runs
    ]


def _environments(collection: Collection) -> list[tuple[Mapping[str, Any], list[str]]]:
    """Each environment, with the runs that were made in it."""
    found: list[tuple[Mapping[str, Any], list[str]]] = []
    for row, run in _each(collection):
        same = [rows for environment, rows in found if environment == run.environment]
        if same:
            same[0].append(row)
        else:
            found.append((run.environment, [row]))
    return found
