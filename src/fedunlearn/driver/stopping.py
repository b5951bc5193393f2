"""Rules that end an unlearning phase before its rounds are up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ..core import ClientId, FedUnlearnError, Metrics


class NotMeasured(FedUnlearnError):
    """A stop rule has nothing to go by."""


class StopRule(Protocol):
    """Decides for each target whether it has been unlearned enough."""

    def met(self, metrics: Metrics, target: ClientId) -> bool:
        """Whether these measures, those of the target or of the model, meet the rule."""
        ...


@dataclass(frozen=True)
class Below:
    """A measure of the target, or of the model where it is not taken of targets, is below a value."""

    key: str
    value: float

    def met(self, metrics: Metrics, target: ClientId) -> bool:
        return measured(metrics, self.key, target) < self.value


@dataclass(frozen=True)
class Above:
    """A measure of the target, or of the model where it is not taken of targets, is above a value."""

    key: str
    value: float

    def met(self, metrics: Metrics, target: ClientId) -> bool:
        return measured(metrics, self.key, target) > self.value


def measured(metrics: Metrics, key: str, target: ClientId) -> float:
    """The measure, or a refusal where there is none."""
    if key in metrics:
        return float(metrics[key])
    raise NotMeasured(
        f"a stop rule needs {key!r}, which is not measured here: give {target} an evaluation set that it "
        "is measured on, or use another measure"
    )
