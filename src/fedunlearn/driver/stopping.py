"""Rules that end an unlearning phase before its rounds are up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ..core import ClientId, FedUnlearnError, Metrics


class StopRule(Protocol):
    """Decides for each target whether it has been unlearned enough."""

    def met(self, metrics: Metrics, target: ClientId) -> bool: ...


@dataclass(frozen=True)
class Below:
    """A measure of the target, or of the model where there is none of the target, is below a value."""

    key: str
    value: float

    def met(self, metrics: Metrics, target: ClientId) -> bool:
        return measured(metrics, self.key, target) < self.value


@dataclass(frozen=True)
class Above:
    """A measure of the target, or of the model where there is none of the target, is above a value."""

    key: str
    value: float

    def met(self, metrics: Metrics, target: ClientId) -> bool:
        return measured(metrics, self.key, target) > self.value


def measured(metrics: Metrics, key: str, target: ClientId) -> float:
    """The measure of one target where it is taken for each, else that of all."""
    for name in (f"{key} {target}", key):
        if name in metrics:
            return float(metrics[name])
    raise FedUnlearnError(
        f"a stop rule needs {key!r}, which is not measured here: give {target} an evaluation set that it "
        "is measured on, or use another measure"
    )
