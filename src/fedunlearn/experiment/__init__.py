"""An experiment: a TOML file that is checked, set up and carried out in a folder."""

from ..running import finished
from .audit import audit_run
from .code import import_code
from .pretraining import cache_directory, pretrained
from .problems import first_problem
from .reading import add_code, check, named_after, override, parse, read
from .relearning import relearn_run
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
    "perform",
    "prepare",
    "pretrained",
    "read",
    "recorded",
    "relearn_run",
    "resume",
    "setting_names",
    "specimen",
]
