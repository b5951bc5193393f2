"""What the server says to a node and how it reads the answer.

``Jobs`` speaks with ClientApps that run our client code (``serve``). ``Weights`` speaks as Flower's FedAvg
does, with ClientApps that have a training function of their own.
"""

from __future__ import annotations

import copy
import re
import secrets
from collections.abc import Collection, Mapping
from typing import Any, Protocol

import torch
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor, nn

from ...core import (
    ClientId,
    Failure,
    FedUnlearnError,
    Job,
    Mean,
    Reason,
    Reply,
    State,
    Task,
    Terms,
    Vector,
    vectors,
)
from ...core.errors import warn
from ...tasks import described
from .client import fingerprint, known, versions
from .nodes import Node
from .wire import JOB, Arrays, Head, Unreadable, pack_jobs, tensor, unpack_replies

Read = Mapping[ClientId, Reply | Failure]


class Dialect(Protocol):
    """How jobs become messages, and messages replies."""

    def check(self, nodes: Mapping[str, Node]) -> None:
        """Refuses nodes that cannot take part."""

    document: str
    """The signed erasure request that goes with jobs; empty without one."""

    def hosted(self, name: str, node: Node) -> Collection[ClientId]:
        """The clients that a node answers for."""

    def refusal(self, job: Job) -> str | None:
        """Why a job cannot be said, if so."""

    def begin(self, terms: Terms) -> None:
        """Starts an exchange."""

    def ask(self, node: str, jobs: Mapping[ClientId, Job]) -> tuple[str, RecordDict]:
        """The type and the content of the message with the jobs of one node."""

    def read(self, jobs: Mapping[ClientId, Job], content: RecordDict) -> Read:
        """What a message holds."""


class Jobs:
    """Speaks with clients that run our code: displacements come back, and every method works."""

    def __init__(self, model: nn.Module, task: Task, part: str | None = None) -> None:
        self._fingerprint = fingerprint(model)
        self._task = described(task)
        self._part = part
        self.document = ""

    def check(self, nodes: Mapping[str, Node]) -> None:
        for name, node in nodes.items():
            if node.about.fingerprint != self._fingerprint:
                raise FedUnlearnError(
                    f"{name} has another model than the server: its layers, shapes or frozen values differ; "
                    "build the same model on both sides",
                    code="other-model",
                )
            if node.about.task != self._task:
                raise FedUnlearnError(
                    f"{name} learns {_shown(node.about.task)} and the server {_shown(self._task)}: "
                    "give both the same task",
                    code="client",
                )
            if unknown := sorted({*known()} - node.about.knows):
                raise FedUnlearnError(
                    f"{name} does not know {unknown[0]!r}, which methods here may ask for: install the same "
                    "version of fedunlearn, and of your own methods, on both sides",
                    code="client",
                )
        for package, here in versions().items():
            found = {node.about.versions.get(package, "unknown") for node in nodes.values()}
            if other := sorted(found - {here}):
                warn(
                    f"a node has {package} {other[0]} and the server {here}: "
                    "results depend on who computes them",
                    "version",
                )

    def hosted(self, name: str, node: Node) -> Collection[ClientId]:
        if self._part is not None:
            return [name] if self._part in node.about.parts else []
        return [f"{name}{part}" for part in node.about.parts if not part or part.startswith("#")]

    def refusal(self, job: Job) -> str | None:
        return None

    def begin(self, terms: Terms) -> None:
        self._terms, self._arrays, self._token = terms, Arrays(), secrets.token_hex(8)

    def ask(self, node: str, jobs: Mapping[ClientId, Job]) -> tuple[str, RecordDict]:
        meant = {
            client: (client.removeprefix(node) if self._part is None else self._part, job)
            for client, job in jobs.items()
        }
        head = Head(self._token, self._fingerprint, self.document)
        return JOB, pack_jobs(meant, self._terms, head, self._arrays)

    def read(self, jobs: Mapping[ClientId, Job], content: RecordDict) -> Read:
        return unpack_replies(content, self._token)


class Weights:
    """Speaks with apps that train by a function of their own: weights there, weights back.

    A job of loss ``uce`` is the message ``train.uce``. Only displacements of plain training can be told from
    weights, so methods with steps, works or arrays of their own are refused.
    """

    def __init__(self, model: nn.Module, losses: Collection[str]) -> None:
        for name, value in model.state_dict().items():
            if not isinstance(value, Tensor):
                raise FedUnlearnError(
                    f"the model's state has {name!r}, a {type(value).__name__}, which Flower cannot carry: "
                    "keep tensors only",
                    code="client",
                )
        self._module = copy.deepcopy(model)
        self._received = copy.deepcopy(model)
        self._losses = {"task", *losses}
        self.document = ""

    def check(self, nodes: Mapping[str, Node]) -> None:
        pass

    def hosted(self, name: str, node: Node) -> Collection[ClientId]:
        return [name]

    def refusal(self, job: Job) -> str | None:
        if job.work == "measure":
            return None
        loss, step = job.config.get("loss", "task"), job.config.get("step", "plain")
        special = (
            f"work {job.work!r}"
            if job.work != "train"
            else f"step rule {step!r}"
            if step != "plain"
            else f"arrays for the loss {loss!r}"
            if job.arrays
            else None
        )
        if special is not None:
            return f"it needs the {special}, which only our own client code has: use flower.serve and connect"
        if loss in self._losses:
            return None
        return (
            f"it trains with the loss {loss!r}: give the ClientApp a handler @app.train({str(loss)!r}), "
            f"and connect_existing losses=[{str(loss)!r}]"
        )

    def begin(self, terms: Terms) -> None:
        self._terms = terms
        self._said: dict[tuple[int, int], tuple[Job, ArrayRecord]] = {}

    def ask(self, node: str, jobs: Mapping[ClientId, Job]) -> tuple[str, RecordDict]:
        ((client, job),) = jobs.items()
        if refused := self.refusal(job):
            raise FedUnlearnError(
                f"this method cannot run with clients that have their own code: {refused}", code="unsuitable"
            )
        model = id(job.params), id(job.buffers)
        if model not in self._said:
            vectors.load(self._module, State(job.params, buffers=job.buffers or {}))
            self._said[model] = job, ArrayRecord(self._module.state_dict())
        arrays = self._said[model][1]
        loss = str(job.config.get("loss", "task"))
        kind = "evaluate" if job.work == "measure" else "train" if loss == "task" else f"train.{loss}"
        config = ConfigRecord(
            {
                **{name: value for name, value in job.config.items() if name not in ("loss", "step")},
                "lr": self._terms.rate(job),
                "server-round": int(self._terms.seed[-1]) + 1,
                "seed": self._terms.seed_of(client) % 2**31,
                "client": client,
                **({"erasure-request": self.document} if self.document else {}),
            }
        )
        return kind, RecordDict({"arrays": arrays, "config": config})

    def read(self, jobs: Mapping[ClientId, Job], content: RecordDict) -> Read:
        ((client, job),) = jobs.items()
        metrics = all_metrics(content)
        examples = counted(metrics)
        if job.work == "measure":
            return {client: Reply(None, examples, _statistics(metrics, examples, "test"))}
        moved = displacement(self._received, job.params, only_arrays(content))
        return {
            client: Reply(
                moved,
                examples,
                _statistics(metrics, examples, "train"),
                buffers=vectors.buffers(self._received),
            )
        }


def displacement(module: nn.Module, before: Vector, weights: Mapping[str, Tensor]) -> Vector:
    """Δ = ω − ω_i from the weights that a client sent; the module is left with these weights."""
    expected = module.state_dict()
    if odd := sorted(weights.keys() ^ expected.keys()):
        raise Unreadable(f"other weights than the model has: {odd[0]!r}")
    frozen = {name for name, value in module.named_parameters() if not value.requires_grad}
    for name, value in weights.items():
        wanted = expected[name]
        if value.shape != wanted.shape:
            raise Unreadable(
                f"weights {name!r} of shape {tuple(value.shape)} instead of {tuple(wanted.shape)}",
                Reason.SHAPE,
            )
        if value.dtype != wanted.dtype and not (value.is_floating_point() and wanted.is_floating_point()):
            raise Unreadable(
                f"weights {name!r} of type {value.dtype} instead of {wanted.dtype}", Reason.DTYPE
            )
        if name in frozen and not torch.equal(value.to(wanted.dtype), wanted):
            raise Unreadable(f"other values of {name!r}, which is frozen")
    module.load_state_dict(dict(weights))
    return before - vectors.flatten(module)


def counted(metrics: Mapping[str, Any], key: str = "num-examples") -> int:
    """The number of examples that a client says it trained on."""
    examples = metrics.get(key)
    if isinstance(examples, float) and examples.is_integer():
        examples = int(examples)
    if not isinstance(examples, int):
        raise Unreadable(f"no whole number as metric {key!r}")
    return examples


def only_arrays(content: RecordDict) -> dict[str, Tensor]:
    """The tensors of a message that has one record of arrays, as FedAvg demands it."""
    records = list(content.array_records.values())
    if len(records) != 1:
        raise Unreadable(f"{len(records)} records of arrays instead of one")
    return {name: tensor(array) for name, array in records[0].items()}


def all_metrics(content: RecordDict) -> dict[str, Any]:
    """The metrics of a message by name."""
    return {name: value for each in content.metric_records.values() for name, value in each.items()}


PREFIXES = re.compile(r"^(eval|test|val|train)[_-]")
SHORT = {"acc": "accuracy"}


def _statistics(metrics: Mapping[str, Any], examples: int, where: str) -> dict[str, dict[str, Mean]]:
    """Means by set: ``eval_acc`` is the accuracy on the test set, ``forget_acc`` on the set to forget."""
    found: dict[str, dict[str, Mean]] = {}
    for name, value in metrics.items():
        if not isinstance(value, int | float) or name == "num-examples":
            continue
        place, separator, score = name.partition("_")
        if not (separator and place in ("forget", "backdoor", "seen")):
            place, score = where, PREFIXES.sub("", name)
        score = SHORT.get(score, score)
        if score in ("loss", "accuracy") or where != "train":  # the gate refuses what is not finite
            found.setdefault(place, {})[score] = Mean(float(value) * examples, examples)
    return found


def _shown(task: Mapping[str, Any]) -> str:
    return str(dict(task))[:200]
