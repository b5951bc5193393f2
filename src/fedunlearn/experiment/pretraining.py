"""The model before the request, ω⁰: trained once, then taken from the cache."""

from __future__ import annotations

from collections.abc import Sequence

from ..core import ClientId, Listener, State
from ..core.seeds import derive
from ..data import Population
from .setup import Setting
from .start_model import read_model
from .training import CachedTraining, identify


def pretrained(
    setting: Setting,
    listeners: Sequence[Listener] = (),
    *,
    checkpoint_seconds: float = 5.0,
    workers: int | None = None,
) -> State:
    """ω⁰; a checkpoint that the experiment names takes the place of pre-training."""
    if setting.experiment.checkpoint is not None:
        return read_model(setting.experiment.checkpoint, setting.build(0))
    return pretraining(setting).model(listeners, checkpoint_seconds=checkpoint_seconds, workers=workers)


def pretraining(setting: Setting) -> CachedTraining:
    """The training of ω⁰."""
    plan, clients = setting.experiment.pretraining, setting.population.pretraining
    start = setting.fresh("pre-training")
    recorded = {
        **({"history": sorted(set(plan.history))} if plan.history else {}),
        **({"clusters": plan.clusters} if plan.clusters > 1 else {}),
        **({"slices": [plan.slices, plan.rounds]} if plan.slices > 1 else {}),
        **({"history format": 2} if plan.history or plan.clusters > 1 or plan.slices > 1 else {}),
    }
    return CachedTraining(
        setting,
        clients,
        setting.request(start, clients, watched(setting.population)),
        setting.experiment.pretraining_phase(),
        derive("pre-training", setting.seed),
        identify(setting, start, clients, **recorded),
        "pretraining",
    )


def watched(population: Population) -> tuple[ClientId, ...]:
    """The clients behind the targets, measured from the start; none where that is everybody."""
    real = {target.partition("#")[0] for target in population.targets}
    return tuple(sorted(real)) if len(real) < len(population.pretraining) else ()
