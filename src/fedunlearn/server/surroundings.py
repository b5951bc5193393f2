"""The surroundings of every step: the module, the clients, and how they train."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import torch
from torch import nn

from .. import runs as record
from ..client import data as holdings
from ..client.data import ClientData, Data
from ..client.parts import Parts, divided
from ..core import (
    ClientId,
    Federation,
    FedUnlearnError,
    Listener,
    LocalTraining,
    State,
    Task,
    require_count,
    require_type,
    vectors,
)
from ..core.errors import warn
from ..core.seeds import derive
from ..driver import Participation
from ..engines import Sequential, join, simulate

PUBLIC = "public"
"""The name under which public data is a member of the federation."""


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What stays the same from step to step."""

    module: nn.Module
    clients: Mapping[ClientId, ClientData] | Federation
    """Data that is simulated on this machine, or clients elsewhere."""
    task: Task
    training: LocalTraining
    participation: Participation
    public: Data | None
    build: Callable[[], nn.Module] | None
    seed: int
    workers: int | None = None
    listeners: Sequence[Listener] = ()
    witnesses: Sequence[Listener] = ()
    cipher: record.Cipher | None = None
    data: Mapping[ClientId, ClientData] = field(init=False)
    """What is held here: the data of all clients, or nothing but the public data."""

    def __post_init__(self) -> None:
        for fine, name, remedy in (
            (isinstance(self.module, nn.Module), "model", "give a torch.nn.Module"),
            (isinstance(self.task, Task), "task", "give a Task, such as Classification()"),
            (isinstance(self.training, LocalTraining), "training", "give LocalTraining(epochs=…)"),
            (isinstance(self.participation, Participation), "participation", "give Participation(share=…)"),
            (self.build is None or callable(self.build), "build", "give a function that makes a new model"),
            (_functions(self.listeners), "listeners", "give a list of functions"),
            (_functions(self.witnesses), "witnesses", "give a list of functions"),
        ):
            require_type(fine, name, self.module if name == "model" else getattr(self, name), remedy)
        require_count("seed", self.seed)
        if self.workers is not None:
            require_count("workers", self.workers, 1)
        held = dict[ClientId, ClientData]()
        if isinstance(self.clients, Mapping):
            held = holdings.as_clients(self.clients)
            if not any("test" in each.evaluations for each in held.values()):
                warn(
                    "no client has a 'test' set, so utility is not measured, and no request fails because "
                    "the retained clients lose too much",
                    "no-utility",
                )
        else:
            elsewhere = hasattr(self.clients, "exchange")
            require_type(elsewhere, "clients", self.clients, "give a dict from names to data")
        if self.public is not None:
            if PUBLIC in held:
                raise FedUnlearnError(
                    f"a client is named {PUBLIC!r}, as the public data is: give the client another name"
                )
            held[PUBLIC] = ClientData(self.public)
        object.__setattr__(self, "module", copy.deepcopy(self.module))
        object.__setattr__(self, "data", held)

    @property
    def federation(self) -> Federation | None:
        """The clients elsewhere; None where this machine simulates them."""
        return None if isinstance(self.clients, Mapping) else self.clients

    @property
    def present(self) -> Collection[ClientId]:
        """The clients that are there now."""
        return self.data.keys() if self.federation is None else self.federation.present()

    def fresh(self, purpose: str) -> State:
        """A newly initialised model."""
        return fresh_model(self.module, self.build, self.seed, purpose)

    def engine(self, clients: Sequence[ClientId], parts: Parts) -> AbstractContextManager[Federation]:
        """The federation of some clients, without the examples of their parts."""
        if self.federation is not None:
            if self.public is None:
                return nullcontext(self.federation)
            here = {PUBLIC: self.data[PUBLIC]}
            return nullcontext(join(self.federation, Sequential(self.module, here, task=self.task)))
        held = divided(self.data, parts)
        members = [*clients, *([] if self.public is None else [PUBLIC])]
        data = {client: held[client] for client in members if client in held}
        return simulate(self.module, data, task=self.task, workers=self.workers)


def fresh_model(model: nn.Module, build: Callable[[], nn.Module] | None, seed: int, purpose: str) -> State:
    """A newly initialised model; without ``build``, every layer's ``reset_parameters`` makes it."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(derive("model", seed, purpose))
        module = build() if build is not None else _reset(model)
    return State(vectors.flatten(module), buffers=vectors.buffers(module))


def _reset(model: nn.Module) -> nn.Module:
    module = copy.deepcopy(model)
    reset: set[int] = set()
    for layer in module.modules():
        if callable(initialise := getattr(layer, "reset_parameters", None)):
            initialise()
            reset |= {id(parameter) for parameter in layer.parameters(recurse=False)}
    for name, parameter in module.named_parameters():
        if parameter.requires_grad and id(parameter) not in reset:
            raise FedUnlearnError(
                f"no reset_parameters() initialises {name!r}, and this method needs new models: "
                "give Server a function build that makes one",
                code="model",
            )
    return module


def _functions(given: object) -> bool:
    return isinstance(given, Sequence) and all(map(callable, given))
