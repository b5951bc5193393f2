"""A whole run in its folder: pre-training, unlearning, post-training; begun, or continued."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from ..core import Federation, FedUnlearnError, History, Listener, Outcome, Stage, requirements
from ..core.seeds import derive
from ..driver import Below, Conflicts
from ..engines import require
from ..record import (
    claim,
    environment,
    fingerprint,
    json_bytes,
    locked,
    model_hash,
    read_json,
    read_state,
    tell_unverified,
    verify,
)
from ..running import finished, run_in
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
    elsewhere: Callable[[nn.Module, Stage], Federation] | None = None,
) -> Outcome:
    """Runs the experiment in a folder, or goes on with what the folder already holds.

    ``workers`` (one for each core, unless given) decides about time, not about the result, and so does
    ``elsewhere``, which connects with clients on other machines for a stage.
    """
    require(experiment.device, experiment.precision)
    config = experiment.model_dump(mode="json")
    setting = replace(prepare(experiment), elsewhere=elsewhere)
    module, phases = setting.build(0), experiment.phases()
    with locked(folder / "lock"):
        _require_own(folder, config)
        files = claim(folder, fingerprint(config))
        if "omega0.safetensors" not in files:
            begun = {"experiment.json": config, "environment.json": environment()}
            files.write({name: json_bytes(value) for name, value in begun.items()})
            omega0 = pretrained(setting, listeners, checkpoint_seconds=checkpoint_seconds, workers=workers)
            history = History.from_tensors(omega0.memory).only(requirements.recorded(phases))
            kept = replace(omega0, memory=history.tensors())
            files.write({"omega0.safetensors": files.state(kept)})
        omega0, _ = read_state(folder / "omega0.safetensors")
        clients = setting.population.unlearning
        request = setting.request(omega0, clients, setting.population.targets)
        identity = {"config": config, "omega0": model_hash(omega0), **arithmetic(experiment)}
        with setting.federation(clients, workers, Stage.UNLEARNING) as federation:
            return run_in(
                files,
                identity,
                module,
                phases,
                request,
                federation,
                listeners=listeners,
                checkpoint_seconds=checkpoint_seconds,
                training=setting.training,
                seed=derive("unlearning", experiment.seed),
                evaluate_every=experiment.evaluate_every,
                participation=setting.participation,
                stop=stop_rules(experiment),
                probes=[Conflicts(ask=experiment.count_conflicts)],
                guards=experiment.guards.guards(),
            )


def stop_rules(experiment: Experiment) -> list[Below]:
    """When unlearning ends early."""
    below = experiment.unlearning.stop_below
    return [Below("asr" if experiment.backdoor.enabled else "forget_acc", below)] if below else []


def resume(folder: Path, listeners: Sequence[Listener] = (), *, workers: int | None = None) -> Outcome:
    """Continues a run that was stopped."""
    return perform(recorded(folder), folder, listeners, workers=workers)


def recorded(folder: Path) -> Experiment:
    """The experiment of a run folder, whose files are verified first."""
    manifest = verify(folder, resuming=not finished(folder))
    if manifest is None or not manifest.verified:
        tell_unverified([folder])
    config = read_json(folder / "experiment.json")
    if isinstance(config, dict) and config.get("kind") == "server":
        raise FedUnlearnError(f"a Python script with fedunlearn.Server wrote {folder}: run that script again")
    return check(config, str(folder))


def _require_own(folder: Path, config: Mapping[str, Any]) -> None:
    """Makes sure that a folder is new, or that its run is of this experiment and unfinished.

    One in which pre-training has not ended holds nothing yet.
    """
    verify(folder, resuming=True)
    holds_something = finished(folder) or (folder / "omega0.safetensors").exists()
    if holds_something and (begun := read_json(folder / "experiment.json")) != config:
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
