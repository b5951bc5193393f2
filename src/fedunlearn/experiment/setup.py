"""What an experiment needs before its first round: clients with their data, and a model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import nn

from .. import models
from ..client.data import ClientData, Examples
from ..core import ClientId, Federation, History, LocalTraining, Request, Stage, State, vectors
from ..core.errors import warn
from ..core.seeds import derive
from ..data import PUBLIC, Dataset, Population, load, plant, poison, populate, reserve, trigger
from ..driver import Participation
from ..engines import Sequential, join, simulate
from ..runs import decisive
from .settings import Experiment


@dataclass(frozen=True)
class Setting:
    """An experiment with its data and its model drawn up."""

    experiment: Experiment
    population: Population
    build: Callable[[object], nn.Module]
    elsewhere: Callable[[nn.Module, Stage], Federation] | None = None
    """Connects with clients on other machines, for a stage; without it, clients are simulated here."""

    @property
    def training(self) -> LocalTraining:
        return self.experiment.training.local_training()

    @property
    def participation(self) -> Participation:
        return self.experiment.participation.participation()

    @property
    def seed(self) -> int:
        return self.experiment.seed

    def federation(
        self, clients: Mapping[ClientId, ClientData], workers: int | None, stage: Stage
    ) -> AbstractContextManager[Federation]:
        chosen, public = self.experiment, self.population.public
        if self.elsewhere is not None:
            federation = self.elsewhere(self.build(0), stage)
            if public is None:
                return nullcontext(federation)
            return nullcontext(join(federation, Sequential(self.build(0), {PUBLIC: public})))
        members = {**clients, **({PUBLIC: public} if public else {})}
        if workers is not None and workers > len(members):
            warn(f"{len(members)} workers are enough for {len(members)} clients", "workers")
            workers = len(members)
        return simulate(
            self.build(0), members, workers=workers, device=chosen.device, precision=chosen.precision
        )

    def request(self, state: State, clients: Iterable[ClientId], targets: tuple[ClientId, ...]) -> Request:
        """To forget the targets; the memory of the state is the history of the pre-training."""
        return Request(
            state.params,
            tuple(clients),
            targets,
            self.fresh,
            state.buffers,
            shapes=vectors.shapes(self.build(0)),
            history=History.from_tensors(state.memory),
            public=PUBLIC if self.population.public else None,
            seed=derive("method", self.seed),
        )

    def fresh(self, purpose: str) -> State:
        """A new model for a named purpose; pre-training starts from the one for ``pre-training``."""
        module = self.build((self.seed, purpose))
        return State(vectors.flatten(module), buffers=vectors.buffers(module))


def examples(experiment: Experiment) -> Dataset:
    """Load the data of an experiment."""
    return load(experiment.data.dataset, experiment.data.directory, experiment.data.fraction)


def builder(experiment: Experiment, source: Dataset) -> Callable[[object], nn.Module]:
    """Return the function that makes a new model for the data, given what decides its weights."""
    channels, height, width = source.train.x.shape[1:]
    return partial(models.build, experiment.model, source.classes, (channels, height, width))


def prepare(experiment: Experiment, source: Dataset | None = None) -> Setting:
    """Spread the data over clients, and say how to build the model; the data is loaded unless given."""
    source = examples(experiment) if source is None else source
    public: ClientData | None = None
    if experiment.data.public:
        public, source = reserve(source, experiment.data.public, experiment.seed)
    erasure, backdoor = experiment.request, experiment.backdoor
    population = populate(
        source,
        partition=experiment.data.partition,
        clients=experiment.data.clients,
        seed=experiment.seed,
        batch_size=experiment.training.batch_size,
        level=erasure.level,
        targets=erasure.targets,
        share=erasure.share,
        label=erasure.label,
        backdoor=backdoor.enabled,
        pretrain_share=backdoor.pretrain_share,
        unlearn_share=backdoor.unlearn_share,
        value=backdoor.value,
        audit=experiment.data.audit,
        twins=experiment.data.twins,
        options=experiment.data.options,
    )
    if experiment.data.canaries:
        population = plant(population, source, experiment.data.canaries, experiment.seed)
    return Setting(experiment, replace(population, public=public), builder(experiment, source))


def specimen(experiment: Experiment, number: int = 0) -> tuple[Examples, Examples]:
    """A training picture of this number as it is, and with the backdoor's trigger and label on it."""
    source = examples(experiment)
    clean = source.train.take(torch.tensor([number]))
    mark = trigger(experiment.seed, clean.x.shape[1:], experiment.backdoor.value)
    return clean, poison(clean, mark, source.classes, share=1.0, batch_size=1)


def arithmetic(experiment: Experiment) -> dict[str, object]:
    """Where, in which numbers and by which software an experiment computes: it decides about bits."""
    card = [torch.cuda.get_device_name()] if experiment.device == "cuda" else []
    return {"arithmetic": [experiment.device, experiment.precision, *card], **decisive()}
