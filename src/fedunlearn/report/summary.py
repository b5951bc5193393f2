"""The numbers of a run: after each stage, at its end, and what it cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean

from ..core import Metrics
from .runs import Run

Numbers = Mapping[str, float]
SCORES = ("asr", "forget_acc", "r_acc", "r_acc_worst", "distance")


def numbers(run: Run) -> Numbers:
    """By key: 1 and 2 are the ends of unlearning and of post-training, a plain key is the end.

    A failed run counts as it ended in a stage that it did not reach.
    """
    found = totals(run.rows)
    conflicts = [float(r["conflicts"]) for r in run.rows if r["stage"] == "unlearning" and "conflicts" in r]
    found.pop("conflicts", None)
    reached = run.evaluated[:1]
    for place, stage in ((1, "unlearning"), (2, "post-training")):
        rows = [row for row in run.evaluated if row["stage"] == stage] or (reached if run.failed else [])
        if rows:
            reached = rows
            found |= {f"{key}_{place}": float(rows[-1][key]) for key in SCORES if key in rows[-1]}
    last = run.evaluated[-1]
    keys = (*SCORES, "r_acc_best", "target_acc", "distance")
    found |= {key: float(last[key]) for key in keys if key in last}
    return found | ({"conflicts": fmean(conflicts)} if conflicts else {})


def origins(
    rows: Mapping[str, Mapping[int, Numbers]], *, same_request: bool = True
) -> dict[str, list[Numbers]]:
    """ω⁰ of each seed, from what each row began with; once more for a row that had another one.

    In the same request a seed that one row lacks had the same ω⁰ nevertheless.
    """
    groups: list[tuple[str, dict[int, Numbers]]] = []
    for row, mine in rows.items():
        for _, begun in groups:
            if all(begun.get(seed, of if same_request else None) == of for seed, of in mine.items()):
                begun |= mine
                break
        else:
            groups.append((f"ω⁰ ({row})" if groups else "ω⁰", dict(mine)))
    return {name: list(begun.values()) for name, begun in groups}


def totals(rows: Sequence[Metrics]) -> dict[str, float]:
    """Costs summed over rounds; the store is as large as it ever was."""

    def total(key: str) -> float:
        return sum(float(row.get(key, 0)) for row in rows)

    counted = [float(row["conflicts"]) for row in rows if "conflicts" in row]
    return {
        "rounds": float(sum(row["stage"] != "start" for row in rows)),
        "local_trainings": total("local_trainings"),
        "megabytes_up": total("bytes_up") / 1e6,
        "megabytes_down": total("bytes_down") / 1e6,
        "megabytes": (total("bytes_up") + total("bytes_down")) / 1e6,
        "megabytes_stored": max((float(row.get("bytes_stored", 0)) for row in rows), default=0.0) / 1e6,
        "seconds": total("seconds"),
        **({"conflicts": fmean(counted)} if counted else {}),
    }


def mean(found: Iterable[Numbers], key: str) -> float | None:
    """Over the runs that have the number; None where none has."""
    values = [of[key] for of in found if key in of]
    return fmean(values) if values else None
