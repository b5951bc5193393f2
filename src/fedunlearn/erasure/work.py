"""A request that is being answered, with what that takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from ..core import ClientId, Federation, State
from ..evidence import Evidence
from .desk import Case, Desk
from .keys import Key
from .request_state import RequestState

Auditor = Callable[[State, State], Evidence]
"""Compares the model after the request with the one before it."""

RUN = "run"
"""The folder of the run."""


@dataclass(frozen=True)
class Work:
    """A request with what is needed to answer it."""

    desk: Desk
    request: str
    client: ClientId
    federation: Federation
    model: nn.Module
    gone: bool
    engine: str

    @property
    def place(self) -> Path:
        return self.desk.place(self.request)

    @property
    def key(self) -> Key:
        return self.desk.key(self.request)

    @property
    def case(self) -> Case:
        return self.desk.case(self.request)

    def tell(self, event: str, **fields: Any) -> None:
        self.desk.ledger.append(self.request, event, **fields)

    @property
    def method(self) -> str:
        """The method that was admitted."""
        admitted = self.case.last(RequestState.ADMITTED)
        assert admitted is not None
        return str(admitted.fields["method"])
