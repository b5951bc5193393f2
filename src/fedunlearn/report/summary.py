"""The summary of a run: its scores after each stage and at the end, and its costs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from ..core import Metrics
from ..measures.metrics import METRICS, Metric, metric
from .runs import Run

Numbers = Mapping[str, float]
"""Values by key: ``KEY_1`` after unlearning, ``KEY_2`` after post-training, ``KEY`` at the end."""

SCORES = ("asr", "forget_acc", "forget_auc", "r_acc", "r_acc_worst")
"""Scores shown after both stages, besides the scores of tasks other than classification."""
FINAL = ("r_acc_best", "target_acc", "distance", "coverage", "epsilon")
COSTS = ("local_trainings", "bytes_up", "bytes_down", "bytes_stored", "seconds")
STAGE_MARKS = {"_1": "¹", "_2": "²"}
LEGEND = "¹ after unlearning, ² after post-training or retraining"


@dataclass(frozen=True)
class Column:
    """A column of a table: the key of its numbers, and their metric."""

    key: str
    metric: Metric
    mark: str = ""
    sign: str = ""

    @property
    def title(self) -> str:
        return f"{self.metric.title}{self.mark}"


def column(key: str) -> Column:
    """The column of a key; ¹ and ² mark the ends of unlearning and of post-training."""
    mark = STAGE_MARKS.get(key[-2:], "")
    return Column(key, metric(key[:-2] if mark else key), mark)


def summarise(run: Run) -> dict[str, float]:
    """The numbers of an evaluated run.

    For a stage that a failed run did not reach, they are its last ones. Conflicts are those of unlearning.
    Of successive requests, scores are those of the last, and costs are those of all.
    """
    found = costs(run.all_rows)
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
    """The run's ω⁰, in the columns of the first stage."""
    row = run.evaluated[0]
    found = {f"{key}_1": value for key, value in _scores(row).items()}
    return found | {key: float(row[key]) for key in ("target_acc", "distance") if key in row}


def end(run: Run) -> Numbers:
    """The scores at the end of a run, and what it shows of the targets."""
    row = run.evaluated[-1]
    return _scores(row) | {key: float(row[key]) for key in ("target_acc", "loss_target") if key in row}


def minus(rows: Mapping[str, Sequence[Run]], reference: str) -> dict[str, list[Numbers]]:
    """Subtract the end of the reference from those of all other rows, seed by seed.

    Scores of retained clients are left out where the two runs measured different ones.
    """
    levels = {run.seed: run for run in rows[reference]}

    def difference(run: Run) -> Numbers:
        level = end(levels[run.seed])
        alike = _retained(run) == _retained(levels[run.seed])
        return {
            key: value - level[key]
            for key, value in end(run).items()
            if key in level and (alike or not key.startswith("r_"))
        }

    return {
        row: [difference(run) for run in runs if run.seed in levels]
        for row, runs in rows.items()
        if row != reference
    }


def _retained(run: Run) -> set[str]:
    """Return the keys of single retained clients at the end of a run."""
    return {key for key in run.evaluated[-1] if key.startswith("r_") and " " in key}


def _scores(row: Metrics) -> dict[str, float]:
    return {key: float(value) for key, value in row.items() if key in SCORES or _own_score(key)}


def _own_score(key: str) -> bool:
    """Return whether a key is a score of a task other than classification, on forgotten or retained data."""
    known = key in METRICS or " " in key or key.endswith(("_std", "_best"))
    return not known and key.startswith(("r_", "forget_"))


def result_columns(found: Iterable[Numbers]) -> list[Column]:
    """The columns of a comparison's results: scores after both stages, then the final numbers."""
    numbers = list(found)
    own = dict.fromkeys(
        key for run in numbers for key in run if _own_score(key) and key[-2:] not in STAGE_MARKS
    )
    covered = any(run.get("coverage", 1.0) < 1 for run in numbers)
    keys = [f"{key}_{place}" for place in (1, 2) for key in (*SCORES, *own)]
    keys += ["target_acc", "distance", *(["coverage"] if covered else []), "conflicts", "epsilon"]
    return [column(key) for key in keys if any(key in run for run in numbers)]


def cost_columns(found: Iterable[Numbers]) -> list[Column]:
    """The cost columns that are not zero in all runs."""
    numbers = list(found)
    return [column(key) for key in COSTS if any(run.get(key) for run in numbers)]


def origins(rows: Mapping[str, Sequence[Run]], *, same_request: bool = True) -> dict[str, list[Numbers]]:
    """The ω⁰ of each seed, with a separate entry for each row that started from a different one.

    In the same request, rows share ω⁰ even if one of them lacks a seed.
    """
    starts = {row: {run.seed: before(run) for run in runs} for row, runs in rows.items()}
    groups: list[tuple[str, dict[int, Numbers]]] = []
    for row, own in starts.items():
        for _, known in groups:
            if all(known.get(seed, start if same_request else None) == start for seed, start in own.items()):
                known |= own
                break
        else:
            name = rows[row][0].origin
            groups.append((f"{name} ({row})" if groups else name, dict(own)))
    return {name: list(known.values()) for name, known in groups}


def costs(rows: Sequence[Metrics]) -> dict[str, float]:
    """Costs summed over rounds; stored bytes are a maximum, conflicts a mean."""

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
    """The mean over the runs that have the number; None if none has it."""
    values = [numbers[key] for numbers in found if key in numbers]
    return fmean(values) if values else None


def mean_text(metric: Metric, values: Sequence[float], sign: str = "") -> tuple[str, str]:
    """The mean of the values, and ± the sample standard deviation (n − 1) if there are several."""
    if not values:
        return "–", ""
    spread = f"±{metric.text(stdev(values)).removesuffix('%')}" if len(values) > 1 else ""
    return metric.text(fmean(values), sign), spread
