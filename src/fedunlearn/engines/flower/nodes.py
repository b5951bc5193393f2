"""Who is there: nodes under the names that they are registered with, and what they say about themselves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flwr.app import ConfigRecord, RecordDict
from flwr.serverapp import Grid

from ...core import FedUnlearnError
from ...core.errors import warn
from ...signing import key_id
from .mail import Mail, lost, said
from .wire import HELLO, Unreadable, text

ATTEMPTS = 5
"""How often a node is asked who it is."""
LONGEST_NAME = 200


@dataclass(frozen=True)
class About:
    """What a node tells about itself."""

    name: str = ""
    fingerprint: str = ""
    task: Mapping[str, Any] = field(default_factory=dict)
    knows: frozenset[str] = frozenset()
    parts: tuple[str, ...] = ("",)
    versions: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, told: object) -> About:
        """Checks what a node sent."""
        if not isinstance(told, dict):
            raise Unreadable("no description of itself")
        known = {key: value for key, value in told.items() if key in cls.__dataclass_fields__}
        for key in ("knows", "parts"):
            if key in known and not _texts(known[key]):
                raise Unreadable(f"{key} that are no list of names")
            known[key] = tuple(known.get(key, getattr(cls(), key)))
        for key in ("task", "versions"):
            if not isinstance(known.get(key, {}), dict):
                raise Unreadable(f"{key} that is no table")
        if not _texts([known.get("name", ""), known.get("fingerprint", "")]):
            raise Unreadable("no text as its name")
        return cls(**{**known, "knows": frozenset(known["knows"])})


def _texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


@dataclass(frozen=True)
class Node:
    """A node that is online."""

    id: int
    public_key: bytes
    registered: bool
    """Whether its name comes from its registration, and not from itself."""
    about: About


class Nodes:
    """The nodes of a federation by their stable names: Flower's own ids change when a node restarts.

    A name is the one that the SuperNode is registered with, or the one that ``keys`` has for its key. Where
    no node is registered, as in a simulation, nodes tell their names themselves.
    """

    def __init__(
        self, grid: Grid, *, seconds: float, ask_all: bool, keys: Mapping[str, str] | None = None
    ) -> None:
        self._grid = grid
        self._seconds = seconds
        self._ask_all = ask_all
        self._keys = dict(keys or {})
        self._mail: Mail[int] = Mail(grid)
        self._asked: Counter[int] = Counter()
        self._told: dict[int, About] = {}
        self.problems: dict[int, str] = {}
        """Why a node that is online does not take part."""

    @property
    def awaited(self) -> bool:
        """Whether a node has been asked who it is and may still answer."""
        return bool(self._mail.pending)

    def online(self, *, strict: bool = True) -> dict[str, Node]:
        """The nodes by name, without waiting for any.

        Two nodes of one name are refused, because nobody can say which one is meant; if not ``strict``, both
        are left out.
        """
        infos = {info.node_id: info for info in self._grid.get_nodes()}
        registered = {key: self._registered(info.name, info.public_key) for key, info in infos.items()}
        anonymous = not any(registered.values())
        self._ask([key for key in sorted(infos) if self._ask_all or anonymous])
        found: dict[str, Node] = {}
        twice: set[str] = set()
        for key in sorted(infos):
            about = self._told.get(key)
            if about is None and (self._ask_all or anonymous):
                continue
            name = about.name if anonymous and about is not None else registered[key]
            if problem := _bad(name):
                self._leave_out(key, problem)
                continue
            twice |= {name} & found.keys()
            found[name] = Node(key, bytes(infos[key].public_key), not anonymous, about or About())
        for name in sorted(twice):
            told = f"two nodes are online under the name {name!r}"
            if strict:
                raise FedUnlearnError(
                    f"{told}: give each SuperNode a name of its own and register it again", code="client"
                )
            self._leave_out(found.pop(name).id, f"is one of two: {told}")
        return found

    def _ask(self, keys: list[int]) -> None:
        """Asks nodes who they are, and hears those who have answered."""
        busy = self._mail.pending
        for key in keys:
            if key not in self._told and key not in busy and self._asked[key] < ATTEMPTS:
                self._asked[key] += 1
                content = RecordDict({"hello": ConfigRecord()})
                self._mail.send(key, key, HELLO, content, self._seconds)
        for key, reply in self._mail.arrived():
            if lost(reply):
                continue  # it is asked again when it is back
            try:
                if reply.has_error():
                    if "No query function registered" in (reply.error.reason or ""):
                        raise Unreadable(
                            "no name: register its SuperNode with --name, or call flower.introduce or "
                            "flower.serve in the ClientApp; an error"
                        )
                    raise Unreadable(f"an error ({said(reply.error)})")
                self._told[key] = About.read(text(reply.content, "hello"))
                self.problems.pop(key, None)
            except Unreadable as problem:
                self._leave_out(key, f"{problem.failure.detail} when asked who it is")
        for key in self._mail.overdue():
            self._leave_out(key, f"failed to say who it is within {self._seconds:.0f} s")

    def _leave_out(self, key: int, problem: str) -> None:
        if self.problems.get(key) != problem:
            self.problems[key] = problem
            warn(f"a node {problem}; it is left out", "absent")

    def _registered(self, name: str, public_key: bytes) -> str:
        """The name of a registered node; every node has a key, but only a registered one keeps it."""
        if name or not self._keys:
            return name
        try:
            return self._keys.get(key_id(public_key), "")
        except FedUnlearnError:
            return ""


def _bad(name: str) -> str | None:
    """Why a client cannot have a name, if so: after ``#`` comes that of a virtual client."""
    if not name:
        return "has no registered name"
    if "#" in name or not name.isprintable() or len(name) > LONGEST_NAME:
        return f"has a name that cannot be used, {name[:LONGEST_NAME]!r}: leave out # and special characters"
    return None
