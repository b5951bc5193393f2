"""Relearning in an experiment: its clients are rebuilt and attack its models."""

from __future__ import annotations

from ..auditing import Model
from ..core import Stage
from ..core.seeds import derive
from ..relearning import EXAMPLES, ROUNDS, Relearning, relearn
from .setup import Setting


def relearn_run(
    setting: Setting,
    model: Model,
    retrained: Model,
    original: Model,
    *,
    rounds: int = ROUNDS,
    examples: int = EXAMPLES,
    workers: int | None = None,
) -> Relearning:
    """How soon the forgotten returns, with the clients and the local training of an experiment.

    Both attacks use the learning rate of the recovery.
    """
    population = setting.population
    with setting.federation(population.auditing, workers, Stage.UNLEARNING) as federation:
        return relearn(
            federation,
            model,
            targets=population.targets,
            retrained=retrained,
            original=original,
            lr=setting.experiment.recovery.lr,
            training=setting.training,
            participation=setting.participation,
            seed=derive("relearning", setting.seed),
            rounds=rounds,
            examples=examples,
            clients=population.auditing,
        )
