"""The side of the client: a ClientApp that answers jobs with the code that simulated clients run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

from ... import methods as _registers_losses_steps_and_works  # noqa: F401
from ...client.data import ClientData, Data
from ...client.learner import Learner
from ...client.losses import forgets
from ...core import ClientId, Failure, FedUnlearnError, Reason, Reply, Task, registry, vectors
from ...core.hashes import digest
from ...core.hashes import fingerprint as value_hash
from ...core.threads import one_thread
from ...signing import check_request
from ...tasks import Classification, described
from ..sequential import attempt
from .wire import HELLO, JOB, noted, pack_replies, unpack_jobs

Load = Callable[[Context], "Site"]


@dataclass(frozen=True)
class Site:
    """What one node brings: its model, its data, and what is learned from it.

    ``parts`` are further holdings by name: ``#forget`` is the virtual client ``NAME#forget``. ``name`` is for
    nodes that are not registered under one.
    """

    model: nn.Module
    data: ClientData | Data
    task: Task = Classification()
    parts: Mapping[str, ClientData | Data] = field(default_factory=dict)
    name: str | None = None

    def holding(self, part: str) -> ClientData:
        """The data that a job is about."""
        if part and part not in self.parts:
            raise FedUnlearnError(
                f"this node holds no {part!r}: it has {', '.join(self.parts) or 'one set'}", code="absent"
            )
        held = self.parts[part] if part else self.data
        return held if isinstance(held, ClientData) else ClientData(held)


def serve(app: ClientApp, load: Load) -> None:
    """Lets a ClientApp answer the jobs of a federation; ``load`` gives what the node holds.

    It is called once for each node and run in a process: a simulation keeps processes, a deployment starts
    one for each message.
    """
    sites = _Sites(load)

    @app.query(HELLO.removeprefix("query."))
    def hello(message: Message, context: Context) -> Message:
        site, learner, _ = sites.of(context)
        learner.check({part or "data": site.holding(part) for part in ("", *site.parts)})
        return _introduction(message, site.name or _own_name(context), description(site))

    @app.train(JOB.removeprefix("train."))
    def job(message: Message, context: Context) -> Message:
        site, learner, own = sites.of(context)
        jobs, terms, head = unpack_jobs(message.content)
        replies: dict[ClientId, Reply | Failure] = {}
        with one_thread():
            for client, part, job in jobs:
                try:
                    if own != head.fingerprint:
                        raise FedUnlearnError(
                            "the server has another model than this node", code="other-model"
                        )
                    if forgets(job):
                        _require_signed(context, client, head.document)
                    replies[client] = attempt(learner, client, site.holding(part), job, terms, None)
                except FedUnlearnError as error:
                    replies[client] = Failure(Reason.FAILED, f"refused the job: {error}")
        return Message(pack_replies(replies, head.token), reply_to=message)


def introduce(app: ClientApp, name: Callable[[Context], str]) -> None:
    """Lets the ClientApp of an existing app tell its name; nodes that are registered need no such help."""

    @app.query(HELLO.removeprefix("query."))
    def hello(message: Message, context: Context) -> Message:
        return _introduction(message, name(context), {})


def require_request(message: Message, context: Context) -> None:
    """For the forgetting handler of an existing app: refuses to go on without a signed erasure request.

    The node's configuration names the key: ``erasure-key="/path/of/the/public/key"``. Without it, every job
    is carried out.
    """
    config = message.content.config_records["config"]
    document = str(config.get("erasure-request", ""))
    _require_signed(context, str(config.get("client", "")), document)


def _require_signed(context: Context, client: ClientId, document: str) -> None:
    """Refuses to forget unless the node's own key has signed the request, where the node names that key."""
    key, federation = (context.node_config.get(name) for name in ("erasure-key", "federation"))
    if key is not None:
        check_request(
            document,
            client=client,
            federation=None if federation is None else str(federation),
            model_sha256=None,
            public_key=Path(str(key)),
        )


def description(site: Site) -> dict[str, Any]:
    """What server and client must agree on before the first round."""
    return {
        "fingerprint": fingerprint(site.model),
        "task": described(site.task),
        "knows": known(),
        "parts": ["", *site.parts],
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    """Of what decides about bits."""
    return {name: version(name) for name in ("fedunlearn", "torch")}


def known() -> list[str]:
    """The losses, step rules and works that jobs can name here."""
    return sorted(
        [f"loss {entry.name}" for entry in registry.loss]
        + [f"step {entry.name}" for entry in registry.step]
        + [f"work {entry.name}" for entry in registry.work]
    )


def fingerprint(model: nn.Module) -> str:
    """SHA-256 of what is not sent with each job: layers, shapes, types, and the values that are frozen."""
    frozen = {name: value for name, value in model.named_parameters() if not value.requires_grad}
    sent = {
        name: [list(value.shape), str(value.dtype)]
        for name, value in (*model.named_parameters(), *model.named_buffers())
        if name not in frozen
    }
    return value_hash([vectors.architecture(model), sent, digest(frozen)])


class _Sites:
    """Sites and the models that work for them, kept for as long as the process lives."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._sites: dict[tuple[Any, ...], tuple[Site, Learner, str]] = {}
        self._learners: dict[str, tuple[nn.Module, Learner]] = {}

    def of(self, context: Context) -> tuple[Site, Learner, str]:
        """What the node holds, the model that it works on, and that model's fingerprint."""
        configs = (context.node_config, context.run_config)
        key = (context.run_id, context.node_id, *(tuple(sorted(each.items())) for each in configs))
        if key not in self._sites:
            site = self._load(context)
            if not isinstance(site, Site):
                raise FedUnlearnError(f"load returns a {type(site).__name__}: return a Site")
            # Nodes of one process share a model to work on: only its values differ, and jobs bring them.
            own = fingerprint(site.model)
            kind = value_hash([own, described(site.task)])
            if kind not in self._learners:
                self._learners[kind] = site.model, Learner(site.model, site.task)
            model, learner = self._learners[kind]
            self._sites[key] = replace(site, model=model), learner, own
        return self._sites[key]


def _introduction(message: Message, name: str, about: Mapping[str, Any]) -> Message:
    return Message(RecordDict({"hello": noted({**about, "name": name})}), reply_to=message)


def _own_name(context: Context) -> str:
    """The name in the node's configuration, else one by its partition, as simulated nodes have it."""
    given, number = context.node_config.get("name"), context.node_config.get("partition-id")
    return str(given) if given is not None else "" if number is None else f"client-{number}"
