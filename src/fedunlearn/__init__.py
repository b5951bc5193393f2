"""Federated unlearning: take a client's influence out of a trained model.

Everything here needs torch alone. Experiments from files are in ``fedunlearn.experiment``,
data sets in ``fedunlearn.data``, and the bare mathematics in ``fedunlearn.maths``.
"""

from . import methods
from .engines import Sequential
from .methods import Schedule
from .registry import method, model, objective
from .run import unlearn
from .types import (
    ClientData,
    ClientId,
    Event,
    Examples,
    FedUnlearnError,
    Job,
    LocalTraining,
    Outcome,
    Phase,
    Progress,
    Replies,
    Reply,
    Request,
    Stage,
    State,
    Status,
    Vector,
)
from .vectors import flatten

__version__ = "0.1.0"

__all__ = [
    "ClientData",
    "ClientId",
    "Event",
    "Examples",
    "FedUnlearnError",
    "Job",
    "LocalTraining",
    "Outcome",
    "Phase",
    "Progress",
    "Replies",
    "Reply",
    "Request",
    "Schedule",
    "Sequential",
    "Stage",
    "State",
    "Status",
    "Vector",
    "flatten",
    "method",
    "methods",
    "model",
    "objective",
    "unlearn",
]
