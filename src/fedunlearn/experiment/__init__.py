"""An experiment: a TOML file that is checked, set up and carried out in a folder."""

from ..running import finished
from .audit import audit_run
from .code import import_code
from .per_example import PerExample, per_example
from .pretraining import cache_directory, pretrained
from .problems import first_problem
from .reading import add_code, check, named_after, override, parse, read
from .run import perform, recorded, resume
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
    setting_names,
)
from .setup import Setting, prepare, specimen

__all__ = [
    "Backdoor",
    "Count",
    "Data",
    "Erasure",
    "Experiment",
    "Name",
    "PerExample",
    "PretrainingPlan",
    "Rate",
    "Setting",
    "Share",
    "StagePlan",
    "Table",
    "Training",
    "UnlearningPlan",
    "add_code",
    "audit_run",
    "cache_directory",
    "check",
    "finished",
    "first_problem",
    "import_code",
    "named_after",
    "override",
    "parse",
    "per_example",
    "perform",
    "prepare",
    "pretrained",
    "read",
    "recorded",
    "resume",
    "setting_names",
    "specimen",
]
