"""Learning rates chosen by trials, from training data alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from ...core import FedUnlearnError
from ...report.trials import score, score_beside
from .. import Experiment, StagePlan
from .plan import Comparison

STANDARD = "retraining"
"""The folder of the retraining that trials are compared with, beside those of the rows."""


def trials(
    comparison: Comparison, folder: Path, column: str, row: str
) -> dict[float, tuple[Path, Experiment]]:
    """The folder and experiment of each trial, by rate; empty if there is no grid or no rate matters."""
    grid = comparison.grid
    if grid is None or not rates_matter(comparison.columns[column][row]):
        return {}
    column, experiment = _tried(comparison, column, row)
    short = experiment.model_copy(
        update={
            "seed": _seed(comparison),
            "count_conflicts": False,
            "unlearning": _shortened(experiment.unlearning, grid.share),
            "recovery": _shortened(experiment.recovery, grid.share),
        }
    )
    return {
        rate: (folder / column / "trials" / row / repr(rate), at_rate(short, rate)) for rate in grid.rates
    }


def standard_of_trials(
    comparison: Comparison, folder: Path, column: str, row: str
) -> tuple[Path, Experiment] | None:
    """The retraining, as long as pre-training, that the trials of a row are compared with."""
    if comparison.grid is None or comparison.grid.rule != "retraining":
        return None
    column, experiment = _tried(comparison, column, row)
    retrained = experiment.model_copy(
        update={
            "seed": _seed(comparison),
            "count_conflicts": False,
            "method": "retrain",
            "options": {"rounds": experiment.pretraining.rounds},
            "pretraining": experiment.pretraining.model_copy(update={"clusters": 1, "history": []}),
        }
    )
    return folder / column / "trials" / STANDARD, retrained


def best_rate(trials: Mapping[float, Path], standard: Path | None = None) -> float:
    """The rate whose trial ended best by ``score``, or by ``score_beside`` a retraining.

    Ties go to the smallest rate. No test data is read. The backdoor's accuracy is the ASR that tables show,
    because the paper measures it on training pictures. If every trial failed, the smallest rate shows the
    failure.
    """
    found = {rate: score_beside(run, standard) if standard else score(run) for rate, run in trials.items()}
    scores = {rate: reached for rate, reached in found.items() if reached is not None}
    return max(sorted(scores), key=lambda rate: scores[rate], default=min(trials))


def at_rate(experiment: Experiment, rate: float) -> Experiment:
    """The experiment with one learning rate for unlearning and recovery."""
    return experiment.model_copy(
        update={
            "unlearning": experiment.unlearning.model_copy(update={"lr": rate}),
            "recovery": experiment.recovery.model_copy(update={"lr": rate}),
        }
    )


def _tried(comparison: Comparison, column: str, row: str) -> tuple[str, Experiment]:
    """The column in which the trials for a column are made, and the experiment of a row there."""
    experiment = comparison.columns[column][row]
    if not comparison.tried:
        return column, experiment
    for name, rows in comparison.tried.items():
        if row in rows and rows[row].backdoor.enabled == experiment.backdoor.enabled:
            return name, rows[row]
    for name in comparison.tried:
        if (name, row) in comparison.refused:
            raise FedUnlearnError(
                f"{row!r} cannot be tried in column {name!r} ({comparison.refused[name, row]}), so it has no "
                f"learning rate for {column!r}: leave it out with --only"
            )
    like = "backdoored" if experiment.backdoor.enabled else "clean"
    raise FedUnlearnError(f"no trial serves column {column!r}: add one with {like} targets to grid.columns")


def _seed(comparison: Comparison) -> int:
    assert comparison.grid is not None
    return comparison.seeds[0] if comparison.grid.seed is None else comparison.grid.seed


def _shortened(stage: StagePlan, share: float) -> StagePlan:
    return stage.model_copy(update={"rounds": math.ceil(share * stage.rounds - 1e-9)})


def rates_matter(experiment: Experiment) -> bool:
    """Whether the method uses the rates of unlearning and recovery; one that trains anew may not."""
    return at_rate(experiment, 1.0).phases() != at_rate(experiment, 2.0).phases()
