"""The leaderboard as one HTML file: a table, filters and a trade-off plot, from the stored results alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ...report.audits import REFERENCES
from ...report.html.filling import rendered
from ...report.html.plots import style
from ...runs import write
from .board import LETTERS, Board, Result, read_board
from .leaderboard import INTERVALS, RULE, ablation, columns, line, ranked, t_quantile, titled

GROUPS = {
    "kind": "Kind",
    "partition": "Partition",
    "targets": "Targets",
    "successive": "Requests",
    "participation": "Participation",
}


def write_leaderboard(results: Path, page: Path) -> None:
    """Writes one self-contained HTML file about the stored results of a benchmark."""
    write(
        page,
        rendered("leaderboard.html", _page(read_board(results)), "fedunlearn.studies.benchmark").encode(),
    )


def _page(board: Board) -> dict[str, Any]:
    """Everything that the template shows."""
    rows = ranked(board, board.requests)
    styles = {name: style(place) for place, name in enumerate(board.methods)}
    shared, differing = _settings(board.values["requests"])
    return {
        "lede": _lede(board),
        "rule": RULE,
        "intervals": INTERVALS,
        "columns": columns(board),
        "rows": rows,
        "titles": {name: titled(board, name) for name in board.methods},
        "references": [(REFERENCES[name], line(board, name, board.requests)) for name in board.references],
        "styles": styles,
        "methods": {name: board.values["methods"][name] for name in board.methods},
        "ablations": any(ablation(name, board.methods) for name in board.methods),
        "groups": _groups(board),
        "requests": board.requests,
        "differing": differing,
        "facts": _facts(board) | shared,
        "protocol": board.values["protocol"],
        "rates": _rates(board.values["tuning"]),
        "environments": _environments(board),
        "script": _script(board, styles),
    }


def _lede(board: Board) -> str:
    """Who comes first, in one sentence."""
    rows = ranked(board, board.requests)
    best = rows[0][1][0] if rows else None
    if best is None or best.value is None:
        return "No cell can be ranked: the audit finds the target in no ω⁰."
    accuracy = next((n for n, column in enumerate(columns(board)) if column.key == "r_acc"), None)
    first = [
        name if accuracy is None else f"{name} (R-Acc {cells[accuracy].text} points)"
        for name, cells in rows
        if cells[0].value == best.value
    ]
    hits, of = best.text.split("/")
    where = "cells in which the audit finds the target in ω⁰"
    if not best.value:
        return f"No method is equivalent to retraining in any of the {of} {where}."
    shown = first if len(first) < 4 else [*first[:2], f"{len(first) - 2} more methods"]
    names = " and ".join(filter(None, [", ".join(shown[:-1]), shown[-1]]))
    are = "is" if len(first) == 1 else "are"
    most = ", more than any other method" if len(first) < len(rows) else ""
    told = f"{names} {are} equivalent to retraining in {hits} of the {of} {where}{most}"
    again = [line(board, name, board.requests)[0].text.split("/")[0] for name in board.references[1:2]]
    beside = f"; a retraining itself is in {again[0]}" if again else ""
    return f"On all requests together, {told}{beside}."


def _groups(board: Board) -> list[tuple[str, str, list[str]]]:
    """Key, title and values of each property in which requests differ."""
    found = [
        (key, title, list(dict.fromkeys(board.tags[request][key] for request in board.requests)))
        for key, title in GROUPS.items()
    ]
    return [(key, title, values) for key, title, values in found if len(values) > 1]


def _settings(requests: Mapping[str, Mapping[str, Any]]) -> tuple[dict[str, str], list[list[str]]]:
    """What all requests have in common, and a table of what they differ in."""
    keys = list(dict.fromkeys(key for request in requests.values() for key in request))
    texts = {name: {key: _word(request.get(key)) for key in keys} for name, request in requests.items()}
    common = [key for key in keys if len({text[key] for text in texts.values()}) == 1]
    own = [key for key in keys if key not in common]
    shared = {key.capitalize(): next(iter(texts.values()))[key] for key in common}
    return shared, [["Request", *own], *([name, *(text[key] for key in own)] for name, text in texts.items())]


def _word(value: Any) -> str:
    return (
        {True: "yes", False: "no", None: "–"}[value]
        if value is None or isinstance(value, bool)
        else str(value)
    )


def _facts(board: Board) -> dict[str, str]:
    """What was run, with how much tuning and compute."""
    tuning, cells = board.values["tuning"], board.results.values()
    ended = sum(not cell.failed for cell in cells)
    planned = (len(board.methods) + len(board.references)) * len(board.requests) * len(board.seeds)
    seconds = sum(float(cell.values.get("seconds") or 0) for cell in cells)
    rates = ", ".join(map(str, tuning["rates"]))
    unseen = ", which is not scored" if tuning["seed"] not in board.seeds else ""
    return {
        "Seeds": ", ".join(map(str, board.seeds)),
        "Methods": str(len(board.methods)),
        "Cells": f"{ended} of {planned} ended",
        "Compute": f"{_duration(seconds)} in these cells",
        "Tuning": f"learning rate: one of {rates}, chosen with seed {tuning['seed']}{unseen}",
        "Budget": f"{len(tuning['rates'])} rates for each method and kind of request",
    }


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    if minutes < 2:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def _rates(tuning: Mapping[str, Any]) -> list[list[str]]:
    """The chosen rates of each method by kind."""
    kinds = list(dict.fromkeys(kind for rates in tuning["chosen"].values() for kind in rates))
    chosen = [
        [name, *(_word(rates.get(kind)) for kind in kinds)]
        for name, rates in sorted(tuning["chosen"].items())
    ]
    return [["Method", *kinds], *chosen] if chosen else []


def _environments(board: Board) -> list[tuple[str, int, Mapping[str, str]]]:
    """The machines: their names, the number of their cells, and what is known about them."""
    cells = Counter(result.values.get("environment") for result in board.results.values())
    return [(name, cells[name], known) for name, known in board.values["environments"].items()]


def _script(board: Board, styles: Mapping[str, Any]) -> dict[str, Any]:
    """What the script needs to compute the table again for other requests."""
    names = [*board.methods, *board.references]
    return {
        "columns": [{k: v for k, v in asdict(column).items() if k != "help"} for column in columns(board)],
        "methods": [_method(board, name, styles) for name in names],
        "requests": [{"name": name, "tags": board.tags[name]} for name in board.requests],
        "seeds": board.seeds,
        "t": [0.0, *(t_quantile(freedom) for freedom in range(1, len(board.seeds)))],
        "found": [
            [board.requests.index(request), board.seeds.index(seed)] for request, seed in sorted(board.found)
        ],
        "results": [
            _cell(cell, names.index(cell.method), board.requests.index(cell.request), board.seeds)
            for cell in board.results.values()
        ],
    }


def _method(board: Board, name: str, styles: Mapping[str, Any]) -> dict[str, Any]:
    about = board.values["methods"].get(name, {})
    file = about.get("file") or {}
    told = [str(about.get(key) or "-") for key in ("summary", "paper")]
    told += [f"{file['name']}, SHA-256 {file['sha256'][:8]}"] if file else []
    return {
        "name": titled(board, name),
        "reference": name if name in REFERENCES else "",
        "ablation": ablation(name, board.methods),
        "words": {key: str(about.get(key) or "") for key in ("online", "source")},
        "summary": str(about.get("summary") or ""),
        "about": [text for text in told if text != "-"],
        "style": asdict(styles[name]) if name in styles else None,
    }


def _cell(cell: Result, method: int, request: int, seeds: Sequence[int]) -> dict[str, Any]:
    said = cell.values
    return {
        "at": [method, request, seeds.index(cell.seed)],
        "letter": cell.letter,
        "told": cell.told,
        "tail": "×" if cell.failed else LETTERS.get(str(said.get("tail")), "?"),
        "tailed": cell.reason if cell.failed else str(said.get("tail") or "none").replace("_", " ").upper(),
        "reason": cell.reason if cell.failed else "",
        "judged": cell.verdict is not None,
        "numbers": cell.numbers,
        "rate": said.get("rate"),
        "model": str(said.get("model_sha256") or "")[:8],
        "harmed": [str(client) for client in said.get("harmed") or ()],
    }
