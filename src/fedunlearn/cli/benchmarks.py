"""The open benchmark: ``benchmark`` and ``leaderboard``."""

from __future__ import annotations

from html import unescape
from pathlib import Path
from typing import Annotated

import typer

from .comparisons import carry_out_shown
from .console import out, print_table
from .options import Out, Workers


def benchmark(
    submitted: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE.py", help="A Python file that registers your own method.", show_default=False
        ),
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option("--only", help="Only this method or request; repeatable.")
    ] = None,
    folder: Out = None,
    workers: Workers = None,
) -> None:
    """Run the benchmark: fixed requests and seeds, one tuning budget. Continues where it was stopped.

    Writes results.json and leaderboard.html to the folder, runs/benchmark unless --out is given. With a file
    of your own, the results are a submission: docs/benchmark.md says where to put both.
    """
    from ..studies.benchmark import gather, leaderboard_tables, protocol, write_leaderboard, write_results

    wanted = protocol(only or [], submitted)
    folder = folder or Path("runs") / ("benchmark" if submitted is None else f"benchmark-{submitted.stem}")
    carry_out_shown(wanted, folder, workers)
    results, page = folder / "results.json", folder / "leaderboard.html"
    write_results(results, gather(wanted, folder))
    write_leaderboard(results, page)
    lines = next(iter(leaderboard_tables(results).values()))
    print_table([[unescape(text) for text in line] for line in lines])
    out.print(f"results  {results}\nleaderboard  {page}", soft_wrap=True)


def leaderboard(
    results: Annotated[
        list[Path],
        typer.Argument(help="Files with results of the benchmark.", show_default=False),
    ],
    check: Annotated[
        int,
        typer.Option("--check", min=0, help="Number of cells of each file to tune, run and audit again."),
    ] = 0,
    page: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="The page to write; leaderboard.html by default, none with --check.",
            show_default=False,
        ),
    ] = None,
    workers: Workers = None,
) -> None:
    """Make the leaderboard page from stored results, and check them.

    Of a submission, only its own methods are taken. --check executes the Python file of a submission: read it
    first.
    """
    from tempfile import TemporaryDirectory

    from ..studies.benchmark import check_results, merge, write_leaderboard, write_results
    from .progress import Display

    with TemporaryDirectory() as place:
        for number, path in enumerate(results if check else []):
            with Display(out, {}) as display:
                for line in check_results(
                    path, check, Path(place) / str(number), display.run, workers=workers
                ):
                    out.print(line, soft_wrap=True)
        if check and page is None:
            return
        page = page or Path("leaderboard.html")
        merged = Path(place) / "results.json"
        write_results(merged, merge(results))
        write_leaderboard(merged, page)
    out.print(f"leaderboard  {page}", soft_wrap=True)
