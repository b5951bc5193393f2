"""Unlearning methods: one paper, one file."""

from .. import uploads as _registers_objectives  # noqa: F401
from ..core.registry import method
from . import (
    ablations,
    ascent,
    ewcsga,
    fedavg,
    federaser,
    fedkdu,
    fedosd,
    fedquit,
    fedrecovery,
    finetune,
    fupga,
    history,
    joint,
    knot,
    mode,
    negation,
    puf,
    rapid,
    retrain,
    sfu,
)
from .schedule import Schedule

__all__ = [
    "Schedule",
    "ablations",
    "ascent",
    "ewcsga",
    "fedavg",
    "federaser",
    "fedkdu",
    "fedosd",
    "fedquit",
    "fedrecovery",
    "finetune",
    "fupga",
    "history",
    "joint",
    "knot",
    "method",
    "mode",
    "negation",
    "puf",
    "rapid",
    "retrain",
    "sfu",
]
