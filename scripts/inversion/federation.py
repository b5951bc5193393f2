"""A federation that carries out a request, and what its observers see of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedunlearn import Guards, Job, LocalTraining, Replies, Request, Sequential, Terms, unlearn
from fedunlearn.client.data import Examples
from fedunlearn.config.tables import Training
from fedunlearn.core import ClientId, Event, State, vectors
from fedunlearn.experiment.pretraining import pretrained
from fedunlearn.experiment.settings import (
    Backdoor,
    Data,
    Erasure,
    Experiment,
    PretrainingPlan,
    StagePlan,
    UnlearningPlan,
)
from fedunlearn.experiment.setup import Setting, prepare

PUBLIC = 400
"""Pictures of the same kind that no client holds, and every observer does."""
DEFAULT_TERMS = Terms()
LARGEST = 360
"""Examples in a batch, all that a client holds: the target's update is one full-batch step."""


@dataclass(frozen=True)
class Scene:
    """A request at work: the model before it, the forgotten examples, and what each observer sees."""

    model: nn.Module
    forgotten: Examples
    views: Mapping[str, Tensor]
    """Up to scale: ``server`` sees the target's own update, ``step`` is ω⁰ minus the model after one round,
    ``request`` is ω⁰ minus the final model."""
    others: Tensor
    """The updates of the retained clients in the first round."""
    status: str


def experiment(network: str, target: int, share: float = 0.1) -> Experiment:
    """Ten clients with half of the classes each; one asks to forget some of its examples."""
    return Experiment(
        model=network,
        seed=1,
        data=Data(dataset="fashion-demo", public=PUBLIC),
        request=Erasure(level="sample", targets=[f"client-{target}"], share=share),
        backdoor=Backdoor(enabled=False),
        training=Training(batch_size=50),
        pretraining=PretrainingPlan(rounds=300, lr=0.1, evaluate_every=50),
        unlearning=UnlearningPlan(rounds=10, lr=0.05),
        recovery=StagePlan(rounds=10, lr=0.05),
    )


def setting(network: str, target: int, examples: int) -> Setting:
    """The federation in which this client asks to forget so many examples."""
    whole = prepare(experiment(network, target))
    held = len(whole.population.pretraining[f"client-{target}"].train.y)
    return prepare(experiment(network, target, examples / held))


def public(chosen: Setting) -> Examples:
    """The pictures that every observer has."""
    assert chosen.population.public is not None
    held = chosen.population.public.train
    assert isinstance(held, Examples)
    return held


def original(chosen: Setting, trained: bool) -> State:
    """ω⁰, from the cache if it was trained before; or the model that its training began with."""
    return pretrained(chosen, workers=1) if trained else chosen.fresh("pre-training")


class Tapped:
    """A federation whose first replies are kept."""

    def __init__(self, federation: Sequential) -> None:
        self._federation = federation
        self.task, self.present = federation.task, federation.present
        self.first: dict[ClientId, Tensor] = {}

    def exchange(self, jobs: Mapping[ClientId, Job], terms: Terms = DEFAULT_TERMS) -> Replies:
        replies = self._federation.exchange(jobs, terms)
        for client, reply in replies.items():
            if reply.displacement is not None and client not in self.first:
                self.first[client] = reply.displacement.clone()
        return replies


def carry_out(chosen: Setting, start: State, *, whole: bool) -> Scene:
    """Forgets with FedOSD and the guards on; without ``whole``, only the first round."""
    population = chosen.population
    (target,) = population.targets
    federation = Tapped(Sequential(chosen.build(0), population.unlearning))
    request = Request(
        start.params, tuple(population.unlearning), population.targets, shapes=vectors.shapes(chosen.build(0))
    )
    models: list[Tensor] = []

    def listen(event: Event) -> None:
        models.append(event.progress.state.params)

    phases = chosen.experiment.phases()
    if not whole:
        phases = (type(phases[0])(1, phases[0].lr),)
    outcome = unlearn(
        phases,
        request,
        federation,
        training=LocalTraining(batch_size=LARGEST),
        guards=Guards(),
        evaluate_every=100,
        probes=(),
        listeners=[listen],
    )
    views = {"server": federation.first[target], "step": start.params - models[1]}
    if whole:
        views["request"] = start.params - outcome.params
    model = chosen.build(0)
    vectors.load(model, start)
    return Scene(
        model,
        population.unlearning[target].train,
        views,
        torch.stack([federation.first[client] for client in request.retained]),
        str(outcome.status),
    )
