"""How well the trial of a learning rate ended."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

from ..core import FedUnlearnError, Status
from ..record import read_outcome
from .tables import measured


def score(trial: Path) -> float | None:
    """How well a trial ended, by training data alone; None where it failed.

    That is the accuracy of the retained clients less the backdoor's on the targets' own pictures; the mean of
    the ends of unlearning and of post-training, as tables show both.
    """
    if Status(read_outcome(trial)["status"]).failed:
        return None
    ends = {str(row["stage"]): row for row in measured(trial) if "r_seen" in row}
    if len(ends) > 1:
        ends.pop("start", None)
    if not ends:
        raise unmeasured(trial)
    return fmean(
        float(row["r_seen"]) - float(row.get("asr", row.get("forget_acc", 0.0))) for row in ends.values()
    )


def unmeasured(run: Path) -> FedUnlearnError:
    """The error of a run that ended and measured nothing."""
    return FedUnlearnError(f"{run} has ended and holds no evaluated round: remove it, and it is run anew")
