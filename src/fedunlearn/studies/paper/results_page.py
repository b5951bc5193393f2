"""The results page of the documentation: tables from the stored results, written between markers.

``python -m fedunlearn.studies.paper.results_page docs/results.md`` updates the text between
``<!-- begin PART WORDS -->`` and ``<!-- end -->`` from ``docs/results/SCALE.json``, and draws the figure of
the page. The text around the markers is written by hand.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from ...core import FedUnlearnError
from ...core.registry import did_you_mean
from ...experiment.comparison import Comparison
from ...report import markdown
from ...runs import write
from .claims import KINDS
from .conditions import Verdict
from .gallery import draw
from .reproduce import beside, plan, titles
from .results import Results, load
from .side_by_side import Cell, as_markdown, counted, name, number
from .verdicts import judge
from .verdicts import markdown as claims_markdown

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
    """The page with the text between its markers updated."""

    def make(found: re.Match[str]) -> str:
        part, words = found["part"], found["words"].split()
        if part not in PARTS:
            raise FedUnlearnError(f"unknown page part {part!r}{did_you_mean(part, PARTS)}", code="unknown")
        return f"{found['begin']}\n{PARTS[part](results, *words)}\n\n"

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
    return beside(plan(table, scale=scale, only=[], seeds=None), found)


def _tables(results: Stored, scale: str, *names: str) -> str:
    """The full tables of the paper, with the commands that produced them."""
    if scale not in results:
        return NOTHING
    found, parts = results[scale], []
    for table in names:
        wanted = plan(table, scale=scale, only=[], seeds=None)
        cells = beside(wanted, found)
        if not cells:
            parts.append(f"### {titles()[table]}\n\nNot run yet.")
            continue
        commands = "\n".join(_commands(table, scale, wanted, found))
        parts += [f"### {titles()[table]}\n\n```\n{commands}\n```", as_markdown(cells, found).strip()]
        absent = [
            f"{column} ({', '.join(rows)})"
            for column in wanted.requests
            if (rows := [row for row in wanted.listed if not found.of(column, row)])
        ]
        parts += [f"Not run yet: {'; '.join(absent)}."] if absent else []
    return "\n\n".join(parts)


def _commands(table: str, scale: str, wanted: Comparison, found: Results) -> Iterator[str]:
    """The commands that produced the stored runs of a table; columns with the same rows share one."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for column in wanted.requests:
        if rows := tuple(row for row in wanted.listed if found.of(column, row)):
            groups.setdefault(rows, []).append(column)
    for rows, columns in groups.items():
        seeds = max(len(found.of(column, row)) for column in columns for row in rows)
        only = [*([] if columns == [*wanted.requests] else columns), *([] if rows == wanted.listed else rows)]
        asked = "".join(f" --only {one}" for one in only)
        yield f"fedunlearn reproduce {table} --scale {scale} --seeds {seeds}{asked}"


def _claims(results: Stored, scale: str) -> str:
    """The paper's claims, judged by the stored results of a scale."""
    return claims_markdown(judge(results[scale])) if scale in results else NOTHING


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


def _near(scale: str, found: Results) -> str:
    cells = {
        (cell.column, cell.row, cell.stage, cell.measure): cell
        for table in titles()
        for cell in _cells(table, scale, found)
    }
    hours = sum(run.cost["seconds"] for run in found.runs) / 3600
    return (
        f"Scale `{scale}`: {len(found.runs)} runs, {hours:.1f} hours of rounds after the request (without "
        f"trials and pre-training). {counted(cells.values())}"
    )


def _runs(results: Stored) -> str:
    """The columns, methods, seeds and runs in each stored file."""
    if not results:
        return "No results are stored yet."
    lines = [["File", "Column", "Methods", "Seeds", "Runs"]]
    for scale, found in results.items():
        for column in dict.fromkeys(run.column for run in found.runs):
            runs = [run for run in found.runs if run.column == column]
            rows = ", ".join(f"`{row}`" for row in dict.fromkeys(run.row for run in runs))
            seeds = ", ".join(str(seed) for seed in sorted({run.seed for run in runs}))
            lines.append([f"{scale}.json", column, rows, seeds, str(len(runs))])
    return markdown(lines)


def _machines(results: Stored) -> str:
    """The environments of the stored results."""
    environments = {
        f"{one['cores']} cores ({one['cpu_capability']}), {one['system']}, torch {one['torch']}, "
        f"Python {one['python']}, fedunlearn {one['fedunlearn']}"
        for found in results.values()
        for one in found.environments.values()
    }
    return "\n".join(f"- {one}" for one in sorted(environments)) or "No results are stored yet."


NOTHING = "Nothing has been run at this scale yet."
PARTS: Mapping[str, Callable[..., str]] = {
    "overview": _overview,
    "tables": _tables,
    "claims": _claims,
    "agreement": _agreement,
    "runs": _runs,
    "machines": _machines,
}
"""The generated parts by name; the words of a marker are the arguments."""


def main(page: Path) -> None:
    """Updates a page and its figure."""
    results = stored(page.with_suffix(""))
    write(page, renewed(page.read_text(encoding="utf-8"), results).encode())
    draw_figure(results, page.parent / "figures/results.svg")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    try:
        main(Path(sys.argv[1]))
    except FedUnlearnError as error:
        sys.exit(str(error))
