"""A server that trains a federation and answers one request to forget after the other."""

from __future__ import annotations

import copy
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

from torch import Tensor, nn

from ..auditing import Model
from ..client.data import ClientData, Data
from ..client.parts import Parts, parts_of
from ..client.trial import constant_loss
from ..core import (
    ClientId,
    Federation,
    FedUnlearnError,
    History,
    LabelTask,
    Listener,
    LocalTraining,
    Outcome,
    State,
    Task,
    did_you_mean,
    names_of,
    require,
    require_count,
    require_type,
    vectors,
)
from ..core.errors import warn
from ..core.history import sorted_kinds
from ..driver import Guards, Participation, StopRule
from ..driver.guards import FLOOR
from ..evidence import Evidence
from ..methods import ClusteredPretraining, Pretraining, Schedule, SlicedPretraining
from ..methods.groups import require_groups
from ..runs import Cipher
from ..tasks import Classification
from .answering import answer, check_data, choose, compare, warn_of
from .audits import audit_last
from .forgetting import THEIR_OWN
from .memory import LOG, Memory
from .steps import Knowledge, Step
from .surroundings import PUBLIC, Surroundings

T = TypeVar("T")


class Known(Generic[T]):
    """An attribute of a server that is a part of what it knows."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, server: Server, owner: type) -> T:
        found: T = getattr(server._memory.known, self.name)
        return found

    def __set__(self, server: Server, value: T) -> None:
        server._memory.known = replace(server._memory.known, **{self.name: value})  # type: ignore[arg-type]


class Server:
    """Hold the model, its history and its earlier requests.

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
        cipher: Cipher | None = None,
    ) -> None:
        require_type(isinstance(folder, Path | str | None), "folder", folder, "give the path of a folder")
        self._surroundings = Surroundings(
            module=model,
            clients=clients,
            task=task,
            training=training,
            participation=participation,
            public=public,
            build=build,
            seed=seed,
            workers=workers,
            listeners=listeners,
            witnesses=witnesses,
            cipher=cipher,
        )
        self._place, self._kept = None if folder is None else Path(folder), folder is not None
        given = Knowledge(State(vectors.flatten(model), buffers=vectors.buffers(model)))
        self._memory = Memory(given, self._surroundings, self._place)

    state = Known[State]()
    """The model as it is now."""
    history = Known[History]()
    """What training recorded, without the rows of clients that were forgotten."""
    anchors = Known[tuple[Tensor, ...]]()
    """The models before each request, which post-training must not return to."""
    forgotten = Known[tuple[ClientId, ...]]()
    """The clients that were forgotten, in the order of their requests."""

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
        module = copy.deepcopy(self._surroundings.module)
        vectors.load(module, self.state)
        return module

    @property
    def clients(self) -> tuple[ClientId, ...]:
        """The clients that are present and have not been forgotten."""
        return Step(self._surroundings, self._memory.known, Path()).clients

    def _step(
        self, targets: tuple[ClientId, ...] = (), parts: Parts | None = None, gone: bool = False
    ) -> Step:
        """The next step, from what is known now."""
        memory, left_out = self._memory, frozenset(self._memory.left_out)
        return Step(self._surroundings, memory.known, self._folder, targets, parts or {}, gone, left_out)

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
        with self._memory.undone():
            place = self._memory.repeated("train", self._step, lambda _: config)
            if place is None:
                require_groups(len(self.clients), clusters, slices, kinds)
            if lost := sorted(self.history.rows.keys() - {*kinds, "share"}):
                warn(f"this training records no {lost[0]}, so what was recorded before is dropped", "history")
            step = self._step()
            outcome, place = step.run(
                "train", [phase], config, "train", repeats=place, evaluate_every=evaluate_every
            )
            if outcome.status.failed:
                raise FedUnlearnError(outcome.reason, code=outcome.status)
            warn_of(outcome)
            if not self._memory.known.rounds:
                _warn_of_failing(outcome, lr)
            self._warn_of_constant(outcome)
            self._memory.complete("train", step, place, outcome.state)
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
        """Unlearn the targets and let the others recover; the targets are gone for every later step.

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
        named, parts = self._named(targets, examples)
        make = partial(self._step, named, parts, gone)
        ask = partial(
            choose,
            method=method,
            schedule=schedule,
            options=options,
            poisoned=poisoned,
            stop=stop,
            evaluate_every=evaluate_every,
            guards=guards,
            floor=floor,
        )
        with self._memory.undone():
            place = self._memory.repeated("forget", make, lambda step: ask(step).plan(step))
            step = make()
            if place is None:
                check_data(step)
            outcome, place = answer(step, ask(step), repeats=place)
            self._warn_of_constant(outcome)
            self._memory.complete("forget", step, place, outcome.state)
        self._memory.erase_rows(self._folder, named)
        return outcome

    def rejoin(self, client: ClientId) -> None:
        """Let a forgotten client take part again: ``train`` includes it, and it can be forgotten again."""
        require_type(isinstance(client, str), "client", client, "give the name of a client")
        if "#" in client:
            whole = client.partition("#")[0]
            raise FedUnlearnError(
                f"{client!r} is a name of examples that were forgotten, which cannot join anew: give them to "
                f"{whole!r} as new examples, the last of its data",
                code="unsuitable",
            )
        memory, make = self._memory, partial(self._step, (client,))
        with memory.undone():
            repeated = memory.repeated("rejoin", make, lambda _: {})
            if repeated is None and client not in self.forgotten:
                if client in memory.known.rejoined:
                    LOG.info("%s has joined anew already", client)
                    return
                known = did_you_mean(client, self.forgotten) if self.forgotten else ""
                raise FedUnlearnError(
                    f"client {client!r} has not been forgotten here, so it need not join anew{known}",
                    code="not-forgotten",
                )
            if self._surroundings.federation is None and client not in self._surroundings.data:
                warn(f"{client!r} joins anew without data here: give Server its data", "no-data")
            memory.complete("rejoin", make())

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
        """Try several methods on one request, each from the current model, and keep the model as it is.

        Targets that the last request has forgotten are compared from the model before it.

        ``rows`` are methods, or names of rows with the method's options, ``method`` among them. What neither
        they nor the schedule state is as for ``forget``: ``retrain`` takes as many rounds as training. A row
        that fails is a Python warning and keeps its outcome. The folder that they share can be reported
        as a comparison. ``examples`` are those of ``forget``.
        """
        named, parts = self._named(targets, examples)
        with self._memory.undone():
            step = replace(self._step(named, parts), knowledge=self._memory.before(named))
            outcomes = compare(step, rows, schedule, evaluate_every=evaluate_every, guards=guards)
            self._memory.warned(step)
        return outcomes

    def audit(
        self, retrained: Model | None = None, *, again: Model | None = None, references: Sequence[Model] = ()
    ) -> Evidence:
        """Ask the clients whether the last request was answered as well as by retraining.

        Without ``retrained``, it first makes the rows ``retrain 2`` and ``retrain 3`` of ``compare``, from
        before the request and as long as ``train`` took, unless they are there. The targets must still be
        present. A server with a ``folder`` keeps evidence and page in that of the request. See
        ``fedunlearn.audit``.
        """
        return audit_last(self._step(), retrained, again, references, keep=self._kept)

    def _named(
        self, targets: ClientId | Sequence[ClientId] | None, examples: Mapping[ClientId, Any] | None
    ) -> tuple[tuple[ClientId, ...], Parts]:
        """The targets of a request, and the examples that virtual clients hold if it names some."""
        if examples is None:
            return names_of(() if targets is None else targets, least=1), {}
        if self._surroundings.federation is not None:
            raise FedUnlearnError(THEIR_OWN, code="unsuitable")
        require(targets is None, "targets", targets, "left out where examples are given")
        public = set() if self._surroundings.public is None else {PUBLIC}
        parts = parts_of(examples, {c: d for c, d in self._surroundings.data.items() if c not in public})
        return tuple(parts), parts

    def _warn_of_constant(self, outcome: Outcome) -> None:
        """Warn of a model that has learned nothing but which class is the most frequent."""
        surroundings = self._surroundings
        if surroundings.federation is not None or not isinstance(surroundings.task, LabelTask):
            return
        module, data = copy.deepcopy(surroundings.module), surroundings.data
        vectors.load(module, outcome.state)
        rows = [row for row in outcome.metrics if "train_loss_retained" in row]
        held = [data[client] for client in self.clients if client in data]
        constant = constant_loss(module, surroundings.task, held) if rows else None
        if constant is not None and float(rows[-1]["train_loss_retained"]) >= 0.99 * constant:
            warn(
                f"the model predicts the same class for all examples: lower the rate (now "
                f"{float(rows[-1]['lr']):.2g}), scale the inputs to about 1, or train for more rounds",
                "one-class",
            )


def _warn_of_failing(outcome: Outcome, lr: float) -> None:
    """Warn of a first training after which accuracy or loss is no better than before."""
    first, last = outcome.metrics[0], outcome.metrics[-1]
    for name, before, after, better in (
        ("accuracy", "r_acc", "r_acc", 1),
        ("training loss", "loss_retained", "train_loss_retained", -1),
    ):
        if before not in first or after not in last:
            continue
        old, new = float(first[before]), float(last[after])
        if better * new <= better * old:
            warn(
                f"training has not made the model better ({name} {new:.3g}, before {old:.3g}): lower the "
                f"rate (now {lr:g}), scale the inputs, or check the labels",
                "not-better",
            )
            return
