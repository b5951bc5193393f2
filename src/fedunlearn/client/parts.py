"""Named examples: a client keeps what stays, and a virtual client holds what is to be forgotten."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import tensor

from ..core import ClientId, FedUnlearnError, did_you_mean, hashes, require
from .data import ClientData, digest, own_examples, part, size

Parts = Mapping[ClientId, tuple[int, ...]]
"""Positions in the training data of the real client, by virtual client: ``site-3#forget-1b9f03``."""


def parts_of(examples: Mapping[ClientId, Any], clients: Mapping[ClientId, ClientData]) -> Parts:
    """Return the virtual clients that hold these examples; the same positions have the same name."""
    wanted = "a dict from clients to positions in their training data, such as {'site-3': [0, 7]}"
    require(isinstance(examples, Mapping) and len(examples) > 0, "examples", examples, wanted)
    parts: dict[ClientId, tuple[int, ...]] = {}
    for client, given in examples.items():
        known = f"a client that holds data here{did_you_mean(str(client), clients)}"
        require(client in clients and "#" not in client, "name in examples", client, known)
        positions = tuple(sorted(_positions(client, given, size(own_examples(clients[client])))))
        parts[f"{client}#forget-{hashes.fingerprint(positions)[:6]}"] = positions
    return dict(sorted(parts.items()))


def _positions(client: ClientId, given: object, count: int) -> list[int]:
    """Return the positions; refuse any that are repeated or outside the client's examples."""
    listed = np.asarray(given, dtype=object)
    rows = listed.ravel().tolist()
    if not rows or not listed.ndim or listed.size != max(listed.shape):  # mask.nonzero() is of shape (n, 1)
        raise FedUnlearnError(f"examples[{client!r}] = {given!r}: give a list of positions, such as [0, 7]")
    first: dict[int, int] = {}
    for number, row in enumerate(rows):
        where = f"examples[{client!r}][{number}] = {row!r}"
        if isinstance(row, bool | np.bool_):
            raise FedUnlearnError(f"{where}: give positions, which are mask.nonzero() of a mask")
        if not isinstance(row, int | np.integer):
            raise FedUnlearnError(f"{where}: a position is a whole number")
        if not 0 <= row < count:
            raise FedUnlearnError(
                f"{where}: the client has {count} examples, so positions go from 0 to {count - 1}"
            )
        if first.setdefault(int(row), number) != number:
            raise FedUnlearnError(f"{where}: examples[{client!r}][{first[int(row)]}] names it already")
    return list(first)


def divided(clients: Mapping[ClientId, ClientData], parts: Parts) -> dict[ClientId, ClientData]:
    """Return the clients without the examples of their parts, and the parts as virtual clients.

    The overlap of a set ``seen`` or ``forget`` with the parts is unknown, so neither is kept. Canaries stay
    with the client.
    """
    found = dict(clients)
    for client in {name.partition("#")[0] for name in parts} & clients.keys():
        own = {name: tensor(rows) for name, rows in parts.items() if name.partition("#")[0] == client}
        train, removed = clients[client].train, [row for rows in own.values() for row in rows.tolist()]
        left = sorted({*range(size(train))}.difference(removed))
        sets = {n: held for n, held in clients[client].evaluations.items() if n not in ("seen", "forget")}
        plain = {name: held for name, held in sets.items() if not name.startswith("canary")}
        try:
            if twice := sorted(row for row, times in Counter(removed).items() if times > 1):
                few = ", ".join(map(str, twice[:5])) + (" and others" if len(twice) > 5 else "")
                which = f"s {few} have" if len(twice) > 1 else f" {few} has"
                raise FedUnlearnError(
                    f"position{which} been forgotten already: leave that out", code="forgotten"
                )
            if len(left) <= size(sets.get("canary-in", ())):
                raise FedUnlearnError("these are all that it holds, so name it as a target instead")
            found[client] = ClientData(part(train, tensor(left), shuffled=True), sets)
            for name, rows in own.items():
                found[name] = ClientData(
                    named := part(train, rows, shuffled=True), {**plain, "forget": named}
                )
        except FedUnlearnError as error:
            raise FedUnlearnError(f"examples of {client!r}: {error}", code=error.code) from None
    return found


def remembered(earlier: Parts, begun: Mapping[str, Any], clients: Mapping[ClientId, ClientData]) -> Parts:
    """Return the parts after a recorded request, without those that their clients' data now lacks."""
    named = {name: tuple(rows) for name, rows in begun["request"].get("examples", {}).items()}
    parts, digests = {**earlier, **named}, begun["data"]["sha256"]
    for name, rows in named.items():
        held = clients.get(client := name.partition("#")[0])
        if held is not None and digest(held.train) == digests[client]:
            parts = {other: kept for other, kept in parts.items() if other.partition("#")[0] != client}
        elif held is not None and (
            rows[-1] >= size(held.train) or digest(part(held.train, tensor(rows))) != digests[name]
        ):
            raise FedUnlearnError(
                f"{client!r} forgot examples by position, and its data has changed: give it as it was, new "
                "examples last, or only what was left",
                code="changed",
            )
    return parts
