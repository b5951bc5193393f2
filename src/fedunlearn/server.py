"""A server that trains a federation and answers one request to forget after the other."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from . import record
from .client.data import ClientData, Data
from .core import (
    ClientId,
    Federation,
    FedUnlearnError,
    History,
    Listener,
    LocalTraining,
    Outcome,
    Phase,
    Request,
    State,
    Task,
    did_you_mean,
    vectors,
)
from .core.registry import method as methods
from .core.seeds import derive
from .driver import Participation, StopRule, unlearn
from .engines import simulate
from .methods import Schedule
from .methods.fedavg import Pretraining
from .running import run_in
from .tasks import Classification, described


def pretrain(
    request: Request,
    federation: Federation,
    rounds: int,
    lr: float,
    *,
    history: Iterable[str] = (),
    **options: Any,
) -> Request:
    """Trains all clients of a request by federated averaging; returns the request for the trained model.

    The named kinds of ``history`` are recorded for methods that need them; ``options`` go to ``unlearn``.
    """
    outcome = unlearn([Pretraining(rounds, lr, tuple(sorted(set(history))))], request, federation, **options)
    if outcome.status.failed:
        raise FedUnlearnError(outcome.reason)
    recorded = History.from_tensors(outcome.state.memory)
    return replace(request.starting_from(outcome.state), history=recorded)


class Server:
    """Holds the model, its history and its earlier requests.

    ``clients`` are names with their data, which are then simulated on this machine, or a ``Federation``. The
    model starts with the parameters that the module has: load a checkpoint into it to start from one. Every
    step is a run folder in ``folder``, and a script that is run again continues where it stopped.
    """

    def __init__(
        self,
        model: nn.Module,
        clients: Mapping[ClientId, ClientData | Data] | Federation,
        *,
        folder: Path | str,
        task: Task = Classification(),
        training: LocalTraining = LocalTraining(),
        participation: Participation = Participation(),
        build: Callable[[], nn.Module] | None = None,
        seed: int = 0,
        workers: int | None = None,
        listeners: Sequence[Listener] = (),
    ) -> None:
        self._module = copy.deepcopy(model)
        self._clients = clients
        self._folder = Path(folder)
        self._task = task
        self._training = training
        self._participation = participation
        self._build = build
        self._seed = seed
        self._workers = workers
        self._listeners = tuple(listeners)
        self._steps = 0
        self.state = State(vectors.flatten(model), buffers=vectors.buffers(model))
        """The model as it is now."""
        self.history = History()
        """What training recorded, without the rows of clients that were forgotten."""
        self.anchors: tuple[torch.Tensor, ...] = ()
        """The models before each request, which post-training must not return to."""
        self.forgotten: tuple[ClientId, ...] = ()
        """The clients that were forgotten, in the order of their requests."""

    @property
    def model(self) -> nn.Module:
        """A module with the current parameters."""
        module = copy.deepcopy(self._module)
        vectors.load(module, self.state)
        return module

    @property
    def clients(self) -> tuple[ClientId, ...]:
        """The clients that have not been forgotten."""
        there = self._clients if isinstance(self._clients, Mapping) else self._clients.present()
        return tuple(client for client in sorted(there) if client not in self.forgotten)

    def train(
        self, rounds: int, lr: float, *, history: Iterable[str] = (), evaluate_every: int = 10
    ) -> Outcome:
        """Federated averaging of all clients; records the named kinds of history for later requests."""
        phase = Pretraining(rounds, lr, tuple(sorted(set(history))))
        config = {"method": "fedavg", "pretraining": {"rounds": rounds, "lr": lr, "history": phase.history}}
        outcome = self._run("train", [phase], self._request(()), config, evaluate_every=evaluate_every)
        if not outcome.status.failed:
            recorded = History.from_tensors(outcome.state.memory)
            self.history = recorded if phase.history else self.history
            self._moved(outcome)
        return outcome

    def forget(
        self,
        targets: ClientId | Sequence[ClientId],
        method: str = "fedosd",
        schedule: Schedule = Schedule(),
        *,
        stop: Sequence[StopRule] = (),
        evaluate_every: int = 1,
        **options: Any,
    ) -> Outcome:
        """Unlearns the targets and lets the others recover; the targets are gone for every later step.

        The model stays as it is where the run fails; calling it again resumes the run.
        """
        named = (targets,) if isinstance(targets, str) else tuple(targets)
        request, phases = self._request(named), methods[method](schedule, **options)
        config = self._described(named, method, schedule, options)
        outcome = self._run(
            f"forget-{'-'.join(named)}", phases, request, config, stop=stop, evaluate_every=evaluate_every
        )
        if not outcome.status.failed:
            self.anchors = (*self.anchors, request.params)
            self.forgotten = (*self.forgotten, *named)
            self.history = self.history.without(named)
            self._moved(outcome)
        return outcome

    def compare(
        self,
        targets: ClientId | Sequence[ClientId],
        rows: Mapping[str, Mapping[str, Any]] | Sequence[str],
        schedule: Schedule = Schedule(),
        *,
        evaluate_every: int = 1,
    ) -> dict[str, Outcome]:
        """Tries several methods on one request, each from the current model, and keeps the model as it is.

        ``rows`` are methods, or names of rows with the method's options, ``method`` among them. The folder
        that they share can be reported as a comparison.
        """
        named = (targets,) if isinstance(targets, str) else tuple(targets)
        wanted = rows if isinstance(rows, Mapping) else {row: {} for row in rows}
        outcomes = {}
        for row, given in wanted.items():
            options = {key: value for key, value in given.items() if key != "method"}
            name = str(given.get("method", row))
            outcomes[row] = self._run(
                f"compare-{'-'.join(named)}/seed-{self._seed}/{row}",
                methods[name](schedule, **options),
                self._request(named),
                self._described(named, name, schedule, options),
                evaluate_every=evaluate_every,
            )
        return outcomes

    def _moved(self, outcome: Outcome) -> None:
        self.state = State(outcome.state.params, buffers=outcome.state.buffers)
        self._steps += 1

    def _request(self, targets: tuple[ClientId, ...]) -> Request:
        for target in targets:
            if target in self.forgotten:
                raise FedUnlearnError(f"client {target!r} has been forgotten already: name another")
            if target not in self.clients:
                raise FedUnlearnError(f"unknown client {target!r}{did_you_mean(target, self.clients)}")
        return Request(
            self.state.params,
            self.clients,
            targets,
            self._fresh,
            self.state.buffers,
            vectors.shapes(self._module),
            self.history,
            self.anchors,
            seed=derive("method", self._seed),
        )

    def _described(
        self, targets: tuple[ClientId, ...], method: str, schedule: Schedule, options: Mapping[str, Any]
    ) -> dict[str, Any]:
        return {
            "method": method,
            "options": dict(options),
            "request": {"level": "client", "targets": list(targets)},
            "pretraining": {"lr": schedule.pretrain_lr},
            "unlearning": {"rounds": schedule.unlearn_rounds, "lr": schedule.unlearn_lr},
            "recovery": {"rounds": schedule.recover_rounds, "lr": schedule.recover_lr},
        }

    def _run(
        self,
        name: str,
        phases: Sequence[Phase],
        request: Request,
        described_run: Mapping[str, Any],
        **options: Any,
    ) -> Outcome:
        place = self._folder / f"{self._steps}-{name}"
        config = {
            "name": self._folder.name,
            "seed": self._seed,
            "model": type(self._module).__name__,
            "data": {"clients": len(request.clients)},
            "training": asdict(self._training),
            "participation": asdict(self._participation),
            **described(self._task),
            **described_run,
        }
        identity = {
            "config": config,
            "start": record.model_hash(State(request.params, buffers=request.buffers)),
            "anchors": [record.digest({"anchor": anchor}) for anchor in request.anchors],
            "history": record.digest(request.history.tensors()),
            "torch": torch.__version__,
        }
        with record.locked(place / "lock"), self._federation(request.clients) as federation:
            _claim(place, config)
            outcome = run_in(
                place,
                identity,
                copy.deepcopy(self._module),
                phases,
                request,
                federation,
                listeners=self._listeners,
                training=self._training,
                participation=self._participation,
                seed=derive(name, self._seed, self._steps),
                **options,
            )
        return replace(outcome, metrics=tuple(record.read_metrics(place)))

    def _federation(self, clients: Sequence[ClientId]) -> AbstractContextManager[Federation]:
        if not isinstance(self._clients, Mapping):
            return nullcontext(self._clients)
        data = {client: self._clients[client] for client in clients}
        return simulate(self._module, data, task=self._task, workers=self._workers)

    def _fresh(self, purpose: str) -> State:
        """A newly initialised model; without ``build``, every layer's ``reset_parameters`` makes it."""
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(derive("model", self._seed, purpose))
            module = self._build() if self._build is not None else _reset(self._module)
        return State(vectors.flatten(module), buffers=vectors.buffers(module))


def _claim(folder: Path, config: Mapping[str, Any]) -> None:
    """Takes a folder in which nothing was computed yet, or makes sure that it holds the same run."""
    if not (folder / "checkpoints").exists():
        record.write_json(folder / "experiment.json", config)
    elif record.read_json(folder / "experiment.json") != json.loads(json.dumps(config)):
        raise FedUnlearnError(
            f"{folder} holds a run with other settings: choose another folder, or the settings of that run"
        )


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
                "give Server a function build that makes one"
            )
    return module
