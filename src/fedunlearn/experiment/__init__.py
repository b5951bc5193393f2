"""An experiment: a TOML file that is checked, set up and carried out in a folder."""

from ..config.problems import first_problem
from ..runs.running import finished
from .audit import Standard, audit_run, audit_with, auditing, omega0, run_model, standard
from .code import import_code
from .pretraining import pretrained
from .reading import add_code, check, named_after, override, parse, read
from .references import Show, reference_rounds, retraining, twin
from .run import perform, recorded, resume
from .settings import (
    Backdoor,
    Data,
    Erasure,
    Experiment,
    PretrainingPlan,
    StagePlan,
    UnlearningPlan,
    setting_names,
)
from .setup import Setting, prepare, specimen
from .training import cache_directory

__all__ = [
    "Backdoor",
    "Data",
    "Erasure",
    "Experiment",
    "PretrainingPlan",
    "Setting",
    "Show",
    "StagePlan",
    "Standard",
    "UnlearningPlan",
    "add_code",
    "audit_run",
    "audit_with",
    "auditing",
    "cache_directory",
    "check",
    "finished",
    "first_problem",
    "import_code",
    "named_after",
    "omega0",
    "override",
    "parse",
    "perform",
    "prepare",
    "pretrained",
    "read",
    "recorded",
    "reference_rounds",
    "resume",
    "retraining",
    "run_model",
    "setting_names",
    "specimen",
    "standard",
    "twin",
]
