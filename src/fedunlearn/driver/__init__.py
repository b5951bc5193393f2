"""Runs phases on a federation: rounds, participation, stop rules, probes, events."""

from .guards import Guards
from .loop import Question, course, in_lockstep, unlearn
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
    "Question",
    "StopRule",
    "course",
    "in_lockstep",
    "log_rounds",
    "unlearn",
]
