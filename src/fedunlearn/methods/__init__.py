"""Unlearning methods, one file per paper. Each function returns the phases of its method for a schedule."""

from .. import client as _registers_losses_and_steps  # noqa: F401
from ..core.registry import method
from .ablations import m1, m2, m3, m4, m5, m6
from .ascent import ascent
from .choice import Recommendation, recommend, recommended_options
from .ewcsga import ewcsga
from .fast_retrain import fast_retrain
from .fedavg import Averaging, Pretraining
from .fedcare import fedcare
from .federaser import federaser
from .fedkdu import fedkdu
from .fedmemprune import fedmemprune
from .fedosd import fedosd
from .fedquit import fedquit
from .fedrecovery import fedrecovery
from .finetune import finetune
from .fupareto import fupareto
from .fupga import fupga
from .fused import fused
from .joint import joint
from .knot import ClusteredPretraining, knot
from .mode import mode
from .negation import negation
from .noisy_finetune import noisy_finetune
from .puf import puf
from .rapid import rapid
from .reset import reset
from .retrain import retrain
from .schedule import Schedule
from .sfu import sfu
from .sisa import SlicedPretraining, sisa

__all__ = [
    "Averaging",
    "ClusteredPretraining",
    "Pretraining",
    "Recommendation",
    "Schedule",
    "SlicedPretraining",
    "ascent",
    "ewcsga",
    "fast_retrain",
    "fedcare",
    "federaser",
    "fedkdu",
    "fedmemprune",
    "fedosd",
    "fedquit",
    "fedrecovery",
    "finetune",
    "fupareto",
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
    "noisy_finetune",
    "puf",
    "rapid",
    "recommend",
    "recommended_options",
    "reset",
    "retrain",
    "sfu",
    "sisa",
]
