"""What a run comes to: its scores after each stage and at the end, and what it cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from ..core import Metrics
from ..measure.metrics import METRICS, Metric, metric
from .runs import Run

Numbers = Mapping[str, float]
"""By key; ``KEY_1`` is KEY after unlearning, ``KEY_2`` after post-training, a plain KEY at the end."""

SCORES = ("asr", "forget_acc", "r_acc", "r_acc_worst")
"""What is shown after both stages; scores of tasks other than classification join them."""
FINAL = ("r_acc_best", "target_acc", "distance", "coverage")
COSTS = ("local_trainings", "bytes_up", "bytes_down", "bytes_stored", "seconds")
STAGE_MARKS = {"_1": "¹", "_2": "²"}


@dataclass(frozen=True)
class Column:
    """A column of a table: the key of its numbers, and the metric that they are."""

    key: str
    metric: Metric
    mark: str = ""

    @property
    def title(self) -> str:
        return f"{self.metric.title}{self.mark}"


def column(key: str) -> Column:
    """The column of a key; ¹ and ² mark the ends of unlearning and of post-training."""
    mark = STAGE_MARKS.get(key[-2:], "")
    return Column(key, metric(key[:-2] if mark else key), mark)


def summarise(run: Run) -> dict[str, float]:
    """The numbers of a run that has been evaluated.

    A failed run counts as it ended in a stage that it did not reach. Conflicts are those of unlearning.
    """
    found = costs(run.rows)
    reached = run.evaluated[:1]
    for place, stage in ((1, "unlearning"), (2, "post-training")):
        rows = [row for row in run.evaluated if row["stage"] == stage] or (reached if run.failed else [])
        if rows:
            reached = rows
            found |= {f"{key}_{place}": value for key, value in _scores(rows[-1]).items()}
    last = run.evaluated[-1]
    found |= _scores(last) | {key: float(last[key]) for key in FINAL if key in last}
    found.pop("conflicts", None)
    unlearned = run.stages.get("unlearned", {})
    return found | ({"conflicts": float(unlearned["conflicts"])} if "conflicts" in unlearned else {})


def before(run: Run) -> Numbers:
    """ω⁰ as the run began with it, in the columns of the first stage."""
    row = run.evaluated[0]
    found = {f"{key}_1": value for key, value in _scores(row).items()}
    return found | {key: float(row[key]) for key in ("target_acc", "distance") if key in row}


def _scores(row: Metrics) -> dict[str, float]:
    return {key: float(value) for key, value in row.items() if key in SCORES or _own_score(key)}


def _own_score(key: str) -> bool:
    """Whether a key is a score of a task other than classification, on forgotten or retained data."""
    known = key in METRICS or " " in key or key.endswith(("_std", "_best"))
    return not known and key.startswith(("r_", "forget_"))


def result_columns(found: Iterable[Numbers]) -> list[Column]:
    """The columns of a comparison's results: scores after both stages, then what is shown at the end."""
    numbers = list(found)
    own = dict.fromkeys(
        key for of in numbers for key in of if _own_score(key) and key[-2:] not in STAGE_MARKS
    )
    covered = any(of.get("coverage", 1.0) < 1 for of in numbers)
    keys = [f"{key}_{place}" for place in (1, 2) for key in (*SCORES, *own)]
    keys += ["target_acc", "distance", *(["coverage"] if covered else []), "conflicts"]
    return [column(key) for key in keys if any(key in of for of in numbers)]


def cost_columns(found: Iterable[Numbers]) -> list[Column]:
    """The columns of costs that any run had."""
    numbers = list(found)
    return [column(key) for key in COSTS if any(of.get(key) for of in numbers)]


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


def costs(rows: Sequence[Metrics]) -> dict[str, float]:
    """Costs summed over rounds; the store is as large as it ever was, conflicts are a mean."""

    def total(key: str) -> float:
        return sum(float(row.get(key, 0)) for row in rows)

    counted = [float(row["conflicts"]) for row in rows if "conflicts" in row]
    return {
        "rounds": float(sum(row["stage"] != "start" for row in rows)),
        "local_trainings": total("local_trainings"),
        "bytes_up": total("bytes_up"),
        "bytes_down": total("bytes_down"),
        "bytes": total("bytes_up") + total("bytes_down"),
        "bytes_stored": max((float(row.get("bytes_stored", 0)) for row in rows), default=0.0),
        "seconds": total("seconds"),
        **({"conflicts": fmean(counted)} if counted else {}),
    }


def mean(found: Iterable[Numbers], key: str) -> float | None:
    """Over the runs that have the number; None where none has."""
    values = [of[key] for of in found if key in of]
    return fmean(values) if values else None


def mean_text(of: Metric, values: Sequence[float]) -> tuple[str, str]:
    """The mean of some values, and ± the standard deviation (of a sample, n − 1) where there are several."""
    if not values:
        return "–", ""
    spread = f"±{of.text(stdev(values)).removesuffix('%')}" if len(values) > 1 else ""
    return of.text(fmean(values)), spread
