"""Records the history of a training that Flower's own FedAvg conducts."""

from __future__ import annotations

import copy
import time
from collections.abc import Collection, Iterable
from pathlib import Path

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Strategy
from torch import nn

from ...core import ClientId, FedUnlearnError, History, Replies, Reply, State, vectors
from ...core.history import HeardRound, require_kinds
from ...runs import write_tensors
from .dialects import all_metrics, counted, displacement, only_arrays
from .nodes import Nodes
from .wire import Unreadable, tensor

INTRODUCTION = 60.0
"""Seconds in which nodes have to say who they are."""


class Recording(Strategy):
    """A strategy that averages as the given FedAvg does, and writes the history to a file in every round.

    Methods such as FedEraser need the history later: ``forget(…, history=path)``.
    """

    def __init__(
        self, strategy: FedAvg, model: nn.Module, path: Path | str, kinds: Collection[str] = ("norms",)
    ) -> None:
        if not isinstance(strategy, FedAvg) or type(strategy).aggregate_train is not FedAvg.aggregate_train:
            raise FedUnlearnError(
                f"{type(strategy).__name__} does not take the mean of its clients, and history is recorded "
                "for federated averaging alone: use FedAvg",
                code="history",
            )
        require_kinds(kinds)
        if Path(path).exists():
            raise FedUnlearnError(
                f"{path} holds the history of another training: choose another file, or remove it",
                code="occupied",
            )
        self._strategy = strategy
        self._module = copy.deepcopy(model)
        self._path = Path(path)
        self._kinds = tuple(kinds)
        self._nodes: Nodes | None = None
        self._names: dict[int, ClientId] = {}
        self._before = State(vectors.flatten(model))
        self.history = History()
        """What has been recorded so far."""

    def summary(self) -> None:
        self._strategy.summary()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        messages = list(self._strategy.configure_train(server_round, arrays, config, grid))
        self._nodes = self._nodes or Nodes(grid, seconds=INTRODUCTION, ask_all=False)
        self._name({message.metadata.dst_node_id for message in messages}, self._nodes)
        rate = config.get("lr", config.get("learning-rate"))
        if "residuals" in self._kinds and not isinstance(rate, int | float):
            raise FedUnlearnError(
                "the history 'residuals' needs the learning rate of each round: give start() a train_config "
                "with 'lr'",
                code="history",
            )
        self._module.load_state_dict({name: tensor(array) for name, array in arrays.items()})
        lr = float(rate) if isinstance(rate, int | float) else 0.0
        self._before = State(vectors.flatten(self._module), server_round - 1, lr=lr)
        return messages

    def _name(self, sampled: set[int], nodes: Nodes) -> None:
        """Finds out who the sampled nodes are; a history without one of them would be wrong."""
        until = time.monotonic() + INTRODUCTION
        while True:
            self._names |= {node.id: name for name, node in nodes.online().items()}
            if not (unknown := sampled - self._names.keys()):
                return
            if time.monotonic() >= until:
                raise FedUnlearnError(
                    f"{len(unknown)} of the sampled nodes have no name, so their part cannot be recorded: "
                    "register the SuperNodes with --name, or call flower.introduce in the ClientApp",
                    code="client",
                )
            time.sleep(0.5)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        replies = list(replies)
        heard = {}
        for message in replies:
            name = self._names.get(message.metadata.src_node_id)
            if name is not None and not message.has_error():
                heard[name] = self._reply(name, message)
        if heard:
            names = tuple(sorted({*self._names.values()}))
            round = HeardRound(self._before, Replies(heard), names, vectors.shapes(self._module))
            self.history = self.history.hear(self._kinds, round)
            write_tensors(self._path, self.history.tensors())
        return self._strategy.aggregate_train(server_round, replies)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        return self._strategy.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        return self._strategy.aggregate_evaluate(server_round, replies)

    def _reply(self, name: ClientId, message: Message) -> Reply:
        try:
            moved = displacement(self._module, self._before.params, only_arrays(message.content))
            if not moved.isfinite().all():
                raise Unreadable("weights that are not finite")
            return Reply(moved, counted(all_metrics(message.content), self._strategy.weighted_by_key))
        except Unreadable as problem:
            raise FedUnlearnError(
                f"{name} {problem.failure.detail}, so its part in the history is unknown", code="client"
            ) from None
