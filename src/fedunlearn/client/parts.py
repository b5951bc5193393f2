"""Named examples: a client is divided into what stays and a virtual client with what is to be forgotten."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ..core import ClientId, FedUnlearnError, did_you_mean, hashes, require
from .data import ClientData, Data, digest, own_examples, part, size

Parts = Mapping[ClientId, tuple[int, ...]]
"""Positions in the training data of the real client, by virtual client: ``site-3#forget-1b9f03``."""


def parts_of(examples: object, clients: Mapping[ClientId, ClientData]) -> Parts:
    """The virtual clients that hold these examples; the same positions have the same name."""
    wanted = "a dict from clients to positions in their training data, such as {'site-3': [0, 7]}"
    require(isinstance(examples, Mapping) and len(examples) > 0, "examples", examples, wanted)
    assert isinstance(examples, Mapping)
    parts: dict[ClientId, tuple[int, ...]] = {}
    for client, given in examples.items():
        if client not in clients or "#" in client:
            raise FedUnlearnError(
                f"unknown client {client!r} in examples{did_you_mean(str(client), clients)}"
            )
        count = size(own_examples(clients[client]))
        try:
            rows = np.unique(found := np.asarray(list(given)))
        except (TypeError, ValueError):
            rows = found = np.empty(0)
        whole = rows.dtype.kind in "iu" and len(rows) > 0
        if not whole or found.shape != rows.shape or rows[0] < 0 or rows[-1] >= count:
            raise FedUnlearnError(
                f"examples of {client!r}: give a list of different whole numbers from 0 to {count - 1}, the "
                "positions in its training data (those of a mask are mask.nonzero().flatten())"
            )
        parts[f"{client}#forget-{hashes.fingerprint(rows.tolist())[:6]}"] = tuple(rows.tolist())
    return {name: parts[name] for name in sorted(parts)}


def remembered(earlier: Parts, begun: Mapping[str, Any], clients: Mapping[ClientId, ClientData]) -> Parts:
    """The parts after a recorded request; without those of clients whose data is given without them now."""
    named = {name: tuple(rows) for name, rows in begun["request"].get("examples", {}).items()}
    parts, digests = {**earlier, **named}, begun["data"]["sha256"]
    for name, rows in named.items():
        client = name.partition("#")[0]
        train = clients[client].train if client in clients else None
        if train is not None and digest(train) == digests[client]:
            parts = {other: kept for other, kept in parts.items() if other.partition("#")[0] != client}
        elif train is not None and (rows[-1] >= size(train) or digest(_taken(train, rows)) != digests[name]):
            raise FedUnlearnError(
                f"the data of client {client!r} is not that of which examples were forgotten by position: "
                "give it as it was, new examples last, or only what was left"
            )
    return parts


def divided(clients: Mapping[ClientId, ClientData], parts: Parts) -> dict[ClientId, ClientData]:
    """The clients without the examples of their parts, and the parts as virtual clients.

    What a set ``seen`` or ``forget`` has in common with the parts is unknown, so neither is kept. Canaries
    stay with the client.
    """
    found = dict(clients)
    for client in {name.partition("#")[0] for name in parts} & clients.keys():
        own = {name: rows for name, rows in parts.items() if name.partition("#")[0] == client}
        train, named = clients[client].train, [row for rows in own.values() for row in rows]
        left = sorted({*range(size(train))}.difference(named))
        sets = {n: held for n, held in clients[client].evaluations.items() if n not in ("seen", "forget")}
        try:
            if len(left) + len(named) > size(train):
                raise FedUnlearnError("some of them have been forgotten already: leave those out")
            if len(left) <= size(sets.get("canary-in", ())):
                raise FedUnlearnError("these are all that it holds, so name it as a target instead")
            found[client] = ClientData(_taken(train, left), sets)
            sets = {name: held for name, held in sets.items() if not name.startswith("canary")}
            for name, rows in own.items():
                held = _taken(train, rows)
                found[name] = ClientData(held, {**sets, "forget": held})
        except FedUnlearnError as error:
            raise FedUnlearnError(f"examples of {client!r}: {error}") from None
    return found


def _taken(data: Data, rows: Sequence[int]) -> Data:
    return part(data, torch.tensor(rows))
