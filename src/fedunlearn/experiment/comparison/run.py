"""The runs of a comparison: carried out where they are missing, left alone where they have ended."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ...core import FedUnlearnError
from ...data import load
from ...runs import read_json
from .. import Experiment, Show, check, perform
from .audits import DECIDES_PRETRAINING, audit_runs, reference_trainings
from .plan import Comparison, place
from .tuning import at_rate, best_rate, standard_of_trials, trials


def missing(comparison: Comparison, folder: Path) -> int:
    """How many runs have not ended, trials and references of audits among them."""
    return len(planned(comparison, folder))


def planned(comparison: Comparison, folder: Path) -> dict[str, tuple[int, int]]:
    """The runs that have not ended, by name, with their rounds: of pre-training, and after it.

    Runs that share a pre-training count it once. References that audits need follow.
    """
    wanted: dict[Path, Experiment] = {}
    for seed in comparison.seeds:
        for column, rows in comparison.columns.items():
            for row, experiment in rows.items():
                wanted |= _tuning(comparison, folder, column, row)
                wanted[place(folder, column, seed, row)] = experiment.model_copy(update={"seed": seed})
    runs: dict[str, tuple[int, int]] = {}
    trained: set[str] = set()
    for run, experiment in wanted.items():
        if not (run / "outcome.json").exists():
            before, after = experiment.rounds
            shared = experiment.model_dump_json(include=DECIDES_PRETRAINING)
            runs[str(run.relative_to(folder))] = (0 if shared in trained else before, after)
            trained.add(shared)
    return runs | reference_trainings(comparison, folder)


def carry_out(comparison: Comparison, folder: Path, show: Show, *, workers: int | None = None) -> None:
    """Perform what is missing, go on with what was cut off, and leave alone what has ended.

    Then audit the runs whose experiments keep examples aside for that.
    """
    _require_data(comparison, folder)
    for seed in comparison.seeds:
        for column, rows in comparison.columns.items():
            for row, experiment in rows.items():
                chosen = experiment.model_copy(update={"seed": seed})
                for run, trial in _tuning(comparison, folder, column, row).items():
                    _perform(trial, run, folder, show, workers)
                chosen = at_chosen_rate(comparison, folder, column, row, chosen)
                _perform(chosen, place(folder, column, seed, row), folder, show, workers)
    audit_runs(comparison, folder, show, workers=workers)


def at_chosen_rate(
    comparison: Comparison, folder: Path, column: str, row: str, experiment: Experiment
) -> Experiment:
    """The experiment at the rate that its finished trials chose, or as it is where there are none."""
    tried = {rate: run for rate, (run, _) in trials(comparison, folder, column, row).items()}
    if not tried:
        return experiment
    standard = standard_of_trials(comparison, folder, column, row)
    return at_rate(experiment, best_rate(tried, standard[0] if standard else None))


def _tuning(comparison: Comparison, folder: Path, column: str, row: str) -> dict[Path, Experiment]:
    """The trials of a row, and the retraining that they are compared with."""
    tried = dict(trials(comparison, folder, column, row).values())
    standard = standard_of_trials(comparison, folder, column, row)
    return tried | ({standard[0]: standard[1]} if tried and standard else {})


def _require_data(comparison: Comparison, folder: Path) -> None:
    """Read each data set once: hours of runs should not end at one that is not there."""
    read = set()
    for column, rows in comparison.columns.items():
        data = next(iter(rows.values())).data
        wanted = (data.dataset, data.directory)
        alone = replace(comparison, columns={column: rows})
        if wanted in read or not missing(alone, folder):
            continue
        try:
            load(*wanted)
        except FedUnlearnError as error:
            others = len(comparison.columns) > 1
            hint = f"; or name other columns than {column} with --only" if others else ""
            raise FedUnlearnError(f"{error}{hint}", code=error.code) from None
        read.add(wanted)


def unlike(comparison: Comparison, folder: Path) -> list[Path]:
    """The finished runs of its rows that were set up otherwise, whatever their seeds and rates."""

    def other(run: Path, wanted: Experiment) -> bool:
        was = check(read_json(run / "experiment.json"), str(run))
        return at_rate(was, 1.0).model_copy(update={"seed": wanted.seed}) != at_rate(wanted, 1.0)

    return [
        run
        for column, rows in comparison.columns.items()
        for row, places in comparison.places(folder, column, listed=True).items()
        for run in places
        if (run / "outcome.json").exists() and other(run, rows[row])
    ]


def _perform(experiment: Experiment, run: Path, folder: Path, show: Show, workers: int | None) -> None:
    if (run / "outcome.json").exists():
        if check(read_json(run / "experiment.json"), str(run)) != experiment:
            raise FedUnlearnError(
                f"{run} holds a run with another configuration: choose another folder with --out",
                code="occupied",
            )
    else:
        with show(str(run.relative_to(folder))) as listener:
            try:
                perform(experiment, run, [listener], workers=workers)
            except FedUnlearnError as error:
                raise FedUnlearnError(f"{run.relative_to(folder)}: {error}", code=error.code) from None
