"""Steps: what is known between two of them, and the request, the settings and the run of one."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from .. import runs as record
from ..client import data as holdings
from ..client.data import ClientData
from ..client.parts import Parts, divided, remembered
from ..client.trial import require_lone
from ..core import (
    ClientId,
    FedUnlearnError,
    History,
    Outcome,
    Phase,
    Request,
    Selective,
    State,
    did_you_mean,
    vectors,
)
from ..core.errors import warn
from ..core.seeds import derive
from ..driver import log_rounds
from ..runs.running import RunFolder, run_in
from ..tasks import described
from .admission import admitted
from .surroundings import PUBLIC, Surroundings

OLDER: Mapping[str, Any] = {"shuffle": False}
"""Settings of training that earlier versions did not record, and what their steps did."""


@dataclass(frozen=True)
class Answered:
    """A request that was answered."""

    targets: tuple[ClientId, ...]
    before: Knowledge
    place: Path
    method: str


@dataclass(frozen=True)
class Knowledge:
    """The model, and what earlier steps left behind."""

    state: State
    history: History = field(default_factory=History)
    anchors: tuple[Tensor, ...] = ()
    """The models before each request."""
    forgotten: tuple[ClientId, ...] = ()
    """In the order of their requests."""
    rejoined: frozenset[ClientId] = frozenset()
    trained: frozenset[ClientId] = frozenset()
    """The clients that the model knows from steps of this server."""
    trained_with: Mapping[ClientId, tuple[str, str]] = field(default_factory=dict)
    """The step that says which data a client trained with, and its digest."""
    examples: Parts = field(default_factory=dict)
    """The examples that were forgotten, by virtual client."""
    last: Answered | None = None
    """The last request, unless its targets have joined anew."""
    steps: int = 0
    rounds: int = 0
    """Of all trainings."""
    lr: float | None = None

    @property
    def took_part(self) -> frozenset[ClientId]:
        """The clients that the model was trained with; empty where nobody knows."""
        return self.trained.union(*self.history.rows.values())

    def without(self, targets: tuple[ClientId, ...]) -> Knowledge:
        """What was known before these targets were forgotten, if the last request was about them."""
        return self.last.before if self.last and {*targets} == {*self.last.targets} else self

    def after(
        self,
        entry: Mapping[str, Any],
        folder: Path,
        state: State | None,
        data: Mapping[ClientId, ClientData],
    ) -> Knowledge:
        """What is known after a completed step, which has a model unless clients joined anew."""
        targets, step = frozenset(entry["targets"]), entry["step"]
        moved = replace(self, steps=self.steps + 1)
        if state is None:
            forgotten = tuple(client for client in self.forgotten if client not in targets)
            return replace(
                moved,
                forgotten=forgotten,
                rejoined=self.rejoined | targets,
                examples={part: rows for part, rows in self.examples.items() if part in forgotten},
                # The model of the last request may learn from its targets again.
                last=None if self.last and targets & {*self.last.targets} else self.last,
            )
        begun = record.read_json(folder / step / "experiment.json")
        unheard = record.read_outcome(folder / step).get("unheard", ())
        digests, heard = begun["data"]["sha256"], {*begun["data"]["names"]}.difference(targets, unheard)
        moved = replace(moved, state=State(state.params, buffers=state.buffers))
        if entry["kind"] == "train":
            return replace(
                moved,
                history=History.from_tensors(state.memory),
                trained=self.trained | heard,
                trained_with={**self.trained_with, **{c: (step, digests[c]) for c in digests}},
                rounds=self.rounds + begun["pretraining"]["rounds"],
                lr=begun["pretraining"]["lr"],
            )
        history, named = self.history.without(targets), tuple(entry["targets"])
        divided = {target.partition("#")[0] for target in targets if "#" in target} & digests.keys()
        return replace(
            moved,
            history=history,
            anchors=(*self.anchors, self.state.params),
            forgotten=(*self.forgotten, *named),
            rejoined=self.rejoined - targets,
            trained=(self.trained and self.trained | heard) - targets,
            trained_with={**self.trained_with, **{client: (step, digests[client]) for client in divided}},
            examples=remembered(self.examples, begun, data),
            last=Answered(named, replace(self, history=history, last=None), folder / step, begun["method"]),
        )


@dataclass(frozen=True)
class Step:
    """A step that is to be made: what surrounds it, what is known before it, and whom it is about."""

    surroundings: Surroundings
    knowledge: Knowledge
    folder: Path
    """The memory in which the step has a folder of its own."""
    targets: tuple[ClientId, ...] = ()
    parts: Parts = field(default_factory=dict)
    """The examples that virtual clients hold during the step."""
    gone: bool = False
    """Whether the targets have left already."""
    left_out: frozenset[ClientId] = frozenset()
    """Forgotten clients to warn of where they are present."""
    start: str | None = None
    """The hash of the model that a repeated step began with, where it is not the present one."""

    @property
    def clients(self) -> tuple[ClientId, ...]:
        """The clients that are present and have not been forgotten."""
        public = None if self.surroundings.public is None else PUBLIC
        took_part = self.knowledge.took_part
        left = [client for client in self.targets if self.gone and (not took_part or client in took_part)]
        known = sorted({*self.surroundings.present, *left, *self.parts})
        return tuple(c for c in known if c not in self.knowledge.forgotten and c != public)

    @property
    def holders(self) -> tuple[ClientId, ...]:
        """The clients whose data the targets are, or are a part of."""
        return tuple(target.partition("#")[0] if target in self.parts else target for target in self.targets)

    @property
    def divided(self) -> Parts:
        """The examples that the clients are without in this step."""
        return {**self.knowledge.examples, **self.parts}

    @property
    def returning(self) -> list[ClientId]:
        """The forgotten clients that are present, and that this process was not told to forget."""
        return sorted(self.left_out.intersection(self.knowledge.forgotten, self.surroundings.present))

    def request(self, clients: tuple[ClientId, ...]) -> Request:
        """The request about these clients, refused where a target is not one of them."""
        known, surroundings = self.knowledge, self.surroundings
        for target, whole in zip(self.targets, self.holders, strict=True):
            self._require_target(target, whole, clients)
        return Request(
            known.state.params,
            clients,
            self.targets,
            surroundings.fresh,
            known.state.buffers,
            vectors.shapes(surroundings.module),
            known.history,
            known.anchors,
            None if surroundings.public is None else PUBLIC,
            seed=derive("method", surroundings.seed, known.steps),
        )

    def _require_target(self, target: ClientId, whole: ClientId, clients: Sequence[ClientId]) -> None:
        if whole in self.knowledge.forgotten:
            raise FedUnlearnError(
                f"client {whole!r} has been forgotten already: name another, or choose another folder to "
                "answer this request in another way",
                code="forgotten",
            )
        if target in self.knowledge.forgotten:
            raise FedUnlearnError(
                f"these examples of {whole!r} have been forgotten already: leave this request out",
                code="forgotten",
            )
        took_part, here = self.knowledge.took_part, self.surroundings.federation is None
        known = {*clients, *took_part}
        if target not in known and (here or took_part):
            left = "" if took_part else "; if it has left for good, say gone=True"
            raise FedUnlearnError(
                f"unknown client {target!r}{did_you_mean(target, known)}{left}", code="unknown"
            )
        if target not in clients:
            # No suggestion: a client that is merely absent must not become a request about another one.
            there = ", ".join(clients[:20]) or "nobody"
            back = "give its data" if here else "start its SuperNode"
            raise FedUnlearnError(
                f"{target!r} is not present (present: {there}): {back}, or, if it has left for good, "
                "say gone=True and use a method that does not ask it",
                code="absent",
            )

    def config(self, plan: Mapping[str, Any]) -> dict[str, Any]:
        """The settings of a step; ``data`` and ``start`` are compared with those that it began with."""
        surroundings, clients = self.surroundings, self.clients
        held = divided(surroundings.data, self.divided)
        held = {c: held[c] for c in (*clients, PUBLIC) if c in held}
        data = {
            "clients": len(clients),
            "names": list(clients),
            "sha256": {c: holdings.digest(each.train) for c, each in held.items()},
            "evaluations": {
                c: {name: holdings.digest(examples) for name, examples in each.evaluations.items()}
                for c, each in held.items()
            },
        }
        own_code, training = isinstance(surroundings.federation, Selective), asdict(surroundings.training)
        module = surroundings.module
        frozen = {name: p for name, p in module.named_parameters() if not p.requires_grad}
        # Of the history, what is left after the request: its rows of the targets are deleted then.
        history = self.knowledge.history.without(self.targets).tensors()
        config = {
            "kind": "server",
            "name": self.folder.name,
            "seed": surroundings.seed,
            "model": type(module).__name__,
            "architecture": vectors.architecture(module),
            "start": self.start or record.model_hash(self.knowledge.state),
            "data": data,
            # Clients with their own code choose their epochs and batches themselves.
            "training": {k: v for k, v in training.items() if k in ("decay", "shuffle") or not own_code},
            "participation": asdict(surroundings.participation),
            "task": described(surroundings.task),
            **({"frozen": record.digest(frozen)} if frozen else {}),
            **({"history": record.digest(history)} if history else {}),
            **({"clients": "with their own code"} if own_code else {}),
            **plan,
        }
        return dict(json.loads(json.dumps(config)))

    def run(
        self,
        name: str,
        phases: Sequence[Phase],
        plan: Mapping[str, Any],
        purpose: str,
        *,
        repeats: Path | None = None,
        answered: bool = False,
        **conditions: Any,
    ) -> tuple[Outcome, Path]:
        """Run the step, continue it or repeat its outcome; return its folder, too."""
        cipher = self.surroundings.cipher
        if repeats is not None:
            with RunFolder(repeats, cipher=cipher) as run:
                return self._run_in(run, run.begun, phases, purpose, conditions), repeats
        base = self.folder / f"{self.knowledge.steps}-{name}"
        with admitted(base, self.config(plan), answered, cipher) as (run, begun):
            self.request(tuple(begun["data"]["names"]))  # refuses before the warning
            if self.returning:
                warn(
                    f"{', '.join(self.returning)}: forgotten in {self.folder}, so left out of this step; a "
                    "client that joins anew needs server.rejoin(name) first",
                    "forgotten",
                )
            return self._run_in(run, begun, phases, purpose, conditions), run.path

    def _run_in(
        self,
        run: RunFolder,
        begun: Mapping[str, Any],
        phases: Sequence[Phase],
        purpose: str,
        conditions: Mapping[str, Any],
    ) -> Outcome:
        surroundings, done = self.surroundings, run.state == "finished"
        request, training = self.request(tuple(begun["data"]["names"])), surroundings.training
        # A step that has ended was computed with the software of its time.
        made_with = record.read_json(run.path / "environment.json") if done else {}
        identity = {
            "config": begun,
            "anchors": [record.digest({"anchor": anchor}) for anchor in request.anchors],
            **{key: made_with.get(key, value) for key, value in record.decisive().items()},
        }
        if done:
            return replace(run.outcome(identity), targets=self.targets)
        if surroundings.federation is None and training.batch_size == 1:
            require_lone(surroundings.module, surroundings.task, next(iter(surroundings.data.values())).train)
        older = {k: begun["training"].get(k, v) for k, v in OLDER.items() if hasattr(training, k)}
        files = run.claim(record.fingerprint(begun))
        files.write({"experiment.json": record.json_bytes(begun)})
        with surroundings.engine(request.clients, self.divided) as federation:
            outcome = run_in(
                files,
                identity,
                copy.deepcopy(surroundings.module),
                phases,
                request,
                federation,
                listeners=(log_rounds(), *surroundings.listeners),
                witnesses=surroundings.witnesses,
                training=replace(training, **older),
                participation=surroundings.participation,
                seed=derive(purpose, surroundings.seed, self.knowledge.steps, *self.targets),
                **conditions,
            )
        return replace(outcome, metrics=tuple(record.read_metrics(run.path)))
