"""The model before the request, ω⁰: trained once, then taken from the cache."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from ..core import ClientId, FedUnlearnError, Listener, Stage, State, history
from ..core.seeds import derive
from ..data import Population
from ..data.sources import user_cache
from ..driver import Participation, unlearn
from ..record import Recorder, digest, fingerprint, locked, model_hash, read_state, write_state
from .checkpoint import read_model
from .setup import Setting, arithmetic

PRETRAINING_VERSION = 2
"""Raised whenever a change of the code changes the bits of a pre-training, so that no old ω⁰ is reused."""


def pretrained(
    setting: Setting,
    listeners: Sequence[Listener] = (),
    *,
    checkpoint_seconds: float = 5.0,
    workers: int | None = None,
) -> State:
    """ω⁰: trained once, then shared by every run whose pre-training is determined by the same things.

    The number of rounds is not one of them: more rounds continue where fewer ended; fewer rounds start anew
    beside them. A checkpoint that the experiment names takes the place of pre-training.
    """
    plan, clients = setting.experiment.pretraining, setting.population.pretraining
    if setting.experiment.checkpoint is not None:
        return read_model(setting.experiment.checkpoint, setting.build(0))
    start, module = setting.fresh("pre-training"), setting.build(0)
    identity = fingerprint(
        {
            "version": PRETRAINING_VERSION,
            "start": model_hash(start),
            "clients": {client: digest(data.train._asdict()) for client, data in clients.items()},
            "model": f"{setting.experiment.model}: {module}",
            "training": {**asdict(setting.training), "objective": "cross_entropy"},
            "lr": plan.lr,
            "seed": setting.seed,
            **arithmetic(setting.experiment),
            **({"history": sorted(set(plan.history))} if plan.history else {}),
            **({"clusters": plan.clusters} if plan.clusters > 1 else {}),
            **({"history format": 2} if plan.history or plan.clusters > 1 else {}),
            **(
                {"participation": asdict(share)}
                if (share := setting.participation) != Participation()
                else {}
            ),
        }
    )
    folder = cache_directory() / "pretraining" / identity[:20]
    finished = folder / f"model-{plan.rounds}.safetensors"
    with locked(folder / "lock", wait=True):
        if not finished.exists():
            request = setting.request(start, clients, _watched(setting.population))
            if plan.history:
                size = (
                    history.size(
                        plan.history, len(clients), len(start.params), len(request.shapes), plan.rounds
                    )
                    / 1e6
                )
                warnings.warn(
                    f"pre-training records {', '.join(sorted(plan.history))}: {size:.1f} MB in memory, "
                    f"and up to three times that in {folder}",
                    stacklevel=2,
                )
            recorder = Recorder(folder, identity, seconds=checkpoint_seconds)
            if recorder.progress is not None and recorder.progress.elapsed_rounds > plan.rounds:
                recorder = Recorder(folder / f"{plan.rounds}-rounds", identity, seconds=checkpoint_seconds)
            with recorder, setting.federation(clients, workers, Stage.PRETRAINING) as federation:
                outcome = unlearn(
                    (setting.experiment.pretraining_phase(),),
                    request,
                    federation,
                    training=setting.training,
                    seed=derive("pre-training", setting.seed),
                    evaluate_every=plan.evaluate_every,
                    participation=setting.participation,
                    listeners=(recorder, *listeners),
                    resume=recorder.progress,
                )
            if outcome.status.failed:
                raise FedUnlearnError(outcome.reason)
            write_state(finished, outcome.state)
        state, _ = read_state(finished)
    return state


def cache_directory() -> Path:
    """Where pre-trained models are kept: ``FEDUNLEARN_CACHE``, or the user's cache folder."""
    named = os.environ.get("FEDUNLEARN_CACHE")
    return Path(named) if named else user_cache("FEDUNLEARN_CACHE")


def _watched(population: Population) -> tuple[ClientId, ...]:
    """The clients behind the targets, measured from the start; none where that is everybody."""
    real = {target.partition("#")[0] for target in population.targets}
    return tuple(sorted(real)) if len(real) < len(population.pretraining) else ()
