"""How well the trial of a learning rate ended."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

from ..core import FedUnlearnError
from .runs import read_run


def score(trial: Path) -> float | None:
    """How well a trial ended, by training data alone; None where it failed.

    That is the accuracy of the retained clients less the backdoor's on the targets' own pictures; the mean of
    the ends of unlearning and of post-training, as tables show both.
    """
    run = read_run(trial)
    if run.failed:
        return None
    ends = {str(row["stage"]): row for row in run.rows if "r_seen" in row}
    if len(ends) > 1:
        ends.pop("start", None)
    if not ends:
        raise unmeasured(trial)
    return fmean(
        float(row["r_seen"]) - float(row.get("asr", row.get("forget_acc", 0.0))) for row in ends.values()
    )


def unmeasured(run: Path) -> FedUnlearnError:
    """The error for a run that ended without a measurement."""
    return FedUnlearnError(f"{run} has ended and holds no evaluated round: remove it, and it is run anew")
