"""Commands that carry out many runs: ``compare`` and ``reproduce``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .console import out, print_list, print_table, print_text
from .ending import Interrupted, fail
from .options import Out, Overrides, Track, Use, Workers
from .runs import default_folder, listening, write_html

if TYPE_CHECKING:
    from ..core import Listener
    from ..experiment.comparison import Comparison
    from ..report import Collection, Run
    from ..studies.paper.results import Results


def compare(
    experiment: Annotated[Path, typer.Argument(help="File with a comparison, in TOML.", show_default=False)],
    overrides: Overrides = None,
    scale: Annotated[
        str | None, typer.Option("--scale", help="A scale defined in the file; the first one by default.")
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option("--only", help="Only this row or column; repeatable.")
    ] = None,
    seeds: Annotated[int | None, typer.Option("--seeds", min=1, help="Number of seeds.")] = None,
    at: Annotated[
        list[int] | None,
        typer.Option("--at", min=0, help="Also show ASR and R-Acc after this many rounds; repeatable."),
    ] = None,
    folder: Out = None,
    workers: Workers = None,
    track: Track = None,
    use: Use = None,
) -> None:
    """Compare methods on the same requests, in tables. Continues where it was stopped.

    Where data.audit keeps examples aside, finished runs are audited, and a table shows the evidence. The
    folder is runs/NAME plus the scale and the overrides, unless --out is given.
    """
    from ..experiment.comparison import read_comparison
    from ..report import LEGEND, collect, evidence_tables, markdown
    from ..runs import write

    wanted = read_comparison(
        experiment, overrides or [], scale=scale, only=only or [], seeds=seeds, use=use or []
    )
    folder = folder or default_folder([wanted.name, *([scale] if scale else []), *(overrides or [])])

    carry_out_shown(wanted, folder, workers, track)
    for column in wanted.columns:
        out.print(f"\n{column or wanted.name}", style="bold")
        found = collect([folder / column])
        now = _tables(found.select(wanted.places(folder, column)), at or [])
        for lines in [*now, *evidence_tables(wanted.audited(folder, column))]:
            print_table(lines)
        out.print(LEGEND)
        _print_failures(wanted, folder, column)
        # Of all rows that there are, whichever were wanted now.
        lasting = [
            *_tables(found.select(wanted.places(folder, column, listed=True)), at or []),
            *evidence_tables(wanted.audited(folder, column, listed=True)),
        ]
        page = "\n\n".join([*map(markdown, lasting), LEGEND]) + "\n"
        write(folder / column / "comparison.md", page.encode())
        write_html(found, folder / column)
    out.print(f"\nruns and tables  {folder}", soft_wrap=True)


def reproduce(
    name: Annotated[
        str | None,
        typer.Argument(help="A table or figure, such as table6; omit it to list them.", show_default=False),
    ] = None,
    scale: Annotated[str, typer.Option("--scale", help="paper, or laptop, which is smaller.")] = "laptop",
    only: Annotated[
        list[str] | None, typer.Option("--only", help="Only this row or column; repeatable.")
    ] = None,
    seeds: Annotated[int | None, typer.Option("--seeds", min=1, help="Number of seeds.")] = None,
    folder: Out = None,
    workers: Workers = None,
    track: Track = None,
) -> None:
    """Reproduce a table or figure of the paper: our results, the paper's, and the difference.

    Continues where it was stopped. All tables of a scale share the folder runs/reproduce-SCALE.
    """
    from ..studies.paper import check_scale, collected, draw, named, plan, read_columns, titles

    if name is None:
        print_list(["name", "what it is"], ([name, title] for name, title in titles().items()))
        return
    name = named(name)
    wanted = plan(name, scale=scale, only=only or [], seeds=seeds)
    folder = folder or Path("runs") / f"reproduce-{scale}"
    check_scale(folder, scale)
    pictures_only = wanted.figures == ("triggers",)  # of data: there is nothing to run
    if not pictures_only:
        carry_out_shown(wanted, folder, workers, track)
    columns = read_columns(folder)
    found = collected(folder, columns, scale)
    if not pictures_only:
        _side_by_side(wanted, folder, name, found, columns)
    paths, problems = draw(folder, name, wanted, found)
    for path in paths:
        out.print(str(path), soft_wrap=True)
    for problem in problems:
        print_text(f"no figure of {problem}")


def _side_by_side(
    wanted: Comparison, folder: Path, name: str, found: Results, columns: Mapping[str, Collection]
) -> None:
    """Ours, the paper's and the difference, on the screen and in files."""
    from ..studies.paper import compare_with_paper, write_tables
    from ..studies.paper.side_by_side import counted, grid, meaning, setup

    cells = compare_with_paper(wanted, found)
    for column in wanted.columns:
        out.print(f"\n{column}", style="bold", end="  ")
        print_text(setup(found.settings[column]))
        print_table(grid(cells, column))
        _print_failures(wanted, folder, column)
        write_html(columns[column], folder / column)
    print_text(f"{meaning(cells)}\n{counted(cells)}\n")
    for path in write_tables(folder, name, cells, found):
        out.print(str(path), soft_wrap=True)


def carry_out_shown(
    wanted: Comparison, folder: Path, workers: int | None, track: Sequence[str] | None = None
) -> None:
    """Performs the missing runs of a comparison in one display."""
    from ..experiment.comparison import carry_out, planned
    from .progress import Display

    try:
        with Display(out, planned(wanted, folder)) as display:

            def show(what: str) -> AbstractContextManager[Listener]:
                return listening(display.run(what), folder / what, track, runs=folder)

            carry_out(wanted, folder, show, workers=workers)
    except Interrupted as stop:
        fail(f"{stop}; the same command continues in {folder}", stop.code)


def _print_failures(wanted: Comparison, folder: Path, column: str) -> None:
    from ..core import Status
    from ..runs import read_outcome

    for run in (run for of in wanted.places(folder, column).values() for run in of):
        ended = read_outcome(run)
        if Status(ended["status"]).failed:
            where = run.relative_to(folder)
            print_text(f"{where}: {ended['status']}, {ended['reason']}")


def _tables(runs: Mapping[str, Sequence[Run]], at: Sequence[int]) -> list[list[list[str]]]:
    """What a comparison shows: results, costs, and the scores after some rounds where asked."""
    from ..report import comparison_tables, round_table

    return [*comparison_tables(runs), *([round_table(runs, at)] if at else [])]
