"""A federation over a Flower grid: the driver in a ServerApp talks to clients on SuperNodes."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from flwr.app import Message
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from torch import nn

from ...authority import ErasureRequest, check_request, use_nonce
from ...client.losses import forgets
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
from ...core.hashes import fingerprint, module_hash
from ...tasks import Classification
from ..sequential import sorted_out
from .dialects import Dialect, Jobs, Weights
from .mail import Mail, last_line, lost
from .nodes import Node, Nodes
from .wire import Unreadable


@dataclass(frozen=True)
class Patience:
    """How long the server waits, in seconds."""

    reply: float = 600.0
    """For the replies of one exchange; who has not answered then is late."""
    absence: float = 120.0
    """For a client that is gone to come back: once, then the run goes on without it until it is back.

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
        self._checked = {node.id: True for node in known.values()}
        self._given_up: set[str] = set()
        self._authorised: ClientId | None = None

    @property
    def task(self) -> Task:
        return self._task

    def present(self) -> frozenset[ClientId]:
        online = self._online()
        return frozenset(c for name, node in online.items() for c in self._dialect.hosted(name, node))

    def authorise(
        self, client: ClientId, document: str, *, name: str, model: nn.Module, folder: Path | str
    ) -> ErasureRequest:
        """Checks a signed request of a client against the key that its SuperNode is registered with.

        ``name`` is that of the federation, ``model`` the one to forget from, and ``folder`` that of the run,
        which uses the request up: no other run can use it again. From then on nobody else can be unlearned.
        """
        online = self._online([client])
        if client not in online:
            raise FedUnlearnError(f"nobody is online under the name {client!r}{did_you_mean(client, online)}")
        place = Path(folder).resolve()
        request = check_request(
            document,
            client=client,
            federation=name,
            model_sha256=module_hash(model),
            public_key=online[client].public_key,
        )
        use_nonce(place.parent / "used-requests", request, fingerprint([str(place), request.model_sha256]))
        self._dialect.document, self._authorised = document, client
        return request

    def exchange(self, jobs: Mapping[ClientId, Job], terms: Terms = Terms()) -> Replies:
        for client, job in jobs.items():
            if self._authorised not in (None, client) and forgets(job):
                raise FedUnlearnError(f"{client} has not asked to be forgotten: {self._authorised} has")
        self._dialect.begin(terms)
        by_node: dict[str, dict[ClientId, Job]] = {}
        for client, job in jobs.items():
            by_node.setdefault(client.partition("#")[0], {})[client] = job
        found: dict[ClientId, Reply | Failure] = {}
        missing: dict[ClientId, Failure] = {}
        mail: Mail[str] = Mail(self._grid, self._patience.reply)
        gone: set[str] = set(by_node)
        while gone or mail.pending:
            if gone:
                gone = self._send(mail, {name: by_node[name] for name in sorted(gone)})
                for name in gone & self._given_up:
                    missing |= dict.fromkeys(by_node[name], Failure(Reason.ABSENT, "is not online"))
                gone -= self._given_up
            for name, reply in mail.arrived():
                if lost(reply):
                    gone.add(name)
                else:
                    found |= self._read(by_node[name], reply)
            if mail.seconds_left <= 0:
                late = Failure(Reason.LATE, f"did not answer within {self._patience.reply:.0f} s")
                missing |= {c: late for name in {*mail.pending.values(), *gone} for c in by_node[name]}
                break
        return sorted_out(found, missing)

    def _send(self, mail: Mail[str], asked: Mapping[str, Mapping[ClientId, Job]]) -> set[str]:
        """Sends each node its jobs; returns the nodes that are not there."""
        online = self._online(asked)
        return {
            name
            for name, jobs in asked.items()
            if name not in online or not mail.send(name, online[name].id, *self._dialect.ask(name, jobs))
        }

    def _read(self, jobs: Mapping[ClientId, Job], reply: Message) -> dict[ClientId, Reply | Failure]:
        if reply.has_error():
            return dict.fromkeys(jobs, _failure(reply))
        try:
            read = self._dialect.read(jobs, reply.content)
        except Unreadable as problem:
            return dict.fromkeys(jobs, problem.failure)
        silent = Failure(Reason.FIELD, "sent a message without its reply")
        return {client: read.get(client, silent) for client in jobs}

    def _online(self, wanted: Collection[str] = ()) -> dict[str, Node]:
        """Who is online, after waiting for those who were there before and have not been given up."""
        until = time.monotonic() + self._patience.absence
        while True:
            online = {name: node for name, node in self._nodes.online().items() if self._fits(name, node)}
            self._given_up -= online.keys()
            away = ({*self._known, *wanted} - online.keys()) - self._given_up
            if not away:
                break
            if time.monotonic() >= until:
                self._given_up |= away
                break
            time.sleep(min(1.0, self._patience.absence / 10))
        self._known |= online.keys()
        return online

    def _fits(self, name: str, node: Node) -> bool:
        """Whether a node that has come later can take part; one that cannot is left out with a warning."""
        if node.id not in self._checked:
            try:
                self._dialect.check({name: node})
                self._checked[node.id] = True
            except FedUnlearnError as error:
                warnings.warn(f"{error}; it is left out", stacklevel=5)
                self._checked[node.id] = False
        return self._checked[node.id]


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
    enough = _enough(clients)
    until = time.monotonic() + patience.absence
    online = nodes.online()
    while not enough(online) and time.monotonic() < until:
        time.sleep(min(1.0, patience.absence / 10))
        online = nodes.online()
    if not enough(online):
        raise FedUnlearnError(_too_few(clients, online, patience))
    dialect.check(online)
    return online


def _enough(clients: int | Sequence[ClientId]) -> Callable[[Mapping[str, Node]], bool]:
    if isinstance(clients, int):
        return lambda online: len(online) >= clients
    return lambda online: {*clients} <= online.keys()


def _too_few(clients: int | Sequence[ClientId], online: Mapping[str, Node], patience: Patience) -> str:
    waited = f"after {patience.absence:.0f} s"
    if isinstance(clients, int):
        return f"{len(online)} of {clients} clients are online {waited}: start their SuperNodes"
    absent = min({*clients} - online.keys())
    return f"client {absent!r} is not online {waited}{did_you_mean(absent, online)}: start its SuperNode"


def _failure(reply: Message) -> Failure:
    if reply.error.code in (ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE):
        return Failure(Reason.LATE, f"did not answer in time ({last_line(reply.error)})")
    return Failure(Reason.FAILED, f"failed with {last_line(reply.error)}")
