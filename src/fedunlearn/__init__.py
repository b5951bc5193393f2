"""Federated unlearning: remove a client's influence from a model trained by federated learning.

Experiments from files are in ``fedunlearn.experiment``, data sets in ``fedunlearn.data``, and the mathematics
alone, which needs nothing but torch, in ``fedunlearn.maths``.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .auditing import audit
    from .client.data import ClientData, Examples
    from .core import (
        ClientId,
        Event,
        Federation,
        FedUnlearnError,
        FedUnlearnWarning,
        History,
        Job,
        LabelTask,
        LocalTraining,
        Mean,
        Outcome,
        Phase,
        Progress,
        Replies,
        Reply,
        Request,
        Round,
        Stage,
        State,
        Status,
        Task,
        Terms,
        Vector,
        train,
    )
    from .core.hashes import module_hash
    from .core.registry import loss, method, model, step, work
    from .core.vectors import flatten, load, shapes
    from .driver import Above, Below, Conflicts, Guards, Participation, unlearn
    from .engines import Parallel, Sequential, simulate
    from .evidence import Evidence, Relearning
    from .methods import Averaging, Pretraining, Schedule, recommend
    from .relearning import relearn
    from .server import ForgettingFailed, Server, forget, pretrain
    from .signing import ErasureRequest, key_id, request_erasure
    from .tasks import Classification, LanguageModel, MultiLabel, Regression
    from .tidy import table

__version__ = "0.2.0"

_MODULES = {
    "auditing": ("audit",),
    "signing": ("ErasureRequest", "key_id", "request_erasure"),
    "client.data": ("ClientData", "Examples"),
    "core": (
        "ClientId",
        "Event",
        "FedUnlearnError",
        "FedUnlearnWarning",
        "Federation",
        "History",
        "Job",
        "LabelTask",
        "LocalTraining",
        "Mean",
        "Outcome",
        "Phase",
        "Progress",
        "Replies",
        "Reply",
        "Request",
        "Round",
        "Stage",
        "State",
        "Status",
        "Task",
        "Terms",
        "Vector",
        "train",
    ),
    "core.registry": ("loss", "step", "work"),
    "core.hashes": ("module_hash",),
    "core.vectors": ("flatten", "load", "shapes"),
    "driver": ("Above", "Below", "Conflicts", "Guards", "Participation", "unlearn"),
    "engines": ("Parallel", "Sequential", "simulate"),
    "methods": ("Averaging", "Pretraining", "Schedule", "method", "recommend"),
    "models": ("model",),
    "evidence": ("Evidence", "Relearning"),
    "relearning": ("relearn",),
    "server": ("ForgettingFailed", "Server", "forget", "pretrain"),
    "tasks": ("Classification", "LanguageModel", "MultiLabel", "Regression"),
    "tidy": ("table",),
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "Above",
    "Averaging",
    "Below",
    "Classification",
    "ClientData",
    "ClientId",
    "Conflicts",
    "ErasureRequest",
    "Event",
    "Evidence",
    "Examples",
    "FedUnlearnError",
    "FedUnlearnWarning",
    "Federation",
    "ForgettingFailed",
    "Guards",
    "History",
    "Job",
    "LabelTask",
    "LanguageModel",
    "LocalTraining",
    "Mean",
    "MultiLabel",
    "Outcome",
    "Parallel",
    "Participation",
    "Phase",
    "Pretraining",
    "Progress",
    "Regression",
    "Relearning",
    "Replies",
    "Reply",
    "Request",
    "Round",
    "Schedule",
    "Sequential",
    "Server",
    "Stage",
    "State",
    "Status",
    "Task",
    "Terms",
    "Vector",
    "audit",
    "flatten",
    "forget",
    "key_id",
    "load",
    "loss",
    "method",
    "model",
    "module_hash",
    "pretrain",
    "recommend",
    "relearn",
    "request_erasure",
    "shapes",
    "simulate",
    "step",
    "table",
    "train",
    "unlearn",
    "work",
]


def __getattr__(name: str) -> object:
    """Imports a public name on first use: torch takes seconds, which ``--help`` need not wait for."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOME[name]}", __name__), name)
