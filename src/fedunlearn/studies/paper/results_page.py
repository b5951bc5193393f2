"""The results page of the documentation: tables from the stored results, written between markers.

``python -m fedunlearn.studies.paper.results_page docs/results.md`` updates the text between
``<!-- begin PART WORDS -->`` and ``<!-- end -->`` from ``docs/results/SCALE.json``, draws the figure of the
page, and writes all numbers and claims as CSV. The text around the markers is written by hand.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import chain
from pathlib import Path

from ...core import FedUnlearnError
from ...report import markdown
from ...runs import write
from .claims import KINDS
from .conditions import Verdict
from .gallery import draw
from .reproduce import compare_with_paper, plan, titles
from .results import Results, load
from .side_by_side import Cell, as_csv, counted, name, number
from .verdicts import as_csv as claims_csv
from .verdicts import judge

MARKED = re.compile(
    r"(?P<begin><!-- begin (?P<part>[a-z-]+)(?P<words>(?: [\w-]+)*) -->\n).*?(?=<!-- end -->)", re.DOTALL
)
SCALES = ("paper", "laptop")
FIGURE = ("paper", "fmnist", "tradeoff")
"""Scale, table and kind of the page's figure."""

Stored = Mapping[str, Results]
"""The stored results by scale."""


def stored(folder: Path) -> dict[str, Results]:
    """The results in the files of a folder, by scale; other results may be beside them."""
    return {scale: load(path) for scale in SCALES if (path := folder / f"{scale}.json").exists()}


def renewed(page: str, results: Stored) -> str:
    """The page with the text between the markers of ``PARTS`` updated; other scripts fill the others."""

    def make(found: re.Match[str]) -> str:
        part, words = found["part"], found["words"].split()
        return f"{found['begin']}\n{PARTS[part](results, *words)}\n\n" if part in PARTS else found[0]

    return MARKED.sub(make, page)


def draw_figure(results: Stored, path: Path) -> Path:
    """The figure of the page as an SVG file."""
    scale, table, kind = FIGURE
    wanted, found = plan(table, scale=scale, only=[], seeds=None), results[scale]
    columns = [column for column in wanted.columns if column in found.settings]
    for other in draw(kind, found, columns, wanted.listed, path.with_suffix("")):
        if other != path:
            other.unlink()
    return path


def _overview(results: Stored, scale: str, *tables: str) -> str:
    """ASR / R-Acc of each method in each column, with the paper's in brackets."""
    if scale not in results:
        return NOTHING
    cells = [cell for table in tables for cell in _cells(table, scale, results[scale])]
    by_place = {(cell.column, cell.row, cell.stage, cell.measure): cell for cell in cells}
    columns = list(dict.fromkeys(cell.column for cell in cells))
    rows = sorted(dict.fromkeys((cell.row, cell.stage) for cell in cells), key=lambda row: _order(row, cells))

    def both(column: str, row: str, stage: int) -> str:
        pair = [by_place.get((column, row, stage, measure)) for measure in ("asr", "r_acc")]
        ours = " / ".join(number(cell.mean, cell.measure) for cell in pair if cell)
        theirs = " / ".join(
            number(cell.paper, cell.measure) for cell in pair if cell and cell.paper is not None
        )
        failed = " †" if any(cell.failed for cell in pair if cell) else ""
        return (f"{ours}{failed}" + (f" ({theirs})" if theirs else "")) if ours else "–"

    lines = [
        [name(row, stage, cells), *(both(column, row, stage) for column in columns)] for row, stage in rows
    ]
    return markdown([["", *columns], *lines])


def _order(row: tuple[str, int], cells: list[Cell]) -> tuple[int, int]:
    """Sorts ω⁰ first, then methods with one stage, then all after unlearning and after post-training."""
    method, stage = row
    both = any(cell.row == method and cell.stage == 1 for cell in cells)
    return (0 if stage == 0 else 2 + stage if both else 1, 0)


def _cells(table: str, scale: str, found: Results) -> list[Cell]:
    return compare_with_paper(plan(table, scale=scale, only=[], seeds=None), found)


def _agreement(results: Stored) -> str:
    """The number of claims that hold and of accuracies near the paper's, at each scale."""
    lines = [["Scale", "Claims", "Hold", "Fail", "Not run", "Seeds disagree"]]
    for scale, found in results.items():
        judged = judge(found)
        for kind in dict.fromkeys((*KINDS, *(one.kind for one in judged))):
            group = [one for one in judged if one.kind == kind]
            count = Counter(one.verdict for one in group)
            if not count[Verdict.HOLDS] + count[Verdict.FAILS]:
                continue
            divided = sum(not one.unanimous for one in group)
            verdicts = (count[verdict] for verdict in (Verdict.HOLDS, Verdict.FAILS, Verdict.MISSING))
            lines.append([scale, kind, *map(str, verdicts), str(divided)])
    return "\n\n".join([markdown(lines), *(_near(scale, found) for scale, found in results.items())])


def _all_cells(scale: str, found: Results) -> list[Cell]:
    """The cells of all tables, each once."""
    cells = [cell for table in titles() for cell in _cells(table, scale, found)]
    return list({(cell.column, cell.row, cell.stage, cell.measure): cell for cell in cells}.values())


def _near(scale: str, found: Results) -> str:
    hours = sum(run.cost["seconds"] for run in found.runs) / 3600
    return (
        f"Scale `{scale}`: {len(found.runs)} runs, {hours:.1f} hours of rounds after the request (without "
        f"trials and pre-training). {counted(_all_cells(scale, found))}"
    )


def tables(results: Stored) -> dict[str, str]:
    """Every number and every judged claim, as files beside the stored results."""
    numbers = [as_csv(_all_cells(scale, found), scale) for scale, found in results.items()]
    lines = [text.splitlines(keepends=True)[min(place, 1) :] for place, text in enumerate(numbers)]
    return {
        "paper-tables.csv": "".join(chain.from_iterable(lines)),
        "paper-claims.csv": claims_csv({scale: judge(found) for scale, found in results.items()}),
    }


NOTHING = "Nothing has been run at this scale yet."
PARTS: Mapping[str, Callable[..., str]] = {
    "overview": _overview,
    "agreement": _agreement,
}
"""The generated parts by name; the words of a marker are the arguments."""


def main(page: Path) -> None:
    """Updates a page, its figure, and the tables that it links."""
    folder = page.with_suffix("")
    results = stored(folder)
    for file, text in tables(results).items():
        write(folder / file, text.encode())
    write(page, renewed(page.read_text(encoding="utf-8"), results).encode())
    draw_figure(results, page.parent / "figures/results.svg")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    try:
        main(Path(sys.argv[1]))
    except FedUnlearnError as error:
        sys.exit(str(error))
