"""Participation: the clients that take part in a round."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ..core import ClientId, require, require_count
from ..core.seeds import generator


@dataclass(frozen=True)
class Participation:
    """The share or number of clients in each round, drawn by a derived seed; targets are always asked."""

    share: float = 1.0
    """The share of the clients that can train, rounded up."""
    count: int | None = None
    """A number of clients instead of a share."""
    minimum: int = 1
    """The run stops, to be resumed later, if fewer are present or answer."""
    redo: int = 0
    """The number of times that a client without a usable reply is asked again in the same exchange.

    Clients that are absent or late are not: they would have to work off old messages first.
    """

    def __post_init__(self) -> None:
        require(
            isinstance(self.share, int | float) and 0 < self.share <= 1,
            "share",
            self.share,
            "above 0 and at most 1",
        )
        require_count("minimum", self.minimum, 1)
        require_count("redo", self.redo)
        if self.count is not None:
            require_count("count", self.count, 1)
            require(self.count >= self.minimum, "count", self.count, f"at least the minimum, {self.minimum}")

    def draw(self, clients: Sequence[ClientId], *names: object) -> tuple[ClientId, ...]:
        """Return the participants, in the order of the clients; the names decide who is drawn."""
        wanted = math.ceil(self.share * len(clients) - 1e-9) if self.count is None else self.count
        wanted = max(wanted, self.minimum)
        if wanted >= len(clients):
            return tuple(clients)
        ordered = sorted(clients)
        places = torch.randperm(len(clients), generator=generator("participation", *names))[:wanted]
        drawn = {ordered[place] for place in places.tolist()}
        return tuple(client for client in clients if client in drawn)
