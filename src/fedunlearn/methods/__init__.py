"""Unlearning methods, one file per paper. Each function returns the phases of its method for a schedule."""

from .. import client as _registers_losses_and_steps  # noqa: F401
from ..core.registry import method
from .ablations import m1, m2, m3, m4, m5, m6
from .ascent import ascent
from .ewcsga import ewcsga
from .fast_retrain import fast_retrain
from .fedavg import Averaging, Pretraining
from .federaser import federaser
from .fedkdu import fedkdu
from .fedmemprune import fedmemprune
from .fedosd import fedosd
from .fedquit import fedquit
from .fedrecovery import fedrecovery
from .finetune import finetune
from .fupga import fupga
from .fused import fused
from .joint import joint
from .knot import ClusteredPretraining, knot
from .mode import mode
from .negation import negation
from .puf import puf
from .rapid import rapid
from .reset import reset
from .retrain import retrain
from .schedule import Schedule
from .sfu import sfu

__all__ = [
    "Averaging",
    "ClusteredPretraining",
    "Pretraining",
    "Schedule",
    "ascent",
    "ewcsga",
    "fast_retrain",
    "federaser",
    "fedkdu",
    "fedmemprune",
    "fedosd",
    "fedquit",
    "fedrecovery",
    "finetune",
    "fupga",
    "fused",
    "joint",
    "knot",
    "m1",
    "m2",
    "m3",
    "m4",
    "m5",
    "m6",
    "method",
    "mode",
    "negation",
    "puf",
    "rapid",
    "reset",
    "retrain",
    "sfu",
]
