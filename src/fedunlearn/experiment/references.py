"""Models that never saw the targets' data, trained as long as ω⁰: what an audit compares with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

from ..core import FedUnlearnError, Listener
from ..core.seeds import derive
from .pretraining import watched
from .settings import Experiment
from .setup import Setting
from .training import CachedTraining, identify

TWINS = 2
"""The number that calibrates the losses, where the data has room for them."""

Show = Callable[[str], AbstractContextManager[Listener]]
"""Makes a listener for a training or a run, given what to call it."""


@contextmanager
def unseen(name: str) -> Iterator[Listener]:
    """Show nothing."""
    yield lambda event: None


def number_of_twins(experiment: Experiment) -> int:
    """Return the number of twins of an audit by default."""
    return TWINS if experiment.data.twins and experiment.checkpoint is None else 0


def reference_rounds(experiment: Experiment) -> dict[str, tuple[int, int]]:
    """The references that are trained on demand, with their rounds of pre-training and of retraining."""
    if experiment.checkpoint is not None:
        return {}
    rounds = experiment.pretraining.rounds
    retrainings = {f"retraining-{number}": (0, rounds) for number in (1, 2)}
    twins = {f"twin-{number}": (rounds, 0) for number in range(1, number_of_twins(experiment) + 1)}
    return retrainings | twins


def references(setting: Setting, *, retrainings: int, twins: int) -> dict[str, CachedTraining]:
    """So many retrainings and twins, by name."""
    return {
        **{f"retraining-{number}": retraining(setting, number) for number in range(1, retrainings + 1)},
        **{f"twin-{number}": twin(setting, number) for number in range(1, twins + 1)},
    }


def retraining(setting: Setting, number: int = 1) -> CachedTraining:
    """Retraining without the targets, with the rounds and the learning rate of ω⁰.

    It is the run with ``method=retrain``, ``options.rounds`` equal to ``pretraining.rounds`` and
    ``options.number=number``: the same model to the bit.
    """
    _require_budget(setting)
    experiment, population = setting.experiment, setting.population
    options = {"rounds": experiment.pretraining.rounds, "number": number}
    (phase,) = experiment.model_copy(update={"method": "retrain", "options": options}).phases()
    clients = population.unlearning
    request = setting.request(setting.fresh("pre-training"), clients, population.targets)
    start = phase.start(request, setting.fresh("pre-training"))
    drawn = f" {number}" if setting.training.shuffle else ""
    retained = {client: clients[client] for client in request.retained}
    return CachedTraining(
        setting,
        clients,
        request,
        phase,
        derive("unlearning", setting.seed),
        identify(setting, start, retained, purpose=f"retraining{drawn}"),
        "references",
    )


def twin(setting: Setting, number: int = 1) -> CachedTraining:
    """Pre-training with stand-ins in place of the targets, from a new model and with other batches."""
    _require_budget(setting)
    if not setting.population.stand_ins:
        raise FedUnlearnError("twins need examples that nobody else trains on: set data.twins, such as 0.3")
    clients, plan = setting.population.twin, setting.experiment.pretraining
    sliced = {"slices": [plan.slices, plan.rounds]} if plan.slices > 1 else {}
    start = setting.fresh(f"twin {number}")
    return CachedTraining(
        setting,
        clients,
        setting.request(start, clients, watched(setting.population)),
        replace(setting.experiment.pretraining_phase(), history=()),
        derive("twin", number, setting.seed),
        identify(setting, start, clients, purpose=f"twin {number}", clusters=plan.clusters, **sliced),
        "references",
    )


def _require_budget(setting: Setting) -> None:
    if setting.experiment.checkpoint is not None:
        raise FedUnlearnError(
            "ω⁰ is a checkpoint, so nobody knows how long to train a reference: name a retraining with "
            "--against, and use no twins"
        )
