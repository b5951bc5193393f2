"""Runs phases on a federation: rounds, participation, stop rules, probes, events."""

from .guards import Guards
from .loop import unlearn
from .participation import Participation
from .probes import Conflicts, Exchange, Probe
from .progress import log_rounds
from .stopping import Above, Below, StopRule

__all__ = [
    "Above",
    "Below",
    "Conflicts",
    "Exchange",
    "Guards",
    "Participation",
    "Probe",
    "StopRule",
    "log_rounds",
    "unlearn",
]
