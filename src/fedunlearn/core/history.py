"""What training leaves behind for later requests: running sums by kind and client, never single updates.

Everything is kept for every client, because nobody knows yet who will leave.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from .errors import FedUnlearnError, require_type
from .messages import ClientId, Replies, Vector
from .registry import did_you_mean
from .state import State

Rows = Mapping[ClientId, Tensor]
GROUPS = ("member", "slice")


@dataclass(frozen=True)
class HeardRound:
    """One round of averaging, as a history hears it."""

    state: State
    """Before the round."""
    replies: Replies
    clients: tuple[ClientId, ...]
    """Everybody, whether they took part or not."""
    shapes: Mapping[str, torch.Size]


@dataclass(frozen=True)
class History:
    """What was recorded, by kind and client; it serves any number of requests."""

    rows: Mapping[str, Rows] = field(default_factory=dict)
    shared: Mapping[str, Tensor] = field(default_factory=dict)
    """What belongs to no client: starting models, sums over rounds."""

    def of(self, kind: str, client: ClientId) -> Tensor:
        """What was recorded of that kind about a client."""
        if client not in self.rows.get(kind, {}):
            raise FedUnlearnError(
                f"the history has no {kind} of client {client!r}: "
                "methods that need history forget whole clients that trained and have forgotten no examples",
                code="history",
            )
        return self.rows[kind][client]

    @property
    def kinds(self) -> frozenset[str]:
        return frozenset({*self.rows, *self.shared})

    def hear(self, kinds: Collection[str], round: HeardRound) -> History:
        """This history with one round more."""
        require_kinds(kinds)
        heard = self
        for kind in ("share", *sorted(kinds)) if kinds else ():
            rows, shared = KINDS[kind](heard, round) if kind in KINDS else (_share(round), {})
            heard = History(
                {**heard.rows, kind: {**heard.rows.get(kind, {}), **rows}}, {**heard.shared, **shared}
            )
        return heard

    def without(self, clients: Iterable[ClientId]) -> History:
        """This history without the rows of clients that have been forgotten, and without models of theirs.

        The local models of all clients go as well: their training began with a model that knew the others.
        A client whose part (``site-3#forget``) is gone keeps its place in a group, and no more.
        """
        named = frozenset(clients)
        gone = {name for client in named for name in (client, client.partition("#")[0])}
        left = {f"cluster-{int(row)}" for c, row in self.rows.get("member", {}).items() if c in gone}
        for client in gone & self.rows.get("slice", {}).keys():
            shard, slice = map(int, self.rows["slice"][client])
            later = range(slice + 1, len(self.shared["slice-decays"]))
            left |= {f"slice-{shard}", *(f"slice-{shard}-{number}" for number in later)}
        return History(
            {
                kind: {c: row for c, row in rows.items() if c not in (named if kind in GROUPS else gone)}
                for kind, rows in self.rows.items()
                if kind != "locals"
            },
            {name: value for name, value in self.shared.items() if name not in left},
        )

    def only(self, kinds: Collection[str], *, common: bool = True) -> History:
        """The part that methods with these needs read; ``common`` includes what is kept with any kind."""
        kept = {*kinds, *(("share", "member") if common else ())}
        return History(
            {kind: rows for kind, rows in self.rows.items() if kind in kept},
            {name: value for name, value in self.shared.items() if name.partition("-")[0] in kept},
        )

    def tensors(self) -> dict[str, Tensor]:
        """Everything by one name each, as checkpoints store it: ``kind/client``, or a shared name."""
        named = {f"{kind}/{client}": row for kind, rows in self.rows.items() for client, row in rows.items()}
        return {**named, **self.shared}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> History:
        """The history that ``tensors`` named."""
        rows: dict[str, dict[ClientId, Tensor]] = {}
        shared: dict[str, Tensor] = {}
        for name, value in tensors.items():
            kind, separator, client = name.partition("/")
            if separator:
                rows.setdefault(kind, {})[client] = value
            else:
                shared[name] = value
        return cls(rows, shared)


def _share(round: HeardRound) -> Rows:
    """p_i, each client's share of the examples in the last round it took part in."""
    return {c: torch.tensor(p) for c, p in zip(round.replies, round.replies.weights(), strict=True)}


def _norms(history: History, round: HeardRound) -> tuple[Rows, Mapping[str, Tensor]]:
    """‖U_i‖ by round and parameter tensor, and the model of the first round."""
    sizes = [shape.numel() for shape in round.shapes.values()]
    rows = {client: torch.zeros(1, max(1, len(sizes))) for client in round.clients}
    for client, reply in round.replies.items():
        pieces = reply.moved.split(sizes) if sizes else [reply.moved]
        rows[client] = torch.stack([torch.linalg.vector_norm(piece) for piece in pieces]).unsqueeze(0)
    before = history.rows.get("norms", {})
    so_far = max((len(row) for row in before.values()), default=0)
    absent = torch.zeros(so_far, max(1, len(sizes)))  # a client that joins later was away until now
    return (
        {client: torch.cat([before.get(client, absent), row]) for client, row in rows.items()},
        {"norms": history.shared.get("norms", round.state.params)},
    )


def _residuals(history: History, round: HeardRound) -> tuple[Rows, Mapping[str, Tensor]]:
    """Σ a_t (U_i − Ū) with a_t = ‖Ū‖²/η²; beside them the number of rounds and Σ a_t."""
    mean = round.replies.average()
    weight = float(torch.linalg.vector_norm(mean, dtype=torch.float64)) ** 2 / round.state.lr**2
    so_far = history.shared.get("residuals", torch.zeros(2, dtype=torch.float64))
    terms = {client: weight * (mean - reply.moved) for client, reply in round.replies.items()}
    return (
        _added("residuals", history, terms),
        {"residuals": so_far + torch.tensor([1, weight], dtype=torch.float64)},
    )


def _updates(history: History, round: HeardRound) -> tuple[Rows, Mapping[str, Tensor]]:
    """Σ p_i U_i: all that a client ever added to the model."""
    shares = zip(round.replies.items(), round.replies.weights(), strict=True)
    return _added("updates", history, {c: -share * reply.moved for (c, reply), share in shares}), {}


def _locals(history: History, round: HeardRound) -> tuple[Rows, Mapping[str, Tensor]]:
    """ω_i of the last round; empty for a client that missed it."""
    replies, params = round.replies, round.state.params
    return {c: params - replies[c].moved if c in replies else torch.empty(0) for c in round.clients}, {}


def _added(kind: str, history: History, terms: Mapping[ClientId, Vector]) -> Rows:
    before = history.rows.get(kind, {})
    return {client: before.get(client, torch.zeros_like(term)) + term for client, term in terms.items()}


KINDS: Mapping[str, Callable[[History, HeardRound], tuple[Rows, Mapping[str, Tensor]]]] = {
    "norms": _norms,
    "residuals": _residuals,
    "updates": _updates,
    "locals": _locals,
}


def sorted_kinds(given: Iterable[str]) -> tuple[str, ...]:
    """The kinds of history, each once."""
    fine = isinstance(given, Iterable) and not isinstance(given, str)
    require_type(fine, "history", given, "give a list of kinds, such as ['updates']")
    kinds = tuple(given)
    require_kinds(kinds)
    return tuple(sorted(set(kinds)))


def require_kinds(kinds: Iterable[str]) -> None:
    """Refuses a kind of history that nobody knows how to record."""
    for kind in kinds:
        if kind not in KINDS:
            raise FedUnlearnError(f"unknown history {kind!r}{did_you_mean(kind, KINDS)}", code="unknown")


def size(kinds: Collection[str], clients: int, parameters: int, tensors: int, rounds: int) -> int:
    """The bytes that a history grows to."""
    floats = {"norms": rounds * clients * max(1, tensors) + parameters}
    return 4 * sum(floats.get(kind, clients * parameters) for kind in kinds)
