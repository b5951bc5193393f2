"""Who is there: nodes under the names that they are registered with."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flwr.app import ConfigRecord, RecordDict
from flwr.serverapp import Grid

from ...authority import key_id
from ...core import FedUnlearnError
from .mail import Mail, last_line, lost
from .wire import HELLO, Unreadable, text


@dataclass(frozen=True)
class Node:
    """A node that is online."""

    id: int
    public_key: bytes
    about: Mapping[str, Any] = field(default_factory=dict)
    """What it told about itself; empty if it was not asked."""


class Nodes:
    """The nodes of a federation by their stable names: Flower's own ids change when a node restarts.

    A name is the one that the SuperNode is registered with, or the one that ``keys`` has for its key. A node
    with neither, as in a simulation, tells its name itself.
    """

    def __init__(
        self, grid: Grid, *, seconds: float, ask_all: bool, keys: Mapping[str, str] | None = None
    ) -> None:
        self._grid = grid
        self._seconds = seconds
        self._ask_all = ask_all
        self._keys = dict(keys or {})
        self._told: dict[int, Mapping[str, Any] | str] = {}

    def online(self) -> dict[str, Node]:
        """The nodes by name; two nodes of one name are refused, because nobody can say which one is meant."""
        infos = {info.node_id: info for info in self._grid.get_nodes()}
        named = {key: self._registered(info.name, info.public_key) for key, info in infos.items()}
        unknown = [key for key in sorted(infos) if key not in self._told]
        self._ask([key for key in unknown if self._ask_all or not named[key]])
        found: dict[str, Node] = {}
        for key in sorted(infos):
            told = self._told.get(key, "not asked" if self._ask_all else {})
            if isinstance(told, str):
                continue
            name = named[key] or str(told.get("name", ""))
            if not name:
                continue
            if name in found:
                raise FedUnlearnError(
                    f"two nodes are online under the name {name!r}: give each SuperNode a name of its own "
                    "and register it again"
                )
            found[name] = Node(key, bytes(infos[key].public_key), told)
        return found

    def _ask(self, keys: list[int]) -> None:
        """Asks nodes who they are; one that fails to answer is left out, with a warning."""
        mail: Mail[int] = Mail(self._grid, self._seconds)
        for key in keys:
            mail.send(key, key, HELLO, RecordDict({"hello": ConfigRecord()}))
        while mail.pending and mail.seconds_left > 0:
            for key, reply in mail.arrived():
                if lost(reply):
                    continue  # it is asked again when it is back
                try:
                    if reply.has_error():
                        raise Unreadable(f"an error ({last_line(reply.error)})")
                    told = text(reply.content, "hello")
                    self._told[key] = told if isinstance(told, dict) else {}
                except Unreadable as problem:
                    self._told[key] = problem.failure.detail
                    warnings.warn(f"a node {problem.failure.detail} when asked who it is", stacklevel=3)
        for key in mail.pending.values():
            warnings.warn(
                f"a node failed to say who it is within {self._seconds:.0f} s and is left out", stacklevel=3
            )
            self._told[key] = "no answer"

    def _registered(self, name: str, public_key: bytes) -> str:
        """The name of a registered node; every node has a key, but only a registered one keeps it."""
        return name or (self._keys.get(key_id(public_key), "") if self._keys else "")
