"""Adds what ``fedunlearn reproduce`` left to the results that the documentation shows.

Run ``python scripts/store_results.py runs/reproduce-laptop/results.json``. What the file lacks stays; a run
that was stored already is replaced, and named where it ends in another model; a column that was set up
otherwise is replaced whole, and named too. Afterwards renew the page that shows them:
``python -m fedunlearn.reproduction.results_page docs/results.md``.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from fedunlearn.core import FedUnlearnError
from fedunlearn.reproduction.results import joined, load, save

STORED = Path(__file__).parent.parent / "docs/results"


def store(path: Path, folder: Path = STORED) -> str:
    """What was added and replaced, in one sentence."""
    new = load(path)
    file = folder / f"{new.scale}.json"
    old = load(file) if file.exists() else replace(new, runs=[])
    both = joined(old, new)
    save(both, file)
    hashes = {run.place: run.model_sha256 for run in old.runs}
    again = [run for run in new.runs if run.place in hashes]
    unlike = ["/".join(map(str, run.place)) for run in again if run.model_sha256 != hashes[run.place]]
    lost = sorted({run.column for run in old.runs if run.place not in {one.place for one in both.runs}})
    said = [f"{file.name}: {len(new.runs) - len(again)} new, {len(again)} stored already"]
    said += [f"of these end in another model: {', '.join(unlike)}"] if unlike else []
    said += [f"stored runs with other settings were left out: {', '.join(lost)}"] if lost else []
    return "; ".join(said)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    try:
        print(store(Path(sys.argv[1])))
    except FedUnlearnError as error:
        sys.exit(str(error))
