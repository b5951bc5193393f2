"""A server that trains a federation and answers one request to forget after the other."""

from __future__ import annotations

import copy
import hashlib
import json
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from . import record
from .auditing import Evidence, Model, audit
from .client import data as holdings
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
    Selective,
    State,
    Task,
    did_you_mean,
    names_of,
    require_count,
    require_federation,
    require_type,
    requirements,
    vectors,
)
from .core.hashes import module_hash
from .core.history import sorted_kinds
from .core.registry import method as methods
from .core.seeds import derive
from .driver import Guards, Participation, StopRule, log_rounds, unlearn
from .driver.rehearsal import asked
from .driver.stopping import require_rules
from .engines import Sequential, join, simulate
from .methods import ClusteredPretraining, Pretraining, Schedule, SlicedPretraining
from .methods.groups import require_groups
from .options import check_options, phases_of
from .running import concluded, finished, run_in
from .tasks import Classification, described

PUBLIC = "public"
"""The name under which public data is a member of the federation."""


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
    outcome = unlearn([Pretraining(rounds, lr, sorted_kinds(history))], request, federation, **options)
    if outcome.status.failed:
        raise FedUnlearnError(outcome.reason)
    recorded = History.from_tensors(outcome.state.memory)
    return replace(request.starting_from(outcome.state), history=recorded)


def fresh_model(model: nn.Module, build: Callable[[], nn.Module] | None, seed: int, purpose: str) -> State:
    """A newly initialised model; without ``build``, every layer's ``reset_parameters`` makes it."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(derive("model", seed, purpose))
        module = build() if build is not None else _reset(model)
    return State(vectors.flatten(module), buffers=vectors.buffers(module))


class ForgettingFailed(FedUnlearnError):
    """A request that could not be completed; the model is as it was.

    The same call tries again, unless guards stopped unlearning: then it needs other settings.
    """

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.reason)
        self.outcome = outcome


def forget(
    federation: Federation,
    model: nn.Module,
    targets: ClientId | Sequence[ClientId],
    folder: Path | str,
    *,
    method: str = "fedosd",
    schedule: Schedule = Schedule(),
    history: Path | str | History | None = None,
    training: LocalTraining = LocalTraining(),
    participation: Participation = Participation(redo=2),
    public: Data | None = None,
    build: Callable[[], nn.Module] | None = None,
    seed: int = 0,
    stop: Sequence[StopRule] = (),
    evaluate_every: int | None = None,
    gone: bool = False,
    guards: Guards | None = Guards(),
    without: Iterable[ClientId] = (),
    cipher: record.Cipher | None = None,
    listeners: Sequence[Listener] = (),
    witnesses: Sequence[Listener] = (),
    **options: Any,
) -> Outcome:
    """Removes the targets from a model that a federation has trained; the module becomes the new model.

    ``folder`` is where the run is recorded: the same call continues a run that was stopped, to the same bits,
    and repeats the outcome of one that has ended, whether the module is the model before or after it.
    A later request in the same folder starts from the model that the last one left behind; clients that have
    been forgotten take no part in it. A request that fails raises ``ForgettingFailed`` and leaves the module
    as it is.

    ``history`` is the file that ``flower.Recording`` wrote; the rows of the targets are deleted from it; or
    it is what such a file holds. ``without`` names clients that take no part, such as those that another
    folder has forgotten. ``cipher`` encrypts the models that the folder keeps.
    Listeners hear of rounds that are recorded; ``witnesses`` hear of them before that, perhaps twice.
    ``gone`` says that the targets have left already: only methods that do not ask them can run then. Their
    names are checked against the history; without one, nobody knows who took part, and they are taken as
    given. Clients measure the model at the ends of phases unless ``evaluate_every`` says otherwise. Rounds
    are logged under ``fedunlearn``; on Flower, that is Flower's log. ``Server`` answers requests in one
    process and keeps the anchors of earlier ones.

    ``guards`` limit what a single client can do to the model: what they note becomes warnings, and None
    switches them off.
    """
    require_federation(federation)
    named, left_out = names_of(targets, least=1), names_of(without, "without")
    for client in sorted({*left_out} - federation.present()):
        known = did_you_mean(client, federation.present())
        warnings.warn(f"client {client!r}, to be left out, is not present{known}", stacklevel=2)
    answered = _answered(Path(folder))
    requests = [request["targets"] for request in answered]
    place = requests.index(list(named)) if list(named) in requests else len(requests)
    before = module_hash(model)
    start = answered[place]["model_sha256"] if place < len(answered) else before
    if before != start and before not in _results(Path(folder), place):
        raise FedUnlearnError(
            f"{folder} has already forgotten {', '.join(named)}, starting from another model: give that "
            "model or the one that the request left behind, or choose another folder"
        )
    for request in answered[:place] if gone or federation.present().issuperset(named) else ():
        if request["model_sha256"] == before:
            raise FedUnlearnError(
                f"this model still knows {', '.join(request['targets'])}, which {folder} has forgotten: "
                "start from the model that the last request left behind"
            )
    server = Server(
        model,
        federation,
        folder=folder,
        task=federation.task,
        training=training,
        participation=participation,
        public=public,
        build=build,
        seed=seed,
        listeners=listeners,
        witnesses=witnesses,
        cipher=cipher,
    )
    earlier = (client for request in answered[:place] for client in request["targets"])
    server.forgotten = (*left_out, *earlier)
    server._steps, server._start = place, start
    if history is not None:
        server.history = history if isinstance(history, History) else read_history(Path(history))
    every = sys.maxsize if evaluate_every is None else evaluate_every
    outcome = server.forget(
        named, method, schedule, stop=stop, evaluate_every=every, gone=gone, guards=guards, **options
    )
    for warning in outcome.warnings[: -1 if "unmoved" in (outcome.guards or {}) else None]:
        warnings.warn(warning, stacklevel=2)
    if outcome.status.failed:
        raise ForgettingFailed(outcome)
    if outcome.unheard:
        names = ", ".join(outcome.unheard)
        warnings.warn(f"these clients never answered, so no step protects them: {names}", stacklevel=2)
    if isinstance(history, Path | str):
        remove_rows(Path(history), named)
    if place == len(answered):
        told = {"targets": list(named), "model_sha256": before}
        with record.locked(Path(folder) / "lock"):
            record.claim(Path(folder)).write({ANSWERED: record.json_bytes([*answered, told])})
    vectors.load(model, outcome.state)
    return outcome


ANSWERED = "answered.json"
"""The requests that ``forget`` has answered in a folder, in their order."""


def _answered(folder: Path) -> list[dict[str, Any]]:
    if record.verify(folder) is None and (folder / ANSWERED).exists():
        record.tell_unverified([folder])
    read = record.read_json(folder / ANSWERED) if (folder / ANSWERED).exists() else []
    if not isinstance(read, list) or not all(
        isinstance(each, dict) and each.keys() == {"targets", "model_sha256"} for each in read
    ):
        raise FedUnlearnError(f"{folder / ANSWERED} is damaged: {record.RECOVERY_HINT}")
    return read


def _results(folder: Path, place: int) -> list[str]:
    """The hashes of the models that the request at a place ended with."""
    return [
        record.read_outcome(step)["model_sha256"]
        for step in folder.glob(f"{place}-forget-*")
        if finished(step)
    ]


def read_history(path: Path) -> History:
    """What ``flower.Recording`` wrote."""
    if not path.exists():
        raise FedUnlearnError(f"there is no history at {path}: train with flower.Recording first")
    return History.from_tensors(record.read_tensors(path)[0])


def remove_rows(path: Path, clients: Sequence[ClientId]) -> None:
    """Deletes what the file holds about clients; another request may have changed it meanwhile."""
    with record.locked(Path(f"{path}.lock"), wait=True):
        record.write_tensors(path, read_history(path).without(clients).tensors())


class Server:
    """Holds the model, its history and its earlier requests.

    ``clients`` are names with their data, which are then simulated on this machine, or a ``Federation``. The
    model starts with the parameters that the module has: load a checkpoint into it to start from one. Every
    step is a run folder in ``folder``. A script that is run again continues where it stopped; a step that was
    begun keeps the clients that it had.
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
        public: Data | None = None,
        build: Callable[[], nn.Module] | None = None,
        seed: int = 0,
        workers: int | None = None,
        listeners: Sequence[Listener] = (),
        witnesses: Sequence[Listener] = (),
        cipher: record.Cipher | None = None,
    ) -> None:
        for fine, name, given, remedy in (
            (isinstance(model, nn.Module), "model", model, "give a torch.nn.Module"),
            (isinstance(folder, Path | str), "folder", folder, "give the path of a folder"),
            (isinstance(task, Task), "task", task, "give a Task, such as Classification()"),
            (isinstance(training, LocalTraining), "training", training, "give LocalTraining(epochs=…)"),
            (
                isinstance(participation, Participation),
                "participation",
                participation,
                "give Participation(share=…)",
            ),
            (build is None or callable(build), "build", build, "give a function that makes a new model"),
            (_functions(listeners), "listeners", listeners, "give a list of functions"),
            (_functions(witnesses), "witnesses", witnesses, "give a list of functions"),
        ):
            require_type(fine, name, given, remedy)
        require_count("seed", seed)
        if workers is not None:
            require_count("workers", workers, 1)
        self._module = copy.deepcopy(model)
        self._federation: Federation | None = None
        self._data: dict[ClientId, ClientData] = {}
        if isinstance(clients, Mapping):
            self._data = holdings.as_clients(clients)
            if not any("test" in held.evaluations for held in self._data.values()):
                warnings.warn("no client has a 'test' set, so utility is not measured", stacklevel=2)
        else:
            fine = hasattr(clients, "exchange")
            require_type(fine, "clients", clients, "give a dict from names to data")
            self._federation = clients
        self._public = PUBLIC if public is not None else None
        if public is not None:
            if PUBLIC in self._data:
                raise FedUnlearnError(
                    f"a client is named {PUBLIC!r}, as the public data is: give the client another name"
                )
            self._data[PUBLIC] = ClientData(public)
        self._folder = Path(folder)
        self._task = task
        self._training = training
        self._participation = participation
        self._build = build
        self._seed = seed
        self._workers = workers
        self._listeners = tuple(listeners)
        self._witnesses = tuple(witnesses)
        self._cipher = cipher
        self._steps = 0
        self._lr: float | None = None
        self._gone: tuple[ClientId, ...] = ()
        self._trained: frozenset[ClientId] = frozenset()
        """The clients of all trainings."""
        self._start: str | None = None
        """The hash of the model that the next step began with, where it is not that of the current one."""
        self.state = State(vectors.flatten(model), buffers=vectors.buffers(model))
        """The model as it is now."""
        self.history = History()
        """What training recorded, without the rows of clients that were forgotten."""
        self.anchors: tuple[Tensor, ...] = ()
        """The models before each request, which post-training must not return to."""
        self.forgotten: tuple[ClientId, ...] = ()
        """The clients that were forgotten, in the order of their requests."""
        self._last: tuple[tuple[ClientId, ...], State] | None = None
        """The targets of the last request, and the model before it."""

    @property
    def model(self) -> nn.Module:
        """A module with the current parameters."""
        module = copy.deepcopy(self._module)
        vectors.load(module, self.state)
        return module

    @property
    def _took_part(self) -> frozenset[ClientId]:
        """The clients that the model was trained with; empty where nobody knows."""
        return self._trained.union(*self.history.rows.values())

    @property
    def clients(self) -> tuple[ClientId, ...]:
        """The clients that are present and have not been forgotten."""
        there = self._data if self._federation is None else self._federation.present()
        known = {*there, *self._gone}
        return tuple(c for c in sorted(known) if c not in self.forgotten and c != self._public)

    def train(
        self,
        rounds: int,
        lr: float,
        *,
        history: Iterable[str] = (),
        clusters: int = 1,
        slices: int = 1,
        evaluate_every: int = 10,
    ) -> Outcome:
        """Federated averaging of all clients; a training that diverges raises an error.

        It records the named kinds of ``history`` for later requests. More than one of ``clusters`` trains a
        model in each, for ``knot``; more than one of ``slices`` lets their clients join one slice after the
        other, for ``sisa``.
        """
        kinds = sorted_kinds(history)
        require_groups(len(self.clients), clusters, slices, kinds)
        phase = (
            SlicedPretraining(rounds, lr, shards=clusters, slices=slices)
            if slices > 1
            else ClusteredPretraining(rounds, lr, clusters=clusters)
            if clusters > 1
            else Pretraining(rounds, lr, kinds)
        )
        if lost := sorted(self.history.rows.keys() - {*kinds, "share"}):
            warnings.warn(
                f"this training records no {lost[0]}, so what was recorded before is dropped", stacklevel=2
            )
        plan = {"rounds": rounds, "lr": lr, "history": list(kinds), "clusters": clusters}
        plan |= {"slices": slices} if slices > 1 else {}
        config = {"method": "fedavg", "pretraining": plan}
        outcome = self._run("train", [phase], (), config, "train", evaluate_every=evaluate_every)
        if outcome.status.failed:
            raise FedUnlearnError(outcome.reason)
        self.history = History.from_tensors(outcome.state.memory)
        self._lr = lr
        self._move_to(outcome)
        return outcome

    def forget(
        self,
        targets: ClientId | Sequence[ClientId],
        method: str = "fedosd",
        schedule: Schedule = Schedule(),
        *,
        stop: Sequence[StopRule] = (),
        evaluate_every: int = 1,
        gone: bool = False,
        guards: Guards | None = Guards(),
        **options: Any,
    ) -> Outcome:
        """Unlearns the targets and lets the others recover; the targets are gone for every later step.

        ``gone`` says that the targets have left already: only methods that do not ask them can run then.
        Their names are checked against the clients of ``train`` and of the history; without either, they are
        taken as given. ``guards`` limit what a single client can do to the model, and note it in
        ``Outcome.warnings``; None switches them off. Targets that do not look forgotten are a Python warning,
        too.

        Methods that train a new model take the learning rate of ``train`` unless the schedule states one.
        Where the run fails, the model stays as it is; the same call resumes the run, and another method or
        schedule starts a new one.
        """
        named = names_of(targets, least=1)
        _require_schedule(schedule)
        require_type(guards is None or isinstance(guards, Guards), "guards", guards, "give Guards() or None")
        before = self.state
        known = self._took_part
        self._gone = tuple(target for target in named if not known or target in known) if gone else ()
        try:
            check_options(f"method {method!r}", methods[method], options)
            if {*named} <= {*self.clients}:  # else a step that was begun may still be continued
                phases = self._phases(named, method, schedule, options)
                request = self._request(self.clients, named)
                if gone and any(jobs.keys() & {*named} for jobs in asked(phases, request)):
                    raise FedUnlearnError(
                        f"{method} asks the targets to help, and they are gone: use a method that does not, "
                        "such as retrain, not or federaser"
                    )
            outcome = self._try(
                named, method, method, schedule, options, "forget", stop, evaluate_every, guards
            )
        finally:
            self._gone = ()
        if not outcome.status.failed:
            self.anchors = (*self.anchors, before.params)
            self.forgotten = (*self.forgotten, *named)
            self._last = named, before
            self.history = self.history.without(named)
            self._erase_rows(named)
            self._move_to(outcome)
        if "unmoved" in (outcome.guards or {}):
            warnings.warn(outcome.warnings[-1], stacklevel=2)
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
        named = names_of(targets, least=1)
        _require_schedule(schedule)
        fine = isinstance(rows, Mapping | Sequence) and not isinstance(rows, str)
        require_type(fine, "rows", rows, "give several methods, such as ['fedosd', 'retrain']")
        given = rows if isinstance(rows, Mapping) else {row: {} for row in rows}
        for row, settings in given.items():
            remedy = "give the options of the row, such as {'method': 'fedosd'}"
            require_type(isinstance(settings, Mapping), f"row {row!r}", settings, remedy)
        wanted = {row: (str(settings.get("method", row)), dict(settings)) for row, settings in given.items()}
        for method, options in wanted.values():
            options.pop("method", None)
            self._phases(named, method, schedule, options)  # refuses before the first row runs
        folder = f"compare-{_slug('-'.join(named))}/seed-{self._seed}"
        return {
            row: self._try(named, method, f"{folder}/{_slug(row)}", schedule, options, "", (), evaluate_every)
            for row, (method, options) in wanted.items()
        }

    def audit(
        self, retrained: Model | None = None, *, again: Model | None = None, references: Sequence[Model] = ()
    ) -> Evidence:
        """Asks the clients whether the last request was answered as well as by retraining.

        ``compare`` makes the retrained model before the request, with method ``retrain`` and ``rounds`` as
        long as training; with ``number=2`` it makes a second one, ``again``. The targets of the request must
        still be there. See ``fedunlearn.audit``.
        """
        if self._last is None:
            raise FedUnlearnError(
                "nothing has been forgotten yet, so there is nothing to audit: forget first"
            )
        targets, before = self._last
        asked = (*self.clients, *targets)
        with self._engine(asked) as federation:
            return audit(
                federation,
                self.state,
                targets=targets,
                retrained=retrained,
                original=before,
                again=again,
                references=references,
                clients=asked,
            )

    def _phases(
        self,
        targets: tuple[ClientId, ...],
        method: str,
        schedule: Schedule,
        options: Mapping[str, Any],
    ) -> tuple[Phase, ...]:
        """The phases of a method, refused where something that it needs is missing."""
        phases = phases_of(method, schedule, options)
        try:
            requirements.check(phases, self._request(self.clients, targets), self._task)
        except FedUnlearnError as error:
            raise FedUnlearnError(f"{method}: {error}") from None
        return phases

    def _try(
        self,
        targets: tuple[ClientId, ...],
        method: str,
        place: str,
        schedule: Schedule,
        options: Mapping[str, Any],
        kind: str,
        stop: Sequence[StopRule],
        evaluate_every: int,
        guards: Guards | None = None,
    ) -> Outcome:
        """A request with a method, in the folder of that name."""
        require_rules(stop)
        if self._lr is not None and schedule.pretrain_lr == Schedule.pretrain_lr:
            schedule = replace(schedule, pretrain_lr=self._lr)
        phases = phases_of(method, schedule, options)
        config = {
            "method": method,
            "options": dict(options),
            "request": {"level": "client", "targets": list(targets)},
            "pretraining": {"lr": schedule.pretrain_lr},
            "unlearning": {"rounds": schedule.unlearn_rounds, "lr": schedule.unlearn_lr},
            "recovery": {"rounds": schedule.recover_rounds, "lr": schedule.recover_lr},
            "stop": [repr(rule) for rule in stop],
            "evaluate_every": None if evaluate_every == sys.maxsize else evaluate_every,
            **({} if guards is None else {"guards": asdict(guards)}),
        }
        name = f"{kind}-{_slug('-'.join(targets))}-{_slug(place)}" if kind else place
        return self._run(
            name,
            phases,
            targets,
            config,
            "request",
            stop=stop,
            evaluate_every=evaluate_every,
            guards=guards,
        )

    def _move_to(self, outcome: Outcome) -> None:
        self.state = State(outcome.state.params, buffers=outcome.state.buffers)
        self._steps += 1

    def _request(self, clients: tuple[ClientId, ...], targets: tuple[ClientId, ...]) -> Request:
        for target in targets:
            if target in self.forgotten:
                raise FedUnlearnError(f"client {target!r} has been forgotten already: name another")
            known = {*clients, *self._took_part}
            if target not in known and (self._federation is None or self._took_part):
                raise FedUnlearnError(f"unknown client {target!r}{did_you_mean(target, known)}")
            if target not in clients:
                # No suggestion: a client that is merely absent must not become a request about another one.
                there = ", ".join(clients[:20]) or "nobody"
                back = "give its data" if self._federation is None else "start its SuperNode"
                raise FedUnlearnError(
                    f"{target!r} is not present (present: {there}): {back}, or, if it has left for good, "
                    "say gone=True and use a method that does not ask it"
                )
        return Request(
            self.state.params,
            clients,
            targets,
            self._fresh,
            self.state.buffers,
            vectors.shapes(self._module),
            self.history,
            self.anchors,
            self._public,
            seed=derive("method", self._seed, self._steps),
        )

    def _run(
        self,
        name: str,
        phases: Sequence[Phase],
        targets: tuple[ClientId, ...],
        plan: Mapping[str, Any],
        purpose: str,
        **options: Any,
    ) -> Outcome:
        config = json.loads(json.dumps(self._config(plan, targets)))
        place, begun = _claim(self._folder / f"{self._steps}-{name}", config)
        if purpose == "train":
            self._trained |= {*begun["data"]["names"]}
        request = self._request(tuple(begun["data"]["names"]), targets)
        identity = {
            "config": begun,
            "anchors": [record.digest({"anchor": anchor}) for anchor in request.anchors],
            **record.decisive(),
        }
        with record.locked(place / "lock"):
            if finished(place):
                return replace(concluded(place, identity, self._cipher), targets=targets)
            files = record.claim(place, record.fingerprint(begun), cipher=self._cipher)
            files.write({"experiment.json": record.json_bytes(begun)})
            with self._engine(request.clients) as federation:
                outcome = run_in(
                    files,
                    identity,
                    copy.deepcopy(self._module),
                    phases,
                    request,
                    federation,
                    listeners=(log_rounds(), *self._listeners),
                    witnesses=self._witnesses,
                    training=self._training,
                    participation=self._participation,
                    seed=derive(purpose, self._seed, self._steps, *targets),
                    **options,
                )
        return replace(outcome, metrics=tuple(record.read_metrics(place)))

    def _config(self, plan: Mapping[str, Any], targets: tuple[ClientId, ...]) -> dict[str, Any]:
        """The settings of a step; ``data`` and ``start`` are compared with those that it began with."""
        held = {c: self._data[c] for c in (*self.clients, PUBLIC) if c in self._data}
        data = {
            "clients": len(self.clients),
            "names": list(self.clients),
            "sha256": {c: holdings.digest(each.train) for c, each in held.items()},
            "evaluations": {
                c: {name: holdings.digest(examples) for name, examples in each.evaluations.items()}
                for c, each in held.items()
            },
        }
        own_code = isinstance(self._federation, Selective)
        frozen = {name: p for name, p in self._module.named_parameters() if not p.requires_grad}
        # Of the history, what is left after the request: its rows of the targets are deleted then.
        history = self.history.without(targets).tensors()
        return {
            "kind": "server",
            "name": self._folder.name,
            "seed": self._seed,
            "model": type(self._module).__name__,
            "architecture": vectors.architecture(self._module),
            "start": self._start or record.model_hash(self.state),
            "data": data,
            # Clients with their own code choose their epochs and batches themselves.
            "training": {"decay": self._training.decay} if own_code else asdict(self._training),
            "participation": asdict(self._participation),
            "task": described(self._task),
            **({"frozen": record.digest(frozen)} if frozen else {}),
            **({"history": record.digest(history)} if history else {}),
            **({"clients": "with their own code"} if own_code else {}),
            **plan,
        }

    def _engine(self, clients: Sequence[ClientId]) -> AbstractContextManager[Federation]:
        if self._federation is not None:
            if self._public is None:
                return nullcontext(self._federation)
            here = {PUBLIC: self._data[PUBLIC]}
            return nullcontext(join(self._federation, Sequential(self._module, here, task=self._task)))
        members = [*clients, *([PUBLIC] if self._public else [])]
        data = {client: self._data[client] for client in members if client in self._data}
        return simulate(self._module, data, task=self._task, workers=self._workers)

    def _fresh(self, purpose: str) -> State:
        return fresh_model(self._module, self._build, self._seed, purpose)

    def _erase_rows(self, clients: Sequence[ClientId]) -> None:
        """Removes what earlier steps recorded about forgotten clients from their checkpoints."""
        for step in sorted(self._folder.glob("*-train*")):
            changed = {}
            for path in sorted((step / "checkpoints").glob("*.safetensors")):
                state, metadata = record.read_state(path, self._cipher)
                left = History.from_tensors(state.memory).without(clients).tensors()
                if left.keys() != state.memory.keys():
                    changed[path.relative_to(step).as_posix()] = replace(state, memory=left), metadata
            if changed:
                with record.locked(step / "lock"):
                    files = record.claim(step, cipher=self._cipher)
                    files.write({name: files.state(left, **more) for name, (left, more) in changed.items()})


def _claim(base: Path, config: Mapping[str, Any]) -> tuple[Path, dict[str, Any]]:
    """The folder of a step, and the settings that the step began with.

    A step keeps the clients that it began with, whoever is present now. After a failure, other settings get
    a folder of their own.
    """
    for number in range(1, 1000):
        place = base if number == 1 else base.with_name(f"{base.name}-{number}")
        manifest = record.verify(place, resuming=not finished(place))
        if not any((place / "checkpoints").glob("*.safetensors")):
            return place, dict(config)
        if manifest is None or not manifest.verified:
            record.tell_unverified([place])
        begun = record.read_json(place / "experiment.json")
        if _settings(begun) == _settings(config):
            if begun["start"] != config["start"]:
                raise FedUnlearnError(
                    f"{place} was begun with other starting weights: seed the model's initialisation with "
                    "torch.manual_seed, or choose another folder"
                )
            if client := _changed(begun["data"], config["data"]):
                raise FedUnlearnError(
                    f"the data of client {client!r} has changed since {place} was begun: "
                    "choose another folder"
                )
            return place, begun
        if finished(place) or not (place / "outcome.json").exists():
            raise FedUnlearnError(
                f"{place} holds a run with other settings: choose another folder, or the settings of that run"
            )
    raise FedUnlearnError(f"{base} has failed too often: choose another folder")


def _settings(config: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in ("data", "start")}


def _changed(begun: Mapping[str, Any], now: Mapping[str, Any]) -> ClientId | None:
    """The first client that is still there and whose examples or evaluation sets are others than before."""
    for kind in ("sha256", "evaluations"):
        before = begun.get(kind, {})
        for client in sorted(before.keys() & now[kind].keys()):
            if before[client] != now[kind][client]:
                return str(client)
    return None


def _slug(name: str) -> str:
    """A name as a part of a folder's: short, and of letters that every system takes."""
    plain = re.sub(r"[^A-Za-z0-9.=_-]", "_", name).lstrip(".")
    if plain == name and len(plain) <= 60:
        return plain
    return f"{plain[:40]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


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


def _require_schedule(given: object) -> None:
    require_type(isinstance(given, Schedule), "schedule", given, "give Schedule(…)")


def _functions(given: object) -> bool:
    return isinstance(given, Sequence) and all(map(callable, given))
