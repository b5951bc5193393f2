"""Unlearning methods: one paper, one file."""

from .. import client as _registers_losses_and_steps  # noqa: F401
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
