"""A request that is being answered, with what that takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from ..core import ClientId, Federation, State
from ..evidence import Evidence
from ..methods import recommended_options
from .desk import Attempt, Case, Desk
from .keys import Key

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

    def record(self, event: str, **fields: Any) -> None:
        self.desk.ledger.append(self.request, event, **fields)

    @property
    def attempt(self) -> Attempt:
        """The attempt that was admitted last."""
        attempt = self.case.attempt
        assert attempt is not None
        return attempt

    @property
    def options(self) -> Mapping[str, Any]:
        """The options of the method: those of the settings, or those with which it is recommended."""
        policy = self.desk.policy
        return policy.options if policy.method else recommended_options(self.attempt.method)
