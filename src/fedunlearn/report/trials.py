"""Scores of the trials that choose a learning rate."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

from ..core import FedUnlearnError, Metrics
from .folders import read_run


def score(trial: Path) -> float | None:
    """The score of a trial, computed from training data only; None if it failed.

    It is the accuracy of the retained clients minus the attack success rate on the targets' own images,
    averaged over the ends of unlearning and of post-training.
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


def score_beside(trial: Path, retraining: Path) -> float | None:
    """The score of a trial beside a retraining, computed from training data only; None if it failed.

    It is the final accuracy of the retained clients minus the distance to the retraining in what is to be
    forgotten: the attack success rate on the targets' own images, or the accuracy on the forgotten data.
    The retraining never saw these data, so neither more nor less than it knows is to be left.
    """
    run = read_run(trial)
    if run.failed:
        return None
    ended, wanted = _last(trial), _last(retraining)
    key = "asr" if "asr" in ended else "forget_acc"
    return float(ended["r_seen"]) - abs(float(ended[key]) - float(wanted[key]))


def _last(folder: Path) -> Metrics:
    rows = [row for row in read_run(folder).rows if "r_seen" in row]
    if not rows:
        raise unmeasured(folder)
    return rows[-1]


def unmeasured(run: Path) -> FedUnlearnError:
    """The error for a run that ended without a measurement."""
    return FedUnlearnError(f"{run} has ended without an evaluated round: delete the folder and run again")
