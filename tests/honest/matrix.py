"""How the first calls end on honest federations: ``python tests/honest/matrix.py --out FOLDER``.

A cell is trained by ``server.train(rounds, lr)`` and forgets by each of the calls: ``forget(target)``, and
with a method named, without settings. An end is

- ``well``: R-Acc at most .02 below a full retraining, and forgotten;
- ``raised``: an exception, with its reason;
- ``silent``: a failed status without an exception, or R-Acc more than .03 below that of ω⁰ without a warning;
- ``warned``: a lower R-Acc than a full retraining's, of which a warning tells;
- ``below``: the same, but as useful as ω⁰, so that there is nothing to warn of;
- ``remembers``: as useful as ``well``, but not forgotten. No server can know without an audit.

Full retraining is five trainings, as long as the first, of servers that never had the target. They differ by
chance: where two of them were the yardstick, a third ended well in 55 of 64 cells only. So ``well`` compares
with the lowest R-Acc and the highest ASR of the five. Forgotten means, with a backdoor, an ASR at most .05
above that; without, that the calibrated losses of the target's examples and of unseen ones have an AUC at
most three standard errors above retraining's, as an audit compares them. Verdicts of an audit would need 600
examples.

Code from before these calls may run it, too: there, ``default`` is ``fedosd``, and retraining gets the rounds
of the training, or half of them as in README. ``rows.jsonl`` in the folder holds a line for each cell and
call; what is there is not run again, so give every version of the code another folder.
"""

from __future__ import annotations

import argparse
import inspect
import json
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1]))  # for a script; tests have it there

from honest.federations import CALIBRATION, JUDGING, SIXTEEN, Cell, build, server

import fedunlearn as fu
from fedunlearn.evidence import Scores, compare

Row = dict[str, Any]
CALLS = ("default", "fedosd", "retrain", "fast-retrain")
LISTS = {"calibration": CALIBRATION, "judging": JUDGING, "sixteen": SIXTEEN}
BELOW, WARNED, RUINED, BACKDOOR, ERRORS = 0.02, 0.03, 0.1, 0.05, 3
OLD = "examples" not in inspect.signature(fu.Server.forget).parameters


def arguments(cell: Cell, call: str) -> tuple[str | None, dict[str, Any]]:
    """The method and the options of a call."""
    if not OLD:
        return (None, {"poisoned": cell.poisoned}) if call == "default" else (call, {})
    rounds = {"retrain": cell.rounds, "fast-retrain": max(1, cell.rounds // 2)}
    seldom = {"evaluate_every": 50}  # saves time and changes no model
    return (call, {"rounds": rounds[call], **seldom}) if call in rounds else ("fedosd", seldom)


@dataclass(frozen=True)
class Ground:
    """What the ends of a cell are measured by: the model before, and full retrainings."""

    cell: Cell
    target: fu.ClientData
    retained: Mapping[str, fu.ClientData]
    before: nn.Module
    full: Sequence[nn.Module]

    @classmethod
    def of(cls, cell: Cell, folder: Path) -> Ground:
        """Train the cell in ``folder/trained``, and five times without its target."""
        _, clients, target = build(cell)
        held = clients.pop(target)
        before = server(cell, {**clients, target: held}, folder / "trained" / "server").model
        full = [server(cell, clients, folder / f"full-{n}", n).model for n in range(2, 7)]
        return cls(cell, held, clients, before, full)

    def row(self, call: str, forget: Callable[[], fu.Outcome], model: Callable[[], nn.Module]) -> Row:
        """One call: what it raised or returned, what it warned of, and the model that it left."""
        began, raised, outcome = time.perf_counter(), None, None
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                outcome = forget()
            except fu.FedUnlearnError as error:
                raised, outcome = str(error), getattr(error, "outcome", None)
        told = [str(each.message) for each in caught if issubclass(each.category, UserWarning)]
        guards = dict(getattr(outcome, "guards", None) or {})
        row = {
            "cell": self.cell.name,
            "call": call,
            "raised": raised,
            "reason": "" if outcome is None else outcome.reason,
            "failed": outcome is None or outcome.status.failed,
            "rounds": int(outcome.metrics[-1].get("elapsed", 0)) if outcome and outcome.metrics else 0,
            "warnings": [*dict.fromkeys([*told, *(outcome.warnings if outcome else ())])],
            "guards": guards,
            "refused": sum(count for code, count in guards.items() if code.startswith("refused")),
            "seconds": time.perf_counter() - began,
            **self.measured(model()),
        }
        return {**row, "end": end(row)}

    def measured(self, model: nn.Module) -> Row:
        """Usefulness and forgetting of a model, of the one before, and of full retrainings."""
        every = [model, self.before, *self.full]
        useful = [mean(accuracy(m, d.evaluations["test"]) for d in self.retained.values()) for m in every]
        row: Row = {"r_acc": useful[0], "before": useful[1], "full": useful[2:]}
        if self.cell.poisoned:
            asr = [accuracy(each, self.target.evaluations["backdoor"]) for each in every]
            return row | {"asr": asr[0], "asr_before": asr[1], "asr_full": asr[2:]}
        found = [self.found(each) for each in every[:2]]
        return row | {"found": found[0], "found_before": found[1]}

    def found(self, model: nn.Module) -> tuple[float, float]:
        """The AUC of calibrated losses minus that of full retraining, and its standard error."""
        sets = self.target.evaluations["forget"], self.target.evaluations["audit"]
        ours, *theirs = (losses(each, *sets) for each in (model, *self.full))
        difference = compare(ours, theirs, theirs).difference
        return difference.value, difference.error


def run(cell: Cell, calls: Sequence[str]) -> list[Row]:
    """Train a cell once, and try each call on a copy of what was trained."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        began = time.perf_counter()
        ground = Ground.of(cell, folder)
        training = {"training_seconds": time.perf_counter() - began}
        _, clients, target = build(cell)
        done: dict[str, Row] = {}
        for call in calls:
            method, options = arguments(cell, call)
            asked = repr((method, options))
            if asked not in done:
                shutil.copytree(folder / "trained", folder / call)
                trained = server(cell, clients, folder / call / "server")
                named = [method] if method else []
                forget = partial(trained.forget, target, *named, **options)
                done[asked] = ground.row(call, forget, partial(getattr, trained, "model"))
            rows.append({**done[asked], **training, "call": call})
    return rows


def end(row: Row) -> str:
    if row["raised"] is not None:
        return "raised"
    if row["failed"]:
        return "silent"
    told = any("R-Acc" in each for each in row["warnings"])
    if row["r_acc"] < row["before"] - WARNED - 1e-6 and not told:
        return "silent"
    if row["r_acc"] < min(row["full"]) - BELOW:
        return "warned" if told else "below"
    return "well" if forgotten(row) else "remembers"


def forgotten(row: Row) -> bool:
    if "asr" in row:
        return bool(row["asr"] <= max(row["asr_full"]) + BACKDOOR)
    difference, error = row["found"]
    return bool(difference <= ERRORS * error)


@torch.no_grad()
def accuracy(model: nn.Module, examples: fu.Examples) -> float:
    return float((model.eval()(examples.x).argmax(1) == examples.y).float().mean())


@torch.no_grad()
def losses(model: nn.Module, *sets: fu.Examples) -> Scores:
    model.eval()
    return Scores(*(nn.functional.cross_entropy(model(s.x), s.y, reduction="none").numpy() for s in sets))


def matrix(cells: Sequence[Cell], calls: Sequence[str], folder: Path, workers: int) -> list[Row]:
    """The rows of these cells and calls; those that the folder has are not run again."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "rows.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    there = {(row["cell"], row["call"]) for row in rows}
    left = {cell: [call for call in calls if (cell.name, call) not in there] for cell in cells}
    with ProcessPoolExecutor(workers, get_context("spawn"), torch.set_num_threads, (1,)) as pool:
        jobs = [pool.submit(run, cell, wanted) for cell, wanted in left.items() if wanted]
        for job in as_completed(jobs):
            with path.open("a") as file:
                file.writelines(json.dumps(row) + "\n" for row in job.result())
            rows += job.result()
            print(*map(line, job.result()), sep="\n", flush=True)
    names = {cell.name for cell in cells}
    return [row for row in rows if row["cell"] in names and row["call"] in calls]


def line(row: Row) -> str:
    """A row to read."""
    below = row["r_acc"] - mean(row["full"])
    told = f"ASR {row['asr']:.2f}" if "asr" in row else "AUC {:+.2f} ± {:.2f}".format(*row["found"])
    why = row["raised"] or ("" if row["end"] == "well" else row["reason"])
    return (
        f"{row['cell']:<46} {row['call']:<12} {row['end']:<9} {row['r_acc']:.3f} ({below:+.3f}) {told} "
        f"refused {row['refused']:<4} rounds {row['rounds']:<4} {row['seconds']:.0f} s {why}"
    )


def ruined(row: Row) -> bool:
    """Whether a model was returned that is much worse than the one before."""
    return row["end"] != "raised" and not row["failed"] and row["r_acc"] < row["before"] - RUINED


def table(rows: Iterable[Row]) -> str:
    """What became of each call, in Markdown."""
    rows = list(rows)
    ends = ("well", "raised", "silent", "warned", "below", "remembers")
    heads = [
        "call",
        "cells",
        *ends,
        "ruined",
        "refused",
        "R-Acc − full: mean",
        "least",
        "ASR: most",
        "seconds",
    ]
    lines = [f"| {' | '.join(heads)} |", "|---" + "|---:" * (len(heads) - 1) + "|"]
    for call in dict.fromkeys(row["call"] for row in rows):
        held = [row for row in rows if row["call"] == call]
        below = [r["r_acc"] - mean(r["full"]) for r in held if not r["failed"]] or [float("nan")]
        counts = [str(sum(row["end"] == each for row in held)) for each in ends]
        counts += [str(sum(map(ruined, held))), str(sum(row["refused"] > 0 for row in held))]
        asrs = [row["asr"] for row in held if "asr" in row and not row["failed"]]
        most = f"{max(asrs, default=float('nan')):.2f}"
        figures = [
            f"{mean(below):+.3f}",
            f"{min(below):+.3f}",
            most,
            f"{sum(r['seconds'] for r in held):.0f}",
        ]
        lines.append(f"| {' | '.join([call, str(len(held)), *counts, *figures])} |")
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--cells", choices=LISTS, default="judging")
    parser.add_argument("--only", default="", help="a part of the names of cells")
    parser.add_argument("--calls", default=",".join(CALLS))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=1)
    given = parser.parse_args()
    chosen = [cell for cell in LISTS[given.cells] if given.only in cell.name]
    all_rows = matrix(chosen, given.calls.split(","), given.out, given.workers)
    print("", *map(line, sorted(all_rows, key=lambda row: row["cell"])), "", table(all_rows), sep="\n")
