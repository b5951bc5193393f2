"""Learning rates chosen by short trials on the first seed, from training data alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from ..experiment import Experiment, StagePlan
from ..report.trials import score
from .plan import Comparison


def trials(
    comparison: Comparison, folder: Path, column: str, row: str
) -> dict[float, tuple[Path, Experiment]]:
    """The folder and experiment of each trial, by rate; empty if there is no grid or no rate matters."""
    experiment = comparison.columns[column][row]
    grid = comparison.grid
    if grid is None or not _rate_matters(experiment):
        return {}
    short = experiment.model_copy(
        update={
            "seed": comparison.seeds[0],
            "count_conflicts": False,
            "unlearning": _shortened(experiment.unlearning, grid.share),
            "recovery": _shortened(experiment.recovery, grid.share),
        }
    )
    return {
        rate: (folder / column / "trials" / row / repr(rate), at_rate(short, rate)) for rate in grid.rates
    }


def best_rate(trials: Mapping[float, Path]) -> float:
    """The rate whose trial ended best by ``score``; ties go to the smallest rate.

    No test data is read. The backdoor's accuracy is the ASR that tables show, because the paper measures
    it on training pictures. If every trial failed, the smallest rate shows the failure.
    """
    scores = {rate: reached for rate, run in trials.items() if (reached := score(run)) is not None}
    return max(sorted(scores), key=lambda rate: scores[rate], default=min(trials))


def at_rate(experiment: Experiment, rate: float) -> Experiment:
    """The experiment with one learning rate for unlearning and recovery."""
    return experiment.model_copy(
        update={
            "unlearning": experiment.unlearning.model_copy(update={"lr": rate}),
            "recovery": experiment.recovery.model_copy(update={"lr": rate}),
        }
    )


def _shortened(stage: StagePlan, share: float) -> StagePlan:
    return stage.model_copy(update={"rounds": math.ceil(share * stage.rounds - 1e-9)})


def _rate_matters(experiment: Experiment) -> bool:
    return at_rate(experiment, 1.0).phases() != at_rate(experiment, 2.0).phases()
