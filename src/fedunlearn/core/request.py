"""A request to forget: who, from which model, and what the server knows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from .errors import FedUnlearnError, require, require_type
from .history import History
from .messages import Buffers, ClientId, Vector
from .registry import did_you_mean
from .state import State


def names_of(
    clients: ClientId | Iterable[ClientId], what: str = "targets", *, least: int = 0
) -> tuple[ClientId, ...]:
    """One name or several as a tuple, each name once; fewer than ``least`` are refused."""
    given = (clients,) if isinstance(clients, str) else clients
    remedy = "give the name of a client, or a list of names"
    if unclear := isinstance(given, Mapping) and what == "targets":
        remedy += "; Server.forget(examples={'site-3': [0, 7]}) forgets some of a client's examples"
    require_type(isinstance(given, Iterable) and not unclear, what, given, remedy)
    names = tuple(dict.fromkeys(given))
    for name in names:
        require_type(isinstance(name, str), f"{name!r} among {what}", name, remedy)
    require(len(names) >= least, what, clients, "the name of a client, or a list of names")
    return names


@dataclass(frozen=True)
class Request:
    """Who wants to be forgotten, by whom, and from which model ω⁰."""

    params: Vector
    clients: tuple[ClientId, ...]
    targets: tuple[ClientId, ...]
    fresh: Callable[[str], State] | None = None
    """A newly initialised model for a named purpose, for methods that start anew (retraining)."""
    buffers: Buffers = field(default_factory=dict)
    """Left empty, the engine's model brings its own."""
    shapes: Mapping[str, torch.Size] = field(default_factory=dict)
    """Of the model's trainable parameters, in their order in the vector; for methods that look at layers."""
    history: History = field(default_factory=History)
    """What pre-training recorded."""
    anchors: tuple[Vector, ...] = ()
    """The models ω⁰ of earlier requests, which post-training must not return to either."""
    public: ClientId | None = None
    """A member of the federation that holds public data: neither target nor retained."""
    seed: int = 0
    """What a method derives its own random numbers from, by names."""
    participants: tuple[ClientId, ...] | None = None
    """The clients that take part in the round at hand, beside the targets; the driver fills them in."""

    def __post_init__(self) -> None:
        if isinstance(self.targets, Mapping):
            names_of(self.targets)
        for names, what in ((self.clients, "client"), (self.targets, "target")):
            if isinstance(names, str):  # type: ignore[unreachable]
                raise FedUnlearnError(f"{what}s = {names!r}: give a sequence of names, such as ({names!r},)")
            object.__setattr__(self, f"{what}s", tuple(names))
            if len(set(names)) < len(names):
                twice = min(name for name, count in Counter(names).items() if count > 1)
                raise FedUnlearnError(f"{what} {twice!r} is named twice: name each {what} once")
        known = set(self.clients)
        for target in self.targets:
            if target not in known:
                raise FedUnlearnError(
                    f"target {target!r} is not one of the {len(self.clients)} clients"
                    f"{did_you_mean(target, self.clients)}",
                    code="unknown",
                )
        if not self.retained:
            raise FedUnlearnError(
                f"all {len(self.clients)} clients are targets, so nobody is left to keep the model for: "
                "name fewer targets, or delete the model"
            )
        if not isinstance(self.params, Tensor) or self.params.ndim != 1:
            raise FedUnlearnError("params must be one vector: make it with fedunlearn.flatten(model)")
        if self.params.dtype not in (torch.float32, torch.float64):
            raise FedUnlearnError(
                f"params are {str(self.params.dtype).removeprefix('torch.')}, too coarse to unlearn with: "
                "make them with fedunlearn.flatten(model.float())",
                code="model",
            )
        expected = sum(shape.numel() for shape in self.shapes.values())
        if self.shapes and expected != len(self.params):
            raise FedUnlearnError(
                f"params has {len(self.params):,} numbers and the shapes of the model have {expected:,}: "
                "give both of the same model",
                code="other-model",
            )
        for number, anchor in enumerate(self.anchors):
            if anchor.shape != self.params.shape:
                raise FedUnlearnError(
                    f"anchor {number} has {anchor.numel():,} numbers and the model {len(self.params):,}: "
                    "give the models of earlier requests",
                    code="other-model",
                )

    def starting_from(self, state: State) -> Request:
        """The same request for another model, for instance the one that pre-training ended with."""
        return replace(self, params=state.params, buffers=state.buffers)

    @cached_property
    def retained(self) -> tuple[ClientId, ...]:
        """The clients that stay, whether or not they take part in this round."""
        leaving = set(self.targets)
        return tuple(client for client in self.clients if client not in leaving)

    @property
    def asked(self) -> tuple[ClientId, ...]:
        """The clients that take part in this round, beside the targets: the retained ones unless drawn."""
        return self.retained if self.participants is None else self.participants

    def pieces(self, vector: Vector) -> dict[str, Tensor]:
        """Views of a vector, one for each trainable parameter of the model, by name."""
        parts = vector.split([shape.numel() for shape in self.shapes.values()])
        return {
            name: part.view(shape) for (name, shape), part in zip(self.shapes.items(), parts, strict=True)
        }
