"""The table of a comparison, from its run folders alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from ..core import Metrics, Status
from .runs import Run, read_run
from .summary import Numbers, numbers, origins
from .tables import measured

COLUMNS = {
    "asr_1": "ASR¹",
    "forget_1": "forget acc.¹",
    "r_acc_1": "R-Acc¹",
    "worst_1": "worst¹",
    "distance_1": "distance¹",
    "asr_2": "ASR²",
    "forget_2": "forget acc.²",
    "r_acc_2": "R-Acc²",
    "worst_2": "worst²",
    "distance_2": "distance²",
    "conflicts": "NC",
    "local_trainings": "trainings",
    "seconds": "seconds",
    "megabytes_up": "MB up",
    "megabytes_down": "MB down",
    "megabytes_stored": "MB stored",
}
DIGITS = {
    "conflicts": 2,
    "local_trainings": 0,
    "seconds": 0,
    "megabytes_up": 0,
    "megabytes_down": 0,
    "megabytes_stored": 0,
}
SHOWN = {
    "asr": "asr",
    "forget": "forget_acc",
    "r_acc": "r_acc",
    "worst": "r_acc_worst",
    "distance": "distance",
}


def figures(run: Run) -> Numbers:
    """What a comparison says about one run: 1 is the end of unlearning, 2 the end of post-training."""
    found = numbers(run)
    return {
        **{
            f"{key}_{stage}": found[f"{name}_{stage}"]
            for stage in (1, 2)
            for key, name in SHOWN.items()
            if f"{name}_{stage}" in found
        },
        **{key: value for key, value in found.items() if key in DIGITS},
    }


def start(run: Run) -> Numbers:
    """ω⁰, as the run began with it."""
    before = run.evaluated[0]
    return {
        f"{key}_1": float(before[name]) for key, name in SHOWN.items() if name in before and key != "distance"
    }


def compared(runs: Mapping[str, Sequence[Path]]) -> list[list[str]]:
    """Header and rows: ω⁰, that of a row with another one, and each method.

    Several runs of one are a mean ± standard deviation (of a sample, n − 1).
    """
    finished = {row: [found for run in of if (found := read_run(run)).ended] for row, of in runs.items()}
    finished = {row: of for row, of in finished.items() if of}
    begun = {row: {int(run.config.get("seed", 0)): start(run) for run in of} for row, of in finished.items()}
    shown = origins(begun) | {row: [figures(run) for run in of] for row, of in finished.items()}
    keys = [key for key in COLUMNS if any(key in found for of in shown.values() for found in of)]
    ended = {row: _ends([run.outcome["status"] for run in of]) for row, of in finished.items()}
    return [
        ["", *(COLUMNS[key] for key in keys), "ended"],
        *(
            [
                row,
                *(_cell(key, [f[key] for f in of if key in f]) for key in keys),
                ended.get(row, ""),
            ]
            for row, of in shown.items()
        ),
    ]


def _ends(statuses: Sequence[str]) -> str:
    """How the runs of a row ended, if not well; of several how many."""
    counts = Counter(status for status in sorted(statuses) if status != Status.DONE)
    several = len(statuses) > 1
    return ", ".join(f"{count} of {len(statuses)} {end}" if several else end for end, count in counts.items())


def _cell(key: str, values: Sequence[float]) -> str:
    if not values:
        return "-"
    digits = DIGITS.get(key, 3)
    spread = f" ±{stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{fmean(values):.{digits}f}{spread}"


def course(runs: Mapping[str, Sequence[Path]], rounds: Sequence[int]) -> list[list[str]]:
    """Header and rows: ASR, or accuracy on what is forgotten, / R-Acc after so many rounds of both stages.

    Nothing where not all runs of a row were evaluated after that round.
    """
    lines = [["", *(f"after {number}" for number in rounds)]]
    for row, of in runs.items():
        ended = [run for run in of if (run / "outcome.json").exists()]
        if not ended:
            continue
        rows = [{row["elapsed"]: row for row in measured(run) if "r_acc" in row} for run in ended]
        forgotten = "asr" if any("asr" in at for of in rows for at in of.values()) else "forget_acc"
        cells = [
            " / ".join(
                _cell(key, [float(at[number][key]) for at in rows] if _all_have(rows, number, key) else [])
                for key in (forgotten, "r_acc")
            )
            for number in rounds
        ]
        lines.append([row, *cells])
    return lines


def _all_have(rows: Sequence[Mapping[Any, Metrics]], number: int, key: str) -> bool:
    return all(key in at.get(number, {}) for at in rows)
