"""Reproduces the tables and figures of the paper by name and compares them with its numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from ...core import FedUnlearnError
from ...core.registry import did_you_mean
from ...experiment import specimen
from ...experiment.comparison import Comparison, read_comparison, unlike
from ...report import Collection
from ...runs import write
from . import gallery, latex, results, side_by_side

EXPERIMENTS = Path(__file__).with_name("experiments")

NUMBERED = re.compile(r"(Table|Figure)s? (\d+(?:(?:, | and )\d+)*)[:,]")
"""The start of the title of a file that is a table or figure of the paper."""


def titles() -> dict[str, str]:
    """The tables and figures that can be reproduced, with the titles in their files."""
    files = {path.stem: path.read_text(encoding="utf-8") for path in sorted(EXPERIMENTS.glob("*.toml"))}
    return {
        name: text.partition("\n")[0].removeprefix("# ")
        for name, text in files.items()
        if 'extends = "protocol.toml"' in text
    }


def named(name: str) -> str:
    """The name of a table or figure here, from the same name or its number in the paper, like ``table6``."""
    known = titles()
    numbered = {
        f"{kind}{number}".lower(): file
        for file, title in known.items()
        if (found := NUMBERED.match(title))
        for kind, numbers in [found.groups()]
        for number in re.findall(r"\d+", numbers)
    }
    if name not in known and name not in numbered:
        raise FedUnlearnError(
            f"the paper has no table or figure {name!r}{did_you_mean(name, [*known, *numbered])}",
            code="unknown",
        )
    return name if name in known else numbered[name]


def plan(name: str, *, scale: str, only: list[str], seeds: int | None) -> Comparison:
    """The runs of a table or figure."""
    return read_comparison(EXPERIMENTS / f"{named(name)}.toml", scale=scale, only=only, seeds=seeds)


def check_scale(folder: Path, scale: str) -> None:
    """Rejects a folder with runs of another scale or of an older protocol."""
    if others := unlike(read_comparison(EXPERIMENTS / "protocol.toml", scale=scale), folder):
        more = f" (and {len(others) - 1} more)" if len(others) > 1 else ""
        raise FedUnlearnError(
            f"{others[0]}{more} does not match scale {scale!r} of the current protocol: "
            "delete the old runs, or choose another folder with --out",
            code="occupied",
        )


def collected(folder: Path, columns: Mapping[str, Collection], scale: str) -> results.Results:
    """The results so far of a folder whose runs have been read."""
    check_scale(folder, scale)
    return results.gather(folder, columns, scale)


def compare_with_paper(comparison: Comparison, found: results.Results) -> list[side_by_side.Cell]:
    """Our numbers and the paper's, for all rows, columns and seeds that have been run."""
    return side_by_side.side_by_side(found, comparison.requests, comparison.listed, comparison.printed)


def write_tables(
    folder: Path, name: str, cells: list[side_by_side.Cell], found: results.Results
) -> list[Path]:
    """Writes the table as Markdown, CSV and LaTeX, and all results of the folder as JSON."""
    title = titles()[name]
    sizes = dict.fromkeys(side_by_side.size(found.settings[cell.column]) for cell in cells)
    caption = f"{title} Scale {found.scale}: {'; or '.join(sizes)}."
    texts = {
        f"{name}.md": f"# {title}\n\n{side_by_side.as_markdown(cells, found)}",
        f"{name}.csv": side_by_side.as_csv(cells, found.scale),
        f"{name}.tex": latex.as_latex(cells, found, caption),
    }
    for file, text in texts.items():
        write(folder / file, text.encode())
    results.save(found, folder / "results.json")
    return [*(folder / file for file in texts), folder / "results.json"]


def draw(
    folder: Path, name: str, comparison: Comparison, found: results.Results
) -> tuple[list[Path], list[str]]:
    """Draws the figures of the comparison into ``figures``; returns their paths and the problems."""
    finished = {run.column for run in found.runs if run.row in comparison.listed and not run.failed}
    columns = [column for column in comparison.requests if column in finished]
    paths: list[Path] = []
    problems: list[str] = []
    for figure in comparison.figures:
        path = folder / "figures" / f"{name}-{figure}"
        if figure == "triggers":
            requests = [next(iter(rows.values())) for rows in comparison.columns.values()]
            pairs = {request.data.dataset: specimen(request) for request in requests}
            paths += gallery.triggers(pairs, path.with_name(name))
            continue
        groups = [columns] if figure in gallery.OF_ALL else [[column] for column in columns]
        for part in filter(None, groups):
            try:
                paths += gallery.draw(figure, found, part, comparison.listed, path)
            except FedUnlearnError as error:
                if isinstance(error.__cause__, OSError):  # the disk, not the results, is the problem
                    raise
                problems.append(f"{figure}: {error}")
    return paths, problems
