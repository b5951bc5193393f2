"""Stores results of the benchmark, and writes the tables of the page that shows them.

Run ``python scripts/store_benchmark.py RESULTS.json...``. The cells are added to
``docs/results/benchmark.json``; a cell that is there already must be the same. In ``docs/benchmark.md`` the
text between ``<!-- begin leaderboard WORD -->`` and ``<!-- end -->`` is written again, submissions included.
Without files, only the page is written.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fedunlearn.core import FedUnlearnError
from fedunlearn.report import markdown
from fedunlearn.runs import write
from fedunlearn.studies.benchmark import leaderboard_tables, merge, read_results, write_results
from fedunlearn.studies.paper.results_page import MARKED

ROOT = Path(__file__).parent.parent
STORED = ROOT / "docs/results/benchmark.json"
PAGE = ROOT / "docs/benchmark.md"


def renewed(page: str) -> str:
    """The page with the text between its markers updated."""
    with TemporaryDirectory() as folder:
        board = Path(folder) / "results.json"
        write_results(board, merge([STORED, *sorted((ROOT / "submissions").glob("*.json"))]))
        tables = {title.split()[0].lower(): lines for title, lines in leaderboard_tables(board).items()}

    def make(found: Any) -> str:
        return f"{found['begin']}\n{markdown(tables[found['words'].strip()])}\n\n"

    return MARKED.sub(make, page)


def main(files: Sequence[str]) -> None:
    given = [Path(file) for file in files]
    for path in given:
        if read_results(path).submitted:
            raise FedUnlearnError(f"{path} is a submission: copy it to submissions/")
    if given:
        write_results(STORED, merge([*([STORED] if STORED.exists() else []), *given]))
    write(PAGE, renewed(PAGE.read_text(encoding="utf-8")).encode())


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except FedUnlearnError as error:
        sys.exit(str(error))
