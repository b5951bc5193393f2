"""One HTML file about a run, several runs or a comparison, from their files alone; it needs nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...core import FedUnlearnError
from ...record import write
from ..description import asked, differing, each, environments, methods
from ..glossary import GLOSSARY
from ..rerun import recipes
from ..runs import Collection, collect
from .comparison import many
from .plots import Plot, Point, style
from .run import one


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
        loader=jinja2.PackageLoader("fedunlearn.report.html"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    return environment.get_template("report.html").render(_page(collection))


def _page(collection: Collection) -> dict[str, Any]:
    """Everything that the template shows."""
    page = one(collection) if len(collection.runs) == 1 else many(collection)
    drawn: list[Plot] = page["plots"]
    points: Sequence[Point] = page["points"]
    return {
        **page,
        "name": collection.name,
        "rows": list(collection.rows),
        "styles": [style(place) for place in range(len(collection.rows))],
        "asked": asked(collection),
        "notes": [f"{row}: {run.standing}" for row, run in each(collection) if not run.ended or run.failed],
        "differing": differing(collection),
        "methods": methods(collection),
        "runs": each(collection),
        "environments": environments(collection),
        "recipes": recipes(collection),
        "glossary": GLOSSARY,
        "script": {
            "plots": {plot.key: plot.values() for plot in drawn},
            "points": [{"row": p.row, "x": p.x, "y": p.y, "text": p.text} for p in points],
        },
    }
