"""A federation over a Flower grid: the driver in a ServerApp talks to clients on SuperNodes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from flwr.app import Message
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from torch import nn

from ...core import (
    ClientId,
    Failure,
    FedUnlearnError,
    Job,
    Reason,
    Replies,
    Reply,
    Task,
    Terms,
    did_you_mean,
    require_rate,
)
from ...core.errors import warn
from ...core.hashes import fingerprint, module_hash
from ...signing import ErasureRequest, check_request, require_unused, use_nonce
from ...tasks import Classification
from ..sequential import merge_replies
from .dialects import Dialect, Jobs, Weights
from .mail import Mail, lost, said
from .nodes import Node, Nodes
from .wire import Unreadable

SENDINGS = 3
"""How often a node gets its job in one exchange, if it disappears with it."""
LISTING = 1.0
"""Seconds between two looks for nodes that are away."""


@dataclass(frozen=True)
class Patience:
    """How long the server waits, in seconds."""

    reply: float = 600.0
    """For the reply to a message; who has not answered then is late."""
    absence: float = 120.0
    """For a client to come online, or to come back: once, then the run goes on without it until it is there.

    Flower notices a killed SuperNode after up to 60 seconds and lets it back in after about as long.
    """

    def __post_init__(self) -> None:
        require_rate("reply", self.reply)
        require_rate("absence", self.absence)


class FlowerFederation:
    """Carries jobs to the nodes of a Flower grid; made by ``connect`` or ``connect_existing``."""

    def __init__(
        self,
        grid: Grid,
        nodes: Nodes,
        dialect: Dialect,
        task: Task,
        patience: Patience,
        known: Mapping[str, Node],
    ) -> None:
        self._grid = grid
        self._nodes = nodes
        self._dialect = dialect
        self._task = task
        self._patience = patience
        self._known = set(known)
        self._fitting = {node.id: True for node in known.values()}
        self._given_up: set[str] = set()
        self._authorised: ClientId | None = None

    @property
    def task(self) -> Task:
        return self._task

    @property
    def authorised(self) -> ClientId | None:
        """The client whose signed request this federation may answer; None without one."""
        return self._authorised

    def present(self) -> frozenset[ClientId]:
        """Who is online, after waiting once for each client that was there before."""
        until, online = time.monotonic() + self._patience.absence, self._online()
        while self._known - online.keys() - self._given_up and time.monotonic() < until:
            time.sleep(min(LISTING, self._patience.absence / 10))
            online = self._online()
        self._given_up |= self._known - online.keys()
        return frozenset(c for name, node in online.items() for c in self._dialect.hosted(name, node))

    def authorise(
        self,
        client: ClientId,
        document: str,
        *,
        name: str,
        model: nn.Module | None,
        folder: Path | str,
        ledger: Path | str,
        now: float | None = None,
    ) -> ErasureRequest:
        """Checks a signed request of a client against the key that its SuperNode is registered with.

        ``name`` is that of the federation, and ``model`` the one to forget from; None is any model.
        ``folder`` is that of the run, which uses the request up: ``ledger``, one folder for the whole
        federation, remembers it, and a run in another folder is refused. ``now`` is when the request must be
        valid, in seconds since 1970. From then on only this client can be the target.
        """
        request = self.examine(
            client, document, name=name, model=model, folder=folder, ledger=ledger, now=now
        )
        use_nonce(Path(ledger), request, _run(folder, request))
        self._dialect.document, self._authorised = document, client
        return request

    def examine(
        self,
        client: ClientId,
        document: str,
        *,
        name: str,
        model: nn.Module | None,
        folder: Path | str,
        ledger: Path | str,
        now: float | None = None,
    ) -> ErasureRequest:
        """Check a signed request as ``authorise`` does, without using it up."""
        online = self._online()
        if client not in online:
            known = did_you_mean(client, online)
            raise FedUnlearnError(
                f"nobody is online under the name {client!r}{known}: start its SuperNode", code="absent"
            )
        if not online[client].registered:
            raise FedUnlearnError(
                f"{client!r} told its name itself, so its key proves nothing: register its SuperNode",
                code="client",
            )
        request = check_request(
            document,
            client=client,
            federation=name,
            model_sha256=None if model is None else module_hash(model),
            public_key=online[client].public_key,
            now=now,
        )
        require_unused(Path(ledger), request, _run(folder, request))
        return request

    def exchange(self, jobs: Mapping[ClientId, Job], terms: Terms = Terms()) -> Replies:
        self._dialect.begin(terms)
        by_node: dict[str, dict[ClientId, Job]] = {}
        for client, job in jobs.items():
            by_node.setdefault(client.partition("#")[0], {})[client] = job
        found: dict[ClientId, Reply | Failure] = {}
        missing: dict[ClientId, Failure] = {}
        mail: Mail[str] = Mail(self._grid)
        sent: Counter[str] = Counter()
        awaited = dict.fromkeys(by_node, time.monotonic() + self._patience.absence)
        looked = 0.0
        while awaited or mail.pending:
            if awaited and time.monotonic() - looked >= min(LISTING, self._patience.absence / 10):
                looked, online = time.monotonic(), self._online()
                for name in sorted(awaited.keys() & online.keys()):
                    message = self._dialect.ask(name, by_node[name])
                    if sent[name] < SENDINGS and mail.send(
                        name, online[name].id, *message, self._patience.reply
                    ):
                        sent[name] += 1
                        del awaited[name]
            for name in [n for n, until in awaited.items() if n in self._given_up or looked >= until]:
                del awaited[name]
                self._given_up.add(name)
                missing |= dict.fromkeys(by_node[name], Failure(Reason.ABSENT, "is not online"))
            arrived = mail.arrived()
            for name, reply in arrived:
                if lost(reply):
                    awaited[name] = time.monotonic() + self._patience.absence
                else:
                    found |= self._read(by_node[name], reply)
            for name in mail.overdue():
                late = Failure(Reason.LATE, f"did not answer within {self._patience.reply:.0f} s")
                missing |= dict.fromkeys(by_node[name], late)
            if not arrived and (awaited or mail.pending):
                mail.pause()
        return merge_replies(found, missing)

    def _read(self, jobs: Mapping[ClientId, Job], reply: Message) -> dict[ClientId, Reply | Failure]:
        if reply.has_error():
            return dict.fromkeys(jobs, _failure(reply))
        try:
            read = self._dialect.read(jobs, reply.content)
        except Unreadable as problem:
            return dict.fromkeys(jobs, problem.failure)
        silent = Failure(Reason.FIELD, "sent a message without its reply")
        return {client: read.get(client, silent) for client in jobs}

    def _online(self) -> dict[str, Node]:
        """The nodes that are online now and can take part."""
        listed = self._nodes.online(strict=False)
        online = {name: node for name, node in listed.items() if self._fits(name, node)}
        self._known |= online.keys()
        self._given_up -= online.keys()
        return online

    def _fits(self, name: str, node: Node) -> bool:
        """Whether a node that has come later can take part; one that cannot is left out with a warning."""
        if node.id not in self._fitting:
            try:
                self._dialect.check({name: node})
                self._fitting[node.id] = True
            except FedUnlearnError as error:
                warn(f"{error}; it is left out", "absent")
                self._fitting[node.id] = False
        return self._fitting[node.id]


class ExistingApp(FlowerFederation):
    """The federation of an app that has its own training functions."""

    def refusal(self, job: Job) -> str | None:
        """Why these functions cannot carry out a job, if so."""
        return self._dialect.refusal(job)


def connect(
    grid: Grid,
    model: nn.Module,
    *,
    task: Task = Classification(),
    clients: int | Sequence[ClientId] = 2,
    patience: Patience = Patience(),
    keys: Mapping[str, ClientId] | None = None,
    part: str | None = None,
) -> FlowerFederation:
    """The federation of the nodes whose ClientApp runs our client code (``serve``).

    It waits until as many ``clients`` are online, or those of the names given, and compares their models,
    tasks and methods with those of the server. ``keys`` names SuperNodes that were registered without a name,
    by ``key_id`` of their public key. ``part`` makes every job be about that part of a site's data.
    """
    nodes = Nodes(grid, seconds=patience.reply, ask_all=True, keys=keys)
    dialect = Jobs(model, task, part)
    return FlowerFederation(grid, nodes, dialect, task, patience, _roll(nodes, dialect, clients, patience))


def connect_existing(
    grid: Grid,
    model: nn.Module,
    *,
    losses: Collection[str] = ("uce",),
    task: Task = Classification(),
    clients: int | Sequence[ClientId] = 2,
    patience: Patience = Patience(),
    keys: Mapping[str, ClientId] | None = None,
) -> ExistingApp:
    """The federation of an existing app, whose clients train with their own code.

    ``losses`` are those that the ClientApp has a handler for beside its ordinary training:
    ``@app.train("uce")``. Names come from the registered SuperNodes, or from ``introduce``.
    """
    nodes = Nodes(grid, seconds=patience.reply, ask_all=False, keys=keys)
    dialect = Weights(model, losses)
    return ExistingApp(grid, nodes, dialect, task, patience, _roll(nodes, dialect, clients, patience))


def _roll(
    nodes: Nodes, dialect: Dialect, clients: int | Sequence[ClientId], patience: Patience
) -> dict[str, Node]:
    """The nodes that take part, once all that are wanted are online."""
    if isinstance(clients, str):
        raise FedUnlearnError(f"clients = {clients!r}: give their number, or a list of names")
    until, online = time.monotonic() + patience.absence, nodes.online()
    while (absent := _absent(clients, online)) and (time.monotonic() < until or nodes.awaited):
        time.sleep(min(LISTING, patience.absence / 10))
        online = nodes.online()
    if absent:
        waited = time.monotonic() - until + patience.absence
        seen = "".join(f"; a node {problem}" for problem in sorted({*nodes.problems.values()})[:1])
        raise FedUnlearnError(f"after {waited:.0f} s, {absent}: start the SuperNode{seen}", code="absent")
    dialect.check(online)
    return online


def _absent(clients: int | Sequence[ClientId], online: Mapping[str, Node]) -> str:
    """Who is not there yet; empty if everybody is."""
    if isinstance(clients, int):
        return f"{len(online)} of {clients} clients are online" if len(online) < clients else ""
    away = sorted({*clients} - online.keys())
    return f"client {away[0]!r} is not online{did_you_mean(away[0], online)}" if away else ""


def _failure(reply: Message) -> Failure:
    if reply.error.code in (ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE):
        return Failure(Reason.LATE, f"did not answer in time ({said(reply.error)})")
    return Failure(Reason.FAILED, f"failed with {said(reply.error)}")


def _run(folder: Path | str, request: ErasureRequest) -> str:
    """Return the name under which a run uses up a request."""
    return fingerprint([str(Path(folder).resolve()), request.model_sha256])
