"""A whole run in its folder: pre-training, unlearning, post-training; begun, or continued."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..core import FedUnlearnError, Listener, Outcome, Status, vectors
from ..core.seeds import derive
from ..engines import require
from ..methods import history
from ..record import (
    Recorder,
    environment,
    fingerprint,
    locked,
    model_hash,
    read_json,
    read_outcome,
    read_state,
    write_json,
    write_state,
    write_tensors,
)
from ..run import unlearn
from .pretraining import pretrained
from .reading import check
from .settings import Experiment
from .setup import arithmetic, prepare


def perform(
    experiment: Experiment,
    folder: Path,
    listeners: Sequence[Listener] = (),
    *,
    checkpoint_seconds: float = 5.0,
    workers: int | None = None,
) -> Outcome:
    """Runs the experiment in a folder, or goes on with what the folder already holds.

    ``workers`` (one for each core, unless given) decides about time, not about the result.
    """
    require(experiment.device, experiment.precision)
    config, made_with = experiment.model_dump(mode="json"), environment()
    setting = prepare(experiment)
    module, phases = setting.build(0), experiment.phases()
    with locked(folder / "lock"):
        _claim(folder, config)
        if not (folder / "omega0.safetensors").exists():
            write_json(folder / "environment.json", made_with)
            omega0 = pretrained(setting, listeners, checkpoint_seconds=checkpoint_seconds, workers=workers)
            needed = history.BESIDE.union(*(phase.needs for phase in phases))
            memory = {
                name: value for name, value in omega0.memory.items() if name.partition(" ")[0] in needed
            }
            write_state(folder / "omega0.safetensors", replace(omega0, memory=memory))
        omega0, _ = read_state(folder / "omega0.safetensors")
        clients = setting.population.unlearning
        request = setting.request(omega0, clients, setting.population.targets)
        identity = fingerprint(
            {
                "config": config,
                "omega0": model_hash(omega0),
                **arithmetic(experiment),
            }
        )
        with (
            Recorder(folder, identity, seconds=checkpoint_seconds) as recorder,
            setting.federation(clients, workers) as federation,
        ):
            if recorder.progress is None:
                write_json(folder / "environment.json", made_with)
            outcome = unlearn(
                phases,
                request,
                federation,
                training=setting.training,
                seed=derive("unlearning", experiment.seed),
                evaluate_every=experiment.evaluate_every,
                stop_below=experiment.unlearning.stop_below,
                count_conflicts=experiment.count_conflicts,
                listeners=(recorder, *listeners),
                resume=recorder.progress,
            )
        vectors.load(module, outcome.state)
        write_tensors(folder / "model.safetensors", module.state_dict())
        write_json(
            folder / "outcome.json",
            {
                "status": outcome.status,
                "reason": outcome.reason,
                "model_sha256": model_hash(outcome.state),
            },
        )
    return outcome


def resume(folder: Path, listeners: Sequence[Listener] = (), *, workers: int | None = None) -> Outcome:
    """Continues a run that was stopped."""
    return perform(recorded(folder), folder, listeners, workers=workers)


def recorded(folder: Path) -> Experiment:
    """The experiment of a run folder."""
    return check(read_json(folder / "experiment.json"), str(folder))


def finished(folder: Path) -> bool:
    """Whether the run in a folder has ended, and not in failure."""
    return (folder / "outcome.json").exists() and not Status(read_outcome(folder)["status"]).failed


def _claim(folder: Path, config: Mapping[str, Any]) -> None:
    """Takes a new folder for this experiment, or makes sure that an old one is its own and unfinished.

    One in which pre-training has not ended holds nothing yet.
    """
    if not finished(folder) and not (folder / "omega0.safetensors").exists():
        write_json(folder / "experiment.json", config)
    elif (begun := read_json(folder / "experiment.json")) != config:
        if check(begun, str(folder)) == check(config, str(folder)):
            raise FedUnlearnError(f"the run in {folder} was begun by an older fedunlearn: run it anew")
        raise FedUnlearnError(
            f"{folder} holds a run with another configuration: choose another folder with --out"
        )
    if finished(folder):
        raise FedUnlearnError(
            f"the run in {folder} is finished: choose another folder with --out, "
            f"or look at it again with: fedunlearn resume {folder}"
        )
