"""Tables of runs and comparisons as text, for the terminal and for Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from ..core import Metrics, Status
from ..measures.metrics import metric
from .runs import Run
from .summary import Column, Numbers, cost_columns, mean_text, origins, result_columns, summarise

Lines = list[list[str]]
"""Header and rows; the first cell of a row is its name."""

STAGE_KEYS = (
    *("asr", "forget_acc", "forget_auc", "r_acc", "r_acc_std", "r_acc_worst", "r_acc_best", "target_acc"),
    *("distance", "coverage", "conflicts"),
)


def stage_keys(stages: Mapping[str, Metrics]) -> list[str]:
    """The metrics shown after each stage: scores, including those of other tasks, and partial coverage."""
    rows = list(stages.values())
    own = dict.fromkeys(
        key
        for row in rows
        for key in row
        if key.startswith(("r_", "forget_", "target_"))
        and " " not in key
        and key not in (*STAGE_KEYS, "r_seen")
    )
    full = all(float(row.get("coverage", 1)) >= 1 for row in rows)
    keys = [key for key in (*own, *STAGE_KEYS) if any(key in row for row in rows)]
    return [key for key in keys if key != "coverage" or not full]


def stage_table(run: Run) -> Lines:
    """The scores of ω⁰, after unlearning and after post-training."""
    keys = stage_keys(run.stages)
    body = [
        [label, *(metric(key).text(float(row[key])) if key in row else "–" for key in keys)]
        for label, row in run.stages.items()
    ]
    return [["", *(metric(key).title for key in keys)], *body]


def comparison_tables(rows: Mapping[str, Sequence[Run]]) -> list[Lines]:
    """Results and costs of ω⁰ (one line for each different ω⁰) and of each row with an ended run.

    Several runs of a row are shown as their mean ± sample standard deviation (n − 1).
    """
    ended = {row: [run for run in runs if run.ended and run.evaluated] for row, runs in rows.items()}
    ended = {row: runs for row, runs in ended.items() if runs}
    found: dict[str, list[Numbers]] = {row: [summarise(run) for run in runs] for row, runs in ended.items()}
    starts = origins(ended)
    every = [numbers for runs in found.values() for numbers in runs]
    results, costs = result_columns(every), cost_columns(every)
    ends = {row: _ends([str(run.outcome["status"]) for run in runs]) for row, runs in ended.items()}
    with_ends = any(ends.values())

    def line(row: str, numbers: Sequence[Numbers], columns: Sequence[Column]) -> list[str]:
        return [row, *(_cell(column, numbers) for column in columns)]

    shown = [
        ["", *(column.title for column in results), *(["Ended"] if with_ends else [])],
        *(
            [*line(row, numbers, results), *([ends.get(row, "")] if with_ends else [])]
            for row, numbers in (starts | found).items()
        ),
    ]
    spent = [
        ["", *(column.title for column in costs)],
        *(line(row, numbers, costs) for row, numbers in found.items()),
    ]
    return [shown, spent] if costs else [shown]


def _cell(column: Column, numbers: Sequence[Numbers]) -> str:
    values = [found[column.key] for found in numbers if column.key in found]
    return " ".join(filter(None, mean_text(column.metric, values)))


def _ends(statuses: Sequence[str]) -> str:
    """How the runs of a row ended, unless normally; with counts if there are several runs."""
    counts = Counter(status for status in sorted(statuses) if status != Status.DONE)
    several = len(statuses) > 1
    return ", ".join(f"{count} of {len(statuses)} {end}" if several else end for end, count in counts.items())


def round_table(rows: Mapping[str, Sequence[Run]], rounds: Sequence[int]) -> Lines:
    """Forgetting / utility after N rounds of both stages, for each N in ``rounds``.

    A cell is empty unless all runs of the row were evaluated after that round.
    """
    lines = [["", *(f"after {number}" for number in rounds)]]
    for row, runs in rows.items():
        ended = [run for run in runs if run.ended and run.evaluated]
        if not ended:
            continue
        keys = [key for key in (ended[0].forgetting, ended[0].utility) if key]
        at = [{int(row["elapsed"]): row for row in run.evaluated} for run in ended]
        cells = [" / ".join(_after(at, number, key) for key in keys) for number in rounds]
        lines.append([row, *cells])
    return lines


def _after(runs: Sequence[Mapping[int, Metrics]], number: int, key: str) -> str:
    if not all(key in at.get(number, {}) for at in runs):
        return "–"
    return " ".join(filter(None, mean_text(metric(key), [float(at[number][key]) for at in runs])))


def markdown(lines: Sequence[Sequence[str]]) -> str:
    """Header and rows in Markdown."""
    header, *body = lines
    rule = ["---", *["---:"] * (len(header) - 1)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [header, rule, *body])
