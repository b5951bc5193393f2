"""A server that trains a federation and answers one request to forget after the other."""

from __future__ import annotations

import copy
import hashlib
import json
import logging
import re
import shutil
import sys
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from shlex import quote
from typing import Any

import torch
from torch import Tensor, nn

from . import runs as record
from .auditing import Model, as_state, audit
from .client import data as holdings
from .client.data import ClientData, Data
from .client.parts import Parts, divided, parts_of, remembered
from .client.trial import constant_loss, require_lone
from .config.options import check_options, phases_of
from .core import (
    ClientId,
    Federation,
    FedUnlearnError,
    History,
    LabelTask,
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
    require,
    require_count,
    require_federation,
    require_type,
    requirements,
    vectors,
)
from .core.errors import warn
from .core.hashes import module_hash
from .core.history import KINDS, sorted_kinds
from .core.registry import method as methods
from .core.seeds import derive
from .driver import Guards, Participation, StopRule, log_rounds, unlearn
from .driver.guards import FLOOR
from .driver.stopping import require_rules
from .engines import Sequential, join, simulate
from .evidence import Evidence
from .methods import (
    ClusteredPretraining,
    Pretraining,
    Schedule,
    SlicedPretraining,
    recommend,
    recommended_options,
)
from .methods.groups import require_groups
from .runs.running import concluded, finished, run_in
from .tasks import Classification, described

LOG = logging.getLogger("fedunlearn")
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
        raise FedUnlearnError(outcome.reason, code=outcome.status)
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

    The same call tries again. After ``guard_stop`` and ``harmed`` it fails again: change the settings.
    """

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.reason, code=outcome.status)
        self.outcome = outcome


def forget(
    federation: Federation,
    model: nn.Module,
    targets: ClientId | Sequence[ClientId],
    folder: Path | str | None = None,
    *,
    method: str | None = None,
    schedule: Schedule | None = None,
    poisoned: bool = False,
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
    floor: float | None = FLOOR,
    without: Iterable[ClientId] = (),
    cipher: record.Cipher | None = None,
    listeners: Sequence[Listener] = (),
    witnesses: Sequence[Listener] = (),
    **options: Any,
) -> Outcome:
    """Removes the targets from a model that a federation has trained; the module becomes the new model.

    ``folder`` is where the run is recorded: the same call continues a run that was stopped, to the same bits,
    and repeats the outcome of one that has ended, whether the module is the model before or after it.
    Other settings start a new run from the model before it. Without ``folder``, the run is not kept.
    A later request in the same folder starts from the model that the last one left behind; clients that have
    been forgotten take no part in it. A request that fails raises ``ForgettingFailed`` and leaves the module
    as it is.

    Without a ``method``, ``recommend`` chooses one, by ``poisoned`` and ``gone``. The server of a federation
    does not know how long its clients trained, nor at which rate: state ``rounds`` and
    ``schedule=Schedule(pretrain_lr=…)`` for methods that train a new model.

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
    switches them off. ``floor`` is how much R-Acc may fall, as for ``Server.forget``.
    """
    require_federation(federation)
    if "examples" in options:
        raise FedUnlearnError(THEIR_OWN)
    named, left_out = names_of(targets, least=1), names_of(without, "without")
    for client in sorted({*left_out} - federation.present()):
        known = did_you_mean(client, federation.present())
        warn(f"client {client!r}, to be left out, is not present{known}", "absent")
    answered = [] if folder is None else _answered(Path(folder))
    requests = [request["targets"] for request in answered]
    place = requests.index(list(named)) if list(named) in requests else len(requests)
    before = module_hash(model)
    start = answered[place]["model_sha256"] if place < len(answered) else before
    if folder is not None and before != start and before not in _results(Path(folder), place):
        raise FedUnlearnError(
            f"{folder} has already forgotten {', '.join(named)}, starting from another model: give that "
            "model or the one that the request left behind, or choose another folder",
            code="forgotten",
        )
    for request in answered[:place] if gone or federation.present().issuperset(named) else ():
        if request["model_sha256"] == before:
            raise FedUnlearnError(
                f"this model still knows {', '.join(request['targets'])}, which {folder} has forgotten: "
                "start from the model that the last request left behind",
                code="forgotten",
            )
    server = Server(
        model,
        federation,
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
    server._place, server._steps, server._start = None if folder is None else Path(folder), place, start
    if history is not None:
        server.history = history if isinstance(history, History) else read_history(Path(history))
    every = sys.maxsize if evaluate_every is None else evaluate_every
    way = server._way(named, method, schedule, options, poisoned, gone, guards, floor, stop, every)
    outcome, _ = server._answer(named, way, gone, known=place < len(answered), answered=before != start)
    if outcome.status.failed:
        raise ForgettingFailed(outcome)
    _warn(outcome)
    if folder is not None and place == len(answered):
        told = {"targets": list(named), "model_sha256": before}
        with record.locked(Path(folder) / "lock"):
            record.claim(Path(folder)).write({ANSWERED: record.json_bytes([*answered, told])})
    if isinstance(history, Path | str):
        remove_rows(Path(history), named)
    vectors.load(model, outcome.state)
    return outcome


JOURNAL, ORIGIN = "server.json", "omega0.safetensors"
"""The completed steps of a ``Server``, and the model before the first one."""
OLDER: Mapping[str, Any] = {"shuffle": False}
"""Settings of training that earlier versions did not record, and what their steps did."""
GROWING = ("training", "participation", "guards")
"""Settings that versions add to."""
ADDED = ("floor",)
"""Settings that version 0.2 did not have."""
THEIR_OWN = (
    "examples are named where Server holds the data, and here the clients do: let the node serve them as a "
    "part of its own, flower.Site(…, parts={'#forget': …}), and forget 'site-3#forget'"
)
ASKS_THE_GONE = (
    "{} asks the targets to help, and they are gone: use a method that does not, such as fast-retrain, "
    "retrain or federaser"
)
NEVER_TRAINED = "client {!r} never took part in training here, so there is nothing to forget"
NOT_SINCE = (
    "client {!r} has joined anew, but has not trained since, so there is nothing to forget: call "
    "server.train(…) first"
)
LACKING = {
    **requirements.REMEDIES,
    **{kind: f'train with server.train(…, history=["{kind}"]), on Flower flower.Recording' for kind in KINDS},
    "cluster": "train with server.train(…, clusters=2)",
    "slice": "train with server.train(…, slices=2)",
    "public": "give it by public=…",
}
"""What helps where a method needs something that is not there."""
ANSWERED_OTHERWISE = (
    "{} has answered this request with other settings ({}), and the model given is its result: repeat the "
    "request with those settings, or give the model from before it"
)
OTHER_START = (
    "{} was begun with other starting weights: seed the model's initialisation with torch.manual_seed, or "
    "choose another folder"
)
ANSWERED = "answered.json"
"""The requests that ``forget`` has answered in a folder, in their order."""


def _answered(folder: Path) -> list[dict[str, Any]]:
    if (folder / JOURNAL).exists():
        raise FedUnlearnError(
            f"{folder} is the memory of a Server: use that, or choose another folder", code="occupied"
        )
    if record.verify(folder) is None and (folder / ANSWERED).exists():
        record.tell_unverified([folder])
    read = record.read_json(folder / ANSWERED) if (folder / ANSWERED).exists() else []
    if not isinstance(read, list) or not all(
        isinstance(each, dict) and each.keys() == {"targets", "model_sha256"} for each in read
    ):
        raise FedUnlearnError(f"{folder / ANSWERED} is damaged: {record.RECOVERY_HINT}", code="damaged")
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
        raise FedUnlearnError(
            f"there is no history at {path}: train with flower.Recording first", code="missing"
        )
    return History.from_tensors(record.read_tensors(path)[0])


def remove_rows(path: Path, clients: Sequence[ClientId]) -> None:
    """Deletes what the file holds about clients; another request may have changed it meanwhile."""
    with record.locked(Path(f"{path}.lock"), wait=True):
        record.write_tensors(path, read_history(path).without(clients).tensors())


@dataclass(frozen=True)
class _Way:
    """How a request is to be answered."""

    method: str
    schedule: Schedule
    options: Mapping[str, Any]
    guards: Guards | None
    floor: float | None
    stop: Sequence[StopRule]
    evaluate_every: int
    unknown: str
    """What to warn of before a new run."""


class Server:
    """Holds the model, its history and its earlier requests.

    ``clients`` are names with their data, which are then simulated on this machine, or a ``Federation``. The
    model starts with the parameters that the module has: load a checkpoint into it to start from one.

    ``folder`` is the memory of the server: every step is a run folder in it, and a new ``Server`` continues
    from the last step. Clients that were forgotten never take part again, unless they ``rejoin``. A script
    that repeats its calls from the first one on gets the recorded outcomes; any other call is a new step
    after the last one. A step that was stopped continues with the clients that it began with. Without
    ``folder``, the memory ends with the object.
    """

    def __init__(
        self,
        model: nn.Module,
        clients: Mapping[ClientId, ClientData | Data] | Federation,
        *,
        folder: Path | str | None = None,
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
            (isinstance(folder, Path | str | None), "folder", folder, "give the path of a folder"),
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
                warn(
                    "no client has a 'test' set, so utility is not measured, and no request fails because "
                    "the retained clients lose too much",
                    "no-utility",
                )
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
        self._place, self._kept = None if folder is None else Path(folder), folder is not None
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
        self._rounds = 0
        """Of all trainings."""
        self._gone: tuple[ClientId, ...] = ()
        self._named: Parts = {}
        """The examples of the request at hand."""
        self._trained: frozenset[ClientId] = frozenset()
        """The clients that the model knows from steps of this server."""
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
        self._examples: Parts = {}
        """The examples that were forgotten, by virtual client."""
        self._last: tuple[tuple[ClientId, ...], dict[str, Any], Path, str] | None = None
        """The targets of the last request, what was known before it, its folder and its method."""
        self._given = self._memory()
        self._journal = [] if self._place is None else _journal(self._place)
        self._recall()
        self._end = self._memory() if self._journal else None
        """What is known after the last recorded step, while a script may still repeat its calls."""
        self._left_out: set[ClientId] = {*self.forgotten}
        """Forgotten clients that this process was not told to forget."""

    @property
    def _folder(self) -> Path:
        """Where steps are recorded; without a folder, a temporary one, made by the first step."""
        if self._place is None:
            self._place = Path(tempfile.mkdtemp(prefix="fedunlearn-"))
            weakref.finalize(self, shutil.rmtree, self._place, ignore_errors=True)
        return self._place

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
    def _rejoined(self) -> set[ClientId]:
        """The clients that have joined anew."""
        entries = (entry for entry in self._journal[: self._steps] if entry["kind"] == "rejoin")
        return {client for entry in entries for client in entry["targets"]}

    @property
    def clients(self) -> tuple[ClientId, ...]:
        """The clients that are present and have not been forgotten."""
        there = self._data if self._federation is None else self._federation.present()
        known = {*there, *self._gone, *self._named}
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
        require_count("rounds", rounds, 1)
        kinds = sorted_kinds(history)
        phase = (
            SlicedPretraining(rounds, lr, shards=clusters, slices=slices)
            if slices > 1
            else ClusteredPretraining(rounds, lr, clusters=clusters)
            if clusters > 1
            else Pretraining(rounds, lr, kinds)
        )
        plan = {"rounds": rounds, "lr": lr, "history": list(kinds), "clusters": clusters}
        plan |= {"slices": slices} if slices > 1 else {}
        config = {"method": "fedavg", "pretraining": plan}
        with self._undone():
            place = self._recorded("train", (), lambda: config)
            if place is None:
                require_groups(len(self.clients), clusters, slices, kinds)
            if lost := sorted(self.history.rows.keys() - {*kinds, "share"}):
                warn(f"this training records no {lost[0]}, so what was recorded before is dropped", "history")
            outcome, place = self._run(
                "train", [phase], (), config, "train", repeats=place, evaluate_every=evaluate_every
            )
            if outcome.status.failed:
                raise FedUnlearnError(outcome.reason, code=outcome.status)
        _warn(outcome)
        accuracy = [float(row["r_acc"]) for row in outcome.metrics if "r_acc" in row]
        if accuracy and not self._rounds and accuracy[-1] <= accuracy[0]:
            warn(
                f"training has not made the model better (accuracy {accuracy[-1]:.3f}, before "
                f"{accuracy[0]:.3f}): lower the rate (now {lr:g}), scale the inputs, or check the labels",
                "not-better",
            )
        else:
            self._warn_of_constant(outcome)
        self._complete("train", (), place, outcome.state)
        return outcome

    def forget(
        self,
        targets: ClientId | Sequence[ClientId] | None = None,
        method: str | None = None,
        schedule: Schedule | None = None,
        *,
        examples: Mapping[ClientId, Any] | None = None,
        poisoned: bool = False,
        stop: Sequence[StopRule] = (),
        evaluate_every: int = 1,
        gone: bool = False,
        guards: Guards | None = Guards(),
        floor: float | None = FLOOR,
        **options: Any,
    ) -> Outcome:
        """Unlearns the targets and lets the others recover; the targets are gone for every later step.

        Instead of targets, ``examples`` names some examples of clients by their positions in the training
        data as it was given first: ``{"site-3": [0, 7]}``. A virtual client, ``site-3#forget-1b9f03``, holds
        them for the request and is its target; ``site-3`` stays without them.

        Without a ``method``, ``recommend`` chooses one: retraining that ends once the others are as well off
        as before, or FedOSD for targets that are ``poisoned`` or hold a set ``backdoor``. Without a
        ``schedule``, rounds and rates follow from those of ``train``.

        A request that fails raises ``ForgettingFailed`` and leaves the model as it is; the same call resumes
        the run, and another method or schedule starts a new one. A request also fails if it lowers the mean
        accuracy of the retained clients by more than ``floor``, a share; None allows any.

        ``gone`` says that the targets have left already: only methods that do not ask them can run then.
        Their names are checked against the clients of ``train`` and of the history; without either, they are
        taken as given. ``guards`` limit what a single client can do to the model, and note it in
        ``Outcome.warnings``, each of which is a Python warning, too; None switches them off.
        """
        require_rules(stop)
        with self._asked(targets, examples) as named:

            def way() -> _Way:
                settings = (poisoned, gone, guards, floor, stop, evaluate_every)
                return self._way(named, method, schedule, options, *settings)

            place = self._recorded("forget", named, lambda: self._plan(named, way()))
            if place is None:
                self._check_data(named)
            outcome, place = self._answer(named, way(), gone, repeats=place)
            if outcome.status.failed:
                raise ForgettingFailed(outcome)
            _warn(outcome)
            self._warn_of_constant(outcome)
            self._complete("forget", named, place, outcome.state)
        self._erase_rows(named)
        return outcome

    def rejoin(self, client: ClientId) -> None:
        """Lets a forgotten client take part again: ``train`` includes it, and it can be forgotten again."""
        require_type(isinstance(client, str), "client", client, "give the name of a client")
        if "#" in client:
            whole = client.partition("#")[0]
            raise FedUnlearnError(
                f"{client!r} is a name of examples that were forgotten, which cannot join anew: give them to "
                f"{whole!r} as new examples, the last of its data",
                code="unsuitable",
            )
        with self._undone():
            if self._recorded("rejoin", (client,), dict) is None and client not in self.forgotten:
                if client in self._rejoined:
                    LOG.info("%s has joined anew already", client)
                    return
                known = did_you_mean(client, self.forgotten) if self.forgotten else ""
                raise FedUnlearnError(
                    f"client {client!r} has not been forgotten here, so it need not join anew{known}",
                    code="not-forgotten",
                )
            if self._federation is None and client not in self._data:
                warn(f"{client!r} joins anew without data here: give Server its data", "no-data")
            self._complete("rejoin", (client,))

    @contextmanager
    def _undone(self) -> Iterator[None]:
        """A call that is refused or fails leaves no trace: a script goes on repeating its steps."""
        before = {**self._memory(), "_end": self._end, "_left_out": {*self._left_out}}
        try:
            yield
        except BaseException:
            vars(self).update(before)
            raise

    def _way(
        self,
        named: tuple[ClientId, ...],
        method: str | None,
        schedule: Schedule | None,
        options: Mapping[str, Any],
        poisoned: bool = False,
        gone: bool = False,
        guards: Guards | None = None,
        floor: float | None = None,
        stop: Sequence[StopRule] = (),
        evaluate_every: int = 1,
    ) -> _Way:
        """How a request is answered: what is not stated follows from what is known of the training."""
        require_type(isinstance(schedule, Schedule | None), "schedule", schedule, "give Schedule(…)")
        require_type(guards is None or isinstance(guards, Guards), "guards", guards, "give Guards() or None")
        options, stated, unknown = dict(options), schedule is not None, ""
        if method is None:
            sets = (held.evaluations for client, held in self._data.items() if client in named)
            poisoned = poisoned or any("backdoor" in each for each in sets)
            found = recommend(poisoned=poisoned, gone=gone, recorded=self.history.kinds)
            method, options = found.method, {**({} if "momentum" in options else found.options), **options}
            LOG.info("method %s: %s", method, found.reason)
        elif not stated and not options.keys() & {"rounds", "momentum"}:
            options = {**recommended_options(method), **options}
        check_options(f"method {method!r}", methods[method], options)
        schedule = schedule or (Schedule.after(self._rounds, self._lr) if self._lr else Schedule())
        if not stated and "rounds" not in options and method in ("retrain", "fast-retrain"):
            options["rounds"] = self._rounds or schedule.rounds
            if not self._rounds:
                unknown = (
                    "nobody knows here how long and at which rate this model was trained, so a new one gets "
                    f"at most {schedule.rounds} rounds at rate {schedule.pretrain_lr:g}: state rounds and "
                    "schedule=Schedule(pretrain_lr=…)"
                )
        return _Way(method, schedule, options, guards, floor, stop, evaluate_every, unknown)

    def _answer(
        self, named: tuple[ClientId, ...], way: _Way, gone: bool, known: bool = False, **options: Any
    ) -> tuple[Outcome, Path]:
        """The outcome of a request and its folder; the server stays as it is."""
        members, method = self._took_part, way.method
        self._gone = tuple(target for target in named if not members or target in members) if gone else ()
        try:
            # A step that was begun may be continued, whoever is still there.
            if not known and options.get("repeats") is None and {*named} <= {*self.clients}:
                phases = self._phases(named, way)
                request = self._request(self.clients, named)
                if gone and "targets" in requirements.asks(phases):
                    raise FedUnlearnError(ASKS_THE_GONE.format(method), code="absent")
                if way.unknown:
                    warn(way.unknown, "effort-unknown")
                if self._gone and not members:
                    there = ", ".join([c for c in self.clients if c not in named][:20])
                    LOG.warning("nobody knows whether %s took part: present are %s", ", ".join(named), there)
                LOG.info("targets: %s; retained: %d clients", ", ".join(named), len(request.retained))
            return self._try(named, way, f"forget-{_slug('-'.join(named))}-{_slug(method)}", **options)
        finally:
            self._gone = ()

    def compare(
        self,
        targets: ClientId | Sequence[ClientId] | None = None,
        rows: Mapping[str, Mapping[str, Any]] | Sequence[str] = (),
        schedule: Schedule | None = None,
        *,
        examples: Mapping[ClientId, Any] | None = None,
        evaluate_every: int = 1,
        guards: Guards | None = Guards(),
    ) -> dict[str, Outcome]:
        """Tries several methods on one request, each from the current model, and keeps the model as it is.

        Targets that the last request has forgotten are compared from the model before it.

        ``rows`` are methods, or names of rows with the method's options, ``method`` among them. What neither
        they nor the schedule state is as for ``forget``: ``retrain`` takes as many rounds as training. A row
        that fails is a Python warning and keeps its outcome. The folder that they share can be reported
        as a comparison. ``examples`` are those of ``forget``.
        """
        fine = isinstance(rows, Mapping | Sequence) and not isinstance(rows, str)
        require_type(fine, "rows", rows, "give several methods, such as ['fedosd', 'retrain']")
        if not rows:
            raise FedUnlearnError("rows names no method: give several, such as ['fedosd', 'retrain']")
        given = rows if isinstance(rows, Mapping) else {row: {} for row in rows}
        for row, settings in given.items():
            remedy = "give the options of the row, such as {'method': 'fedosd'}"
            require_type(isinstance(settings, Mapping), f"row {row!r}", settings, remedy)
        wanted = {row: (str(settings.get("method", row)), dict(settings)) for row, settings in given.items()}
        outcomes = {}
        with self._asked(targets, examples) as named:
            asking, ways = self._before(named), {}
            asking._check_data(named)
            for row, (method, options) in wanted.items():
                options.pop("method", None)
                if method == "retrain" and asking._rounds:
                    options.setdefault("rounds", asking._rounds)
                way = asking._way(
                    named, method, schedule, options, guards=guards, evaluate_every=evaluate_every
                )
                asking._phases(named, way)  # refuses before the first row runs
                ways[row] = way
            folder = f"compare-{_slug('-'.join(named))}/seed-{self._seed}"
            for told in sorted({way.unknown for way in ways.values()} - {""}):
                warn(told, "effort-unknown")
            for row, way in ways.items():
                outcome, _ = outcomes[row], _ = asking._try(named, way, f"{folder}/{_slug(row)}")
                if outcome.status.failed:
                    warn(f"row {row!r} failed ({outcome.status}): {outcome.reason}", "row-failed")
                _warn(outcome, row)
        return outcomes

    def audit(
        self, retrained: Model | None = None, *, again: Model | None = None, references: Sequence[Model] = ()
    ) -> Evidence:
        """Asks the clients whether the last request was answered as well as by retraining.

        Without ``retrained``, it first makes the rows ``retrain 2`` and ``retrain 3`` of ``compare``, from
        before the request and as long as ``train`` took, unless they are there. The targets must still be
        present. A server with a ``folder`` keeps evidence and page in that of the request. See
        ``fedunlearn.audit``.
        """
        from .report import collect, write_report

        if self._last is None:
            raise FedUnlearnError(
                "there is no request to audit: nothing has been forgotten, or who was has joined anew",
                code="not-forgotten",
            )
        targets, _, place, method = self._last
        if record.read_outcome(place)["model_sha256"] != record.model_hash(self.state):
            raise FedUnlearnError(
                f"the model has been trained further since {', '.join(targets)} left it: audit right after "
                "the request, or run the script up to it again, which repeats its steps",
                code="other-model",
            )
        there = self._data if self._federation is None else self._federation.present()
        holders = {target.partition("#")[0] if target in self._examples else target for target in targets}
        if absent := sorted(holders.difference(there)):
            back = "give its data" if self._federation is None else "start its SuperNode"
            raise FedUnlearnError(
                f"{absent[0]!r} is not present, and nobody else can tell whether its data is forgotten: "
                f"{back} to audit",
                code="absent",
            )
        before = self._before(targets)
        if retrained is None:
            parts = {
                part.partition("#")[0]: self._examples[part] for part in targets if part in self._examples
            }
            held = divided(self._data, self._examples)
            for target in held.keys() & {*targets}:
                unseen = held[target].evaluations
                sets = held[target].train, unseen.get("audit", unseen.get("test", held[target].train))
                if least := [n for n in map(holdings.size, sets) if n < 2]:
                    raise FedUnlearnError(
                        f"{target} holds {least[0]} forgotten or unseen examples, and an audit needs two of "
                        "each at least, and 600 for a verdict"
                    )
            retrained, again = before._retrained(place, None if parts else targets, parts or None)
        asked = (*self.clients, *targets)
        with self._engine(asked) as federation:
            found = audit(
                federation,
                self.state,
                targets=targets,
                retrained=retrained,
                original=before.state,
                again=again,
                references=references,
                clients=asked,
                method=method,
            )
        if not self._kept:
            return found
        models = {"model": self.state, "retrained": retrained, "original": before.state, "again": again}
        models |= {f"reference {number}": each for number, each in enumerate(references, 1)}
        used = {name: {"sha256": record.model_hash(as_state(each))} for name, each in models.items() if each}
        used["model"] |= {"made": "run", "method": method}
        with record.locked(place / "lock"):
            content = record.json_bytes({**found.to_json(), "models": used})
            record.claim(place).write({"evidence.json": content})
        files = [str(place / "evidence.json")]
        try:
            files.append(str(write_report(collect([place]), place / "report.html")))
        except FedUnlearnError as error:
            warn(f"no page is written ({error}); then: fedunlearn report {quote(str(place))}", "no-page")
        return replace(found, files=tuple(files))

    def _retrained(
        self, place: Path, targets: tuple[ClientId, ...] | None, examples: Mapping[ClientId, Any] | None
    ) -> list[Outcome]:
        """Two models trained without the targets, as long as the present one or as the request stated."""
        begun = record.read_json(place / "experiment.json")
        rounds = self._rounds or begun["options"].get("rounds", 0)
        if not rounds:
            raise FedUnlearnError(
                "this server has not trained the model, so nobody knows how long a retraining takes: compare "
                "two rows of retrain, {'a': {'method': 'retrain', 'rounds': …, 'number': 2}, 'b': {…, "
                "'number': 3}}, and call server.audit(outcomes['a'], again=outcomes['b'])"
            )
        rows = {f"retrain {n}": {"method": "retrain", "rounds": rounds, "number": n} for n in (2, 3)}
        schedule = Schedule(pretrain_lr=begun["pretraining"]["lr"])
        made = [*self.compare(targets, rows, None if self._rounds else schedule, examples=examples).values()]
        if failed := [outcome for outcome in made if outcome.status.failed]:
            raise ForgettingFailed(failed[0])
        return made

    @contextmanager
    def _asked(
        self, targets: ClientId | Sequence[ClientId] | None, examples: Mapping[ClientId, Any] | None
    ) -> Iterator[tuple[ClientId, ...]]:
        """The targets of a request; during it, virtual clients hold the examples that it names."""
        if examples is not None:
            if self._federation is not None:
                raise FedUnlearnError(THEIR_OWN)
            require(targets is None, "targets", targets, "left out where examples are given")
            self._named = parts_of(examples, {c: d for c, d in self._data.items() if c != self._public})
            targets = tuple(self._named)
        try:
            with self._undone():
                yield names_of(() if targets is None else targets, least=1)
        finally:
            self._named = {}

    def _phases(self, targets: tuple[ClientId, ...], way: _Way) -> tuple[Phase, ...]:
        """The phases of a method, refused where something that it needs is missing."""
        phases = phases_of(way.method, way.schedule, way.options)
        request = self._request(self.clients, targets)
        asked = {target.partition("#")[0] if target in self._named else target for target in targets}
        if unknown := sorted(asked - self._took_part) if self._took_part else ():
            told = NOT_SINCE if unknown[0] in self._rejoined else NEVER_TRAINED
            raise FedUnlearnError(told.format(unknown[0]), code="not-forgotten")
        for problem in requirements.missing(phases, request, self._task, way.method, LACKING):
            raise FedUnlearnError(problem, code="unsuitable")
        return phases

    def _plan(self, targets: tuple[ClientId, ...], way: _Way) -> dict[str, Any]:
        """The settings of a request."""
        schedule = self._scheduled(way.schedule)
        named = {"level": "sample", "examples": self._named} if self._named else {}
        return {
            "method": way.method,
            "options": dict(way.options),
            "request": {"level": "client", "targets": list(targets), **named},
            "pretraining": {"lr": schedule.pretrain_lr},
            "unlearning": {"rounds": schedule.unlearn_rounds, "lr": schedule.unlearn_lr},
            "recovery": {"rounds": schedule.recover_rounds, "lr": schedule.recover_lr},
            "stop": [repr(rule) for rule in way.stop],
            "evaluate_every": None if way.evaluate_every == sys.maxsize else way.evaluate_every,
            **({} if way.guards is None else {"guards": asdict(way.guards)}),
            **({} if way.floor is None else {"floor": way.floor}),
        }

    def _scheduled(self, schedule: Schedule) -> Schedule:
        """With the learning rate of ``train``, unless another one is stated."""
        if self._lr is None or schedule.pretrain_lr != Schedule.pretrain_lr:
            return schedule
        return replace(schedule, pretrain_lr=self._lr)

    def _try(
        self, targets: tuple[ClientId, ...], way: _Way, name: str, **options: Any
    ) -> tuple[Outcome, Path]:
        """A request with a method, in the folder of that name."""
        require_rules(way.stop)
        phases = phases_of(way.method, self._scheduled(way.schedule), way.options)
        options |= {"stop": way.stop, "guards": way.guards, "floor": way.floor}
        options["evaluate_every"] = way.evaluate_every
        return self._run(name, phases, targets, self._plan(targets, way), "request", **options)

    def _memory(self) -> dict[str, Any]:
        """What a step may change."""
        own = ("_steps", "_lr", "_rounds", "_trained", "_last", "_examples")
        return {name: vars(self)[name] for name in ("state", "history", "anchors", "forgotten", *own)}

    def _before(self, targets: Sequence[ClientId]) -> Server:
        """The server as it was before these targets were forgotten; itself if they were not."""
        if not {*targets} & {*self.forgotten}:
            return self
        before = copy.copy(self)
        if self._last is not None and {*targets} == {*self._last[0]}:
            vars(before).update(self._last[1], _end=None)
        elif self._end is not None and self._steps == len(self._journal):
            before._rewind()  # a script that begins with a comparison is run again
        return before

    def _rewind(self) -> None:
        """Goes back to before the first step."""
        self._end = self._memory()
        vars(self).update(self._given)

    def _recall(self) -> None:
        """Continues from the last recorded step."""
        if self._journal and (kept := self._folder / ORIGIN).exists():
            self.state, _ = record.read_state(kept, self._cipher)
        self._origin = self.state
        for number, entry in enumerate(self._journal):
            place, state = self._folder / entry["step"], None
            if entry["step"]:
                if not finished(place):
                    raise FedUnlearnError(
                        f"{place}, a step that {JOURNAL} lists, is missing: restore it", code="damaged"
                    )
                record.verify(place)
                begun = record.read_json(place / "experiment.json")
                if begun["architecture"] != vectors.architecture(self._module):
                    raise FedUnlearnError(
                        f"{place} has a model of another architecture: choose another folder",
                        code="other-model",
                    )
                unknown = begun["start"] != record.model_hash(self.state)
                if unknown and not number and entry["kind"] == "forget":
                    raise FedUnlearnError(
                        f"nobody kept the model with which {place} began: load it into the module, or choose "
                        "another folder",
                        code="missing",
                    )
                state, _ = record.read_state(max(place.glob("checkpoints/*.safetensors")), self._cipher)
            self._move_on(entry, state)
        if self._journal and self._journal[-1]["kind"] == "forget":  # a kill may have left rows
            self._erase_rows(self._journal[-1]["targets"])

    def _recorded(
        self, kind: str, targets: tuple[ClientId, ...], plan: Callable[[], Mapping[str, Any]]
    ) -> Path | None:
        """The folder of the step that a call repeats; for any other, the server moves to its last step."""
        if self._end is None:
            return None
        if first := self._steps == len(self._journal):
            self._rewind()
        end, entry = self._end, self._journal[self._steps]
        place: Path = self._folder / entry["step"]
        differ, others = [], ""
        same = [kind, [*targets]] == [entry["kind"], entry["targets"]]
        if same and entry["step"]:
            begun, config = record.read_json(place / "experiment.json"), self._config(plan(), targets)
            differ = _differences(begun, config, history=False)
            others = _changed(begun, config)
            if kind == "train" and (new := {*config["data"]["names"]}.difference(begun["data"]["names"])):
                others = f"{', '.join(sorted(new))} took no part in it"
            if not differ and not others and begun["start"] != config["start"]:
                vars(self).update(end)
                raise FedUnlearnError(OTHER_START.format(place), code="occupied")
        if differ or others or not same:
            vars(self).update(end)
            self._end = None
            last = self._journal[-1]["step"] or f"after {', '.join(self._journal[-1]['targets'])} joined anew"
            told = f"{kind} continues from the last step of {self._folder}, {last}"
            if differ and not others and kind == "train":
                why = f"because it does not repeat {place.name} ({'; '.join(differ)})"
                warn(f"{told}, {why}: to train from the start choose another folder", "continued")
            else:
                LOG.info("%s%s", told, others and f": it does not repeat {place.name} ({others})")
            return None
        if first and (later := sorted({*end["forgotten"]} - {*targets})):
            warn(
                f"this script repeats the steps of {self._folder} from the first one on: until it has "
                f"repeated them all, server.model may be one that still knows {', '.join(later)}",
                "repeated",
            )
        later_on = [each for each in self._journal[self._steps :] if each["kind"] == "rejoin"]
        rejoined = {client for each in later_on for client in each["targets"]}
        if kind == "forget" and (again := sorted(rejoined & {*targets})):
            warn(
                f"this call repeats {place.name}, from before {', '.join(again)} joined anew, and makes no "
                "new request: to forget them now, let forget be the first call of a new process",
                "repeated",
            )
        return place

    def _complete(
        self, kind: str, targets: tuple[ClientId, ...], place: Path | None = None, state: State | None = None
    ) -> None:
        """Moves on after a step, and records it unless it is repeated."""
        step = place.relative_to(self._folder).as_posix() if place else ""
        entry = {"kind": kind, "step": step, "targets": list(targets)}
        if self._end is None:
            journal, path = [*self._journal, entry], self._folder / JOURNAL
            with record.locked(self._folder / "lock", wait=True):
                if path.exists() and record.read_json(path) != self._journal:
                    raise FedUnlearnError(
                        f"another process has completed a step in {self._folder} meanwhile: make the Server "
                        "anew, and repeat the call",
                        code="in-use",
                    )
                files = record.claim(self._folder, cipher=self._cipher)
                if not self._steps:
                    self._origin = self.state
                origin = {} if ORIGIN in files else {ORIGIN: files.state(self._origin)}
                files.write({**origin, JOURNAL: record.json_bytes(journal)})
            self._journal = journal
        self._move_on(entry, state)
        self._left_out -= {*targets}
        if self._steps == len(self._journal):
            self._end = None

    def _move_on(self, entry: Mapping[str, Any], state: State | None) -> None:
        """Takes over what a completed step leaves behind."""
        targets, place, earlier = tuple(entry["targets"]), self._folder / entry["step"], self._memory()
        self._steps += 1
        if state is None:
            self.forgotten = tuple(client for client in self.forgotten if client not in targets)
            if self._last and {*targets}.intersection(self._last[0]):
                self._last = None  # its model may learn from the target again
            self._examples = {part: rows for part, rows in self._examples.items() if part in self.forgotten}
            return
        begun = record.read_json(place / "experiment.json")
        heard = {*begun["data"]["names"]}.difference(targets, record.read_outcome(place).get("unheard", ()))
        if entry["kind"] == "train":
            self.history = History.from_tensors(state.memory)
            self._lr = begun["pretraining"]["lr"]
            self._rounds += begun["pretraining"]["rounds"]
            self._trained |= heard
        else:
            self.anchors = (*self.anchors, self.state.params)
            self.forgotten = (*self.forgotten, *targets)
            self.history = self.history.without(targets)
            earlier |= {"history": self.history, "_last": None}
            self._last = targets, earlier, place, begun["method"]
            self._examples = remembered(self._examples, begun, self._data)
            self._trained = (self._trained and self._trained | heard).difference(targets)
        self.state = State(state.params, buffers=state.buffers)

    def _warn_of_constant(self, outcome: Outcome) -> None:
        """Warns of a model that has learned nothing but which class is the most frequent."""
        if self._federation is not None or not isinstance(self._task, LabelTask):
            return
        module, held = copy.deepcopy(self._module), [self._data[c] for c in self.clients if c in self._data]
        vectors.load(module, outcome.state)
        rows = [row for row in outcome.metrics if "train_loss_retained" in row]
        constant = constant_loss(module, self._task, held) if rows else None
        if constant is not None and float(rows[-1]["train_loss_retained"]) >= 0.99 * constant:
            warn(
                f"the model predicts the same class for all examples: lower the rate (now "
                f"{float(rows[-1]['lr']):.2g}), scale the inputs to about 1, or train for more rounds",
                "one-class",
            )

    def _check_data(self, targets: tuple[ClientId, ...]) -> None:
        """Warns of whole targets with other data than they trained with; refuses positions in it."""
        held = self._data, divided(self._data, self._examples)
        for client in sorted({target.partition("#")[0] for target in targets} & held[0].keys()):
            positions = any(part.partition("#")[0] == client for part in self._named)
            step, known = self._trained_with(client, positions)
            if not known or known in [holdings.digest(each[client].train) for each in held]:
                continue
            if positions:
                raise FedUnlearnError(
                    f"the training data of {client!r} is not that of {step}, so positions would name other "
                    "examples: give it as it was then, in the same order, or train on it first",
                    code="changed",
                )
            warn(
                f"the training data of {client} is not that of {step}: forgetting is measured and "
                "audited on examples that the model may not have seen",
                "changed",
            )

    def _trained_with(self, client: ClientId, positions: bool) -> tuple[str, str]:
        """The last step that decides which data a client trained with, and its digest; empty if unknown."""
        for entry in reversed(self._journal[: self._steps]):
            divides = any(target.startswith(f"{client}#") for target in entry["targets"])
            if entry["kind"] == "train" or (positions and entry["kind"] == "forget" and divides):
                begun = record.read_json(self._folder / entry["step"] / "experiment.json")
                if client in (known := begun["data"]["sha256"]):
                    return entry["step"], known[client]
        return "", ""

    def _request(self, clients: tuple[ClientId, ...], targets: tuple[ClientId, ...]) -> Request:
        for target in targets:
            whole = target.partition("#")[0] if target in self._named else target
            for what in {target, whole}.intersection(self.forgotten):
                told = (
                    f"client {what!r} has been forgotten already: name another, or choose another folder to "
                    "answer this request in another way"
                    if what == whole
                    else f"these examples of {whole!r} have been forgotten already: leave this request out"
                )
                raise FedUnlearnError(told)
            known = {*clients, *self._took_part}
            if target not in known and (self._federation is None or self._took_part):
                left = "" if self._took_part else "; if it has left for good, say gone=True"
                raise FedUnlearnError(
                    f"unknown client {target!r}{did_you_mean(target, known)}{left}", code="unknown"
                )
            if target not in clients:
                # No suggestion: a client that is merely absent must not become a request about another one.
                there = ", ".join(clients[:20]) or "nobody"
                back = "give its data" if self._federation is None else "start its SuperNode"
                raise FedUnlearnError(
                    f"{target!r} is not present (present: {there}): {back}, or, if it has left for good, "
                    "say gone=True and use a method that does not ask it",
                    code="absent",
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
        *,
        repeats: Path | None = None,
        answered: bool = False,
        **options: Any,
    ) -> tuple[Outcome, Path]:
        """Runs a step, continues it or repeats its outcome; returns its folder, too."""
        place, begun = (
            _claim(self._folder / f"{self._steps}-{name}", self._config(plan, targets), answered)
            if repeats is None
            else (repeats, record.read_json(repeats / "experiment.json"))
        )
        request = self._request(tuple(begun["data"]["names"]), targets)
        there = self._data if self._federation is None else self._federation.present()
        if repeats is None and (again := sorted(self._left_out.intersection(self.forgotten, there))):
            warn(
                f"{', '.join(again)}: forgotten in {self._folder}, so left out of this step; a client that "
                "joins anew needs server.rejoin(name) first",
                "forgotten",
            )
            self._left_out.clear()
        # A step that has ended was computed with the software of its time.
        made_with = record.read_json(place / "environment.json") if finished(place) else {}
        identity = {
            "config": begun,
            "anchors": [record.digest({"anchor": anchor}) for anchor in request.anchors],
            **{key: made_with.get(key, value) for key, value in record.decisive().items()},
        }
        older = {k: begun["training"].get(k, v) for k, v in OLDER.items() if hasattr(self._training, k)}
        if self._federation is None and self._training.batch_size == 1 and not finished(place):
            require_lone(self._module, self._task, next(iter(self._data.values())).train)
        with record.locked(place / "lock"):
            if finished(place):
                return replace(concluded(place, identity, self._cipher), targets=targets), place
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
                    training=replace(self._training, **older),
                    participation=self._participation,
                    seed=derive(purpose, self._seed, self._steps, *targets),
                    **options,
                )
        return replace(outcome, metrics=tuple(record.read_metrics(place))), place

    def _config(self, plan: Mapping[str, Any], targets: tuple[ClientId, ...]) -> dict[str, Any]:
        """The settings of a step; ``data`` and ``start`` are compared with those that it began with."""
        held = divided(self._data, {**self._examples, **self._named})
        held = {c: held[c] for c in (*self.clients, PUBLIC) if c in held}
        data = {
            "clients": len(self.clients),
            "names": list(self.clients),
            "sha256": {c: holdings.digest(each.train) for c, each in held.items()},
            "evaluations": {
                c: {name: holdings.digest(examples) for name, examples in each.evaluations.items()}
                for c, each in held.items()
            },
        }
        own_code, training = isinstance(self._federation, Selective), asdict(self._training)
        frozen = {name: p for name, p in self._module.named_parameters() if not p.requires_grad}
        # Of the history, what is left after the request: its rows of the targets are deleted then.
        history = self.history.without(targets).tensors()
        config = {
            "kind": "server",
            "name": self._folder.name,
            "seed": self._seed,
            "model": type(self._module).__name__,
            "architecture": vectors.architecture(self._module),
            "start": self._start or record.model_hash(self.state),
            "data": data,
            # Clients with their own code choose their epochs and batches themselves.
            "training": {k: v for k, v in training.items() if k in ("decay", "shuffle") or not own_code},
            "participation": asdict(self._participation),
            "task": described(self._task),
            **({"frozen": record.digest(frozen)} if frozen else {}),
            **({"history": record.digest(history)} if history else {}),
            **({"clients": "with their own code"} if own_code else {}),
            **plan,
        }
        return dict(json.loads(json.dumps(config)))

    def _engine(self, clients: Sequence[ClientId]) -> AbstractContextManager[Federation]:
        if self._federation is not None:
            if self._public is None:
                return nullcontext(self._federation)
            here = {PUBLIC: self._data[PUBLIC]}
            return nullcontext(join(self._federation, Sequential(self._module, here, task=self._task)))
        members = [*clients, *([PUBLIC] if self._public else [])]
        held = divided(self._data, {**self._examples, **self._named})
        data = {client: held[client] for client in members if client in held}
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


def _claim(base: Path, config: Mapping[str, Any], answered: bool) -> tuple[Path, dict[str, Any]]:
    """The folder of a step, and the settings that the step began with.

    A step that was stopped keeps the clients that it began with. Other settings or other data get a folder of
    their own, and so do new clients once the step has ended. A request that was answered is only repeated.
    """
    for number in range(1, 1000):
        place = base if number == 1 else base.with_name(f"{base.name}-{number}")
        done, stopped = finished(place), not (place / "outcome.json").exists()
        manifest = record.verify(place, resuming=not done)
        if not any((place / "checkpoints").glob("*.safetensors")):
            if answered:
                raise FedUnlearnError(
                    ANSWERED_OTHERWISE.format(base.parent, "another method"), code="occupied"
                )
            return place, dict(config)
        if manifest is None or not manifest.verified:
            record.tell_unverified([place])
        begun = record.read_json(place / "experiment.json")
        new = sorted({*config["data"]["names"]}.difference(begun["data"]["names"])) if not answered else []
        if differ := _differences(begun, config):
            if answered and done:
                raise FedUnlearnError(
                    ANSWERED_OTHERWISE.format(base.parent, "; ".join(differ)), code="occupied"
                )
        elif changed := _changed(begun, config):
            if stopped:
                warn(f"{changed} since {place} was begun, so it begins anew", "begun-anew")
        elif begun["start"] != config["start"]:
            if done or stopped:
                raise FedUnlearnError(OTHER_START.format(place), code="occupied")
        elif not (done and new):
            if new:
                told = f"{place} continues with the clients that it began with, without {', '.join(new)}"
                warn(told, "continued")
            return place, begun
    raise FedUnlearnError(f"{base} has failed too often: choose another folder", code="occupied")


def _differences(begun: Mapping[str, Any], config: Mapping[str, Any], *, history: bool = True) -> list[str]:
    """Which settings differ, and how; those that only one of two versions knows are not compared."""
    old, new = _flat(begun), _flat(config)
    return [
        f"{key} was {old.get(key, 'not set')!s:.60} and is {new.get(key, 'not set')!s:.60}"
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key)
        and (history or key != "history")
        and (key in old or key not in ADDED)
        and ((key in old and key in new) or not {key.partition(".")[0]} <= {*GROWING} & {*begun} & {*config})
    ]


def _flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings by one name each, without those that tell no step from another."""
    found: dict[str, Any] = {}
    for key in config.keys() - {"data", "start", "name"}:
        nested = config[key] if isinstance(config[key], Mapping) else {"": config[key]}
        found |= {f"{key}.{name}".rstrip("."): value for name, value in nested.items()}
    return found


def _changed(begun: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    """Says whose examples or evaluation sets are others than before, of the clients that are still there."""
    for kind in ("sha256", "evaluations"):
        before, now = begun["data"].get(kind, {}), config["data"][kind]
        for client in sorted(before.keys() & now.keys()):
            if before[client] != now[client]:
                return f"the data of client {client!r} has changed"
    return ""


def _journal(folder: Path) -> list[dict[str, Any]]:
    """The completed steps in a folder; an earlier version left nothing but their folders."""
    if (folder / ANSWERED).exists():
        raise FedUnlearnError(
            f"{folder} belongs to forget(…): use that, or choose another folder", code="occupied"
        )
    record.verify(folder)
    found: list[dict[str, Any]] = record.read_json(folder / JOURNAL) if (folder / JOURNAL).exists() else []
    here, model = [""], None
    while here and not (folder / JOURNAL).exists():
        places = [*folder.glob(f"{len(found)}-train*"), *folder.glob(f"{len(found)}-forget-*")]
        begun = {place: record.read_json(place / "experiment.json") for place in places if finished(place)}
        here = [place.name for place, config in begun.items() if model in (None, config["start"])]
        if len(here) > 1:
            names = " and ".join(sorted(here))
            raise FedUnlearnError(
                f"which of {names} in {folder} counts? Move the others elsewhere", code="occupied"
            )
        for step in here:
            targets = begun[folder / step].get("request", {}).get("targets", [])
            found.append({"kind": "forget" if targets else "train", "step": step, "targets": targets})
            model = record.read_outcome(folder / step)["model_sha256"]
    return found


def _warn(outcome: Outcome, row: str = "") -> None:
    """Makes Python warnings of what an outcome notes."""
    of_row = row and f" (row {row!r})"
    for warning in outcome.warnings:
        warn(warning + of_row, "outcome")
    if outcome.unheard and not outcome.status.failed:
        names = ", ".join(outcome.unheard)
        warn(
            f"these clients were never heard in this step, so nothing in it reflects them: {names}{of_row}",
            "unheard",
        )


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
                "give Server a function build that makes one",
                code="model",
            )
    return module


def _functions(given: object) -> bool:
    return isinstance(given, Sequence) and all(map(callable, given))
