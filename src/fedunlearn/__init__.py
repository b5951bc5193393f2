"""Federated unlearning: take a client's influence out of a trained model.

Everything here needs torch and safetensors alone. Experiments from files are in ``fedunlearn.experiment``,
data sets in ``fedunlearn.data``, and the bare mathematics in ``fedunlearn.maths``.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .core import (
        ClientData,
        ClientId,
        Event,
        Examples,
        Federation,
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
    from .core.registry import method, model
    from .core.vectors import flatten
    from .engines import Parallel, Sequential, simulate
    from .methods import Schedule
    from .objectives import objective
    from .run import unlearn

__version__ = "0.1.0"

__all__ = [
    "ClientData",
    "ClientId",
    "Event",
    "Examples",
    "FedUnlearnError",
    "Federation",
    "Job",
    "LocalTraining",
    "Outcome",
    "Parallel",
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
    "model",
    "objective",
    "simulate",
    "unlearn",
]

_ELSEWHERE = {
    "Schedule": "methods",
    "Parallel": "engines",
    "Sequential": "engines",
    "flatten": "core.vectors",
    "method": "methods",
    "model": "models",
    "objective": "objectives",
    "simulate": "engines",
    "unlearn": "run",
}


def __getattr__(name: str) -> object:
    """Imports a public name on first use: torch takes seconds, which ``--help`` need not wait for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_ELSEWHERE.get(name, 'core')}", __name__), name)
