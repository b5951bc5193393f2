"""An experiment: a TOML file that is checked, set up and carried out in a folder."""

from ..running import finished
from .pretraining import cache_directory, pretrained
from .problems import first_problem
from .reading import check, named_after, override, parse, read
from .run import perform, resume
from .settings import (
    Backdoor,
    Count,
    Data,
    Erasure,
    Experiment,
    Name,
    PretrainingPlan,
    Rate,
    Share,
    StagePlan,
    Table,
    Training,
    UnlearningPlan,
)
from .setup import Setting, prepare, specimen

__all__ = [
    "Backdoor",
    "Count",
    "Data",
    "Erasure",
    "Experiment",
    "Name",
    "PretrainingPlan",
    "Rate",
    "Setting",
    "Share",
    "StagePlan",
    "Table",
    "Training",
    "UnlearningPlan",
    "cache_directory",
    "check",
    "finished",
    "first_problem",
    "named_after",
    "override",
    "parse",
    "perform",
    "prepare",
    "pretrained",
    "read",
    "resume",
    "specimen",
]
