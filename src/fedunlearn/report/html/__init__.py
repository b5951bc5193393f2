"""A self-contained HTML report about a run, several runs or a comparison, made from their files alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ...runs import write
from ..description import differing, environments, methods, request
from ..glossary import glossary
from ..rerun import recipes
from ..runs import Collection
from .comparison import comparison_page
from .filling import rendered
from .plots import Plot, Point, style
from .run import run_page


def write_report(collection: Collection, path: Path) -> Path:
    """Writes one self-contained HTML file about the runs."""
    write(path, render(collection).encode())
    return path


def render(collection: Collection) -> str:
    """The page as HTML; the template escapes everything that comes from files."""
    return rendered("report.html", _page(collection))


def _page(collection: Collection) -> dict[str, Any]:
    """Everything that the template shows."""
    page = run_page(collection) if len(collection.runs) == 1 else comparison_page(collection)
    shown: list[Plot] = page["plots"]
    points: Sequence[Point] = page["points"]
    return {
        **page,
        "name": collection.name,
        "rows": list(collection.rows),
        "styles": [style(place) for place in range(len(collection.rows))],
        "asked": request(collection),
        "notes": [
            f"{row}: {run.standing}" for row, run in collection.labelled if not run.ended or run.failed
        ],
        "differing": differing(collection),
        "methods": methods(collection),
        "runs": collection.labelled,
        "environments": environments(collection),
        "verified": all(run.verified for run in collection.runs),
        "recipes": recipes(collection),
        "glossary": glossary(_terms(page)),
        "script": {
            "plots": {plot.key: plot.values() for plot in shown},
            "points": [{"row": p.row, "x": p.x, "y": p.y, "text": p.text} for p in points],
        },
    }


def _terms(page: dict[str, Any]) -> Iterator[str]:
    """The metrics that a page shows."""
    yield from (card.term for card in page["cards"])
    grids = [
        *(page["evidence"] or {}).get("grids", ()),
        page["results"],
        page["differences"],
        page["clients"],
        page["costs"],
    ]
    for grid in filter(None, grids):
        yield from (heading.term for heading in grid.headings)
    yield from (plot.key for plot in page["plots"] if not page["single"])
