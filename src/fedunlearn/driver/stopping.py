"""Rules that end an unlearning phase before its rounds are up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ..core import ClientId, FedUnlearnError, Metrics, require_type


class NotMeasured(FedUnlearnError):
    """A stop rule needs a measure that is not taken."""

    code = "not-measured"


class StopRule(Protocol):
    """Decides for each target whether it is unlearned enough."""

    def met(self, metrics: Metrics, target: ClientId) -> bool:
        """Return whether these measures, of the target or of the model, meet the rule."""
        ...


@dataclass(frozen=True)
class _Threshold:
    key: str
    value: float

    def __post_init__(self) -> None:
        require_type(isinstance(self.key, str), "key", self.key, "give the name of a measure, such as 'asr'")
        fine = isinstance(self.value, int | float) and not isinstance(self.value, bool)
        require_type(fine, "value", self.value, "give a number")


class Below(_Threshold):
    """A measure of the target, or of the model if targets have none, is below a value."""

    def met(self, metrics: Metrics, target: ClientId) -> bool:
        return measured(metrics, self.key, target) < self.value


class Above(_Threshold):
    """A measure of the target, or of the model if targets have none, is above a value."""

    def met(self, metrics: Metrics, target: ClientId) -> bool:
        return measured(metrics, self.key, target) > self.value


def require_rules(stop: object) -> None:
    """Refuse anything but a list of rules."""
    remedy = "give a list of rules, such as [Below('asr', 0.1)]"
    require_type(isinstance(stop, Sequence), "stop", stop, remedy)
    assert isinstance(stop, Sequence)
    for rule in stop:
        require_type(callable(getattr(rule, "met", None)), "a rule of stop", rule, remedy)


def measured(metrics: Metrics, key: str, target: ClientId) -> float:
    """Return the measure; refuse if there is none."""
    if key in metrics:
        return float(metrics[key])
    raise NotMeasured(
        f"a stop rule needs {key!r}, which is not measured here: give {target} an evaluation set that it "
        "is measured on, or use another measure"
    )
