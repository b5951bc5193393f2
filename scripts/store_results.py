"""Adds the results of ``fedunlearn reproduce`` to those that the documentation shows.

Run ``python scripts/store_results.py runs/reproduce-laptop/results.json``. Stored runs that the file lacks
are kept. A run that is stored already is replaced, and named if its model differs. A column with other
settings is replaced completely, and named. Then update the page that shows the results:
``python -m fedunlearn.studies.paper.results_page docs/results.md``.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from fedunlearn.core import FedUnlearnError
from fedunlearn.studies.paper.results import joined, load, save

STORED = Path(__file__).parent.parent / "docs/results"


def store(path: Path, folder: Path = STORED) -> str:
    """Describes in one sentence what was added and replaced."""
    new = load(path)
    file = folder / f"{new.scale}.json"
    old = load(file) if file.exists() else replace(new, runs=[])
    both = joined(old, new)
    save(both, file)
    hashes = {run.place: run.model_sha256 for run in old.runs}
    again = [run for run in new.runs if run.place in hashes]
    unlike = ["/".join(map(str, run.place)) for run in again if run.model_sha256 != hashes[run.place]]
    lost = sorted({run.column for run in old.runs if run.place not in {one.place for one in both.runs}})
    parts = [f"{file.name}: {len(new.runs) - len(again)} new, {len(again)} stored already"]
    parts += [f"of these have another model: {', '.join(unlike)}"] if unlike else []
    parts += [f"stored runs with other settings were removed: {', '.join(lost)}"] if lost else []
    return "; ".join(parts)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    try:
        print(store(Path(sys.argv[1])))
    except FedUnlearnError as error:
        sys.exit(str(error))
