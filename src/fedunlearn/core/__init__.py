"""What a method author reads: messages, state, phases, requests, federations, names and seeds."""

from .errors import FedUnlearnError, require, require_count, require_rate, require_type
from .federation import (
    Accountable,
    Authorising,
    Federation,
    LocalTraining,
    Precision,
    Selective,
    require_federation,
)
from .history import History
from .messages import (
    Buffers,
    ClientId,
    Failure,
    Job,
    Mean,
    MissingReply,
    Reason,
    Replies,
    Reply,
    Statistics,
    Terms,
    Vector,
    train,
)
from .phase import Jobs, Phase, Round
from .registry import did_you_mean
from .request import Request, names_of
from .state import Event, Guarded, Listener, Metrics, Outcome, Progress, Stage, State, Status
from .task import Batch, LabelTask, Task

__all__ = [
    "Accountable",
    "Authorising",
    "Batch",
    "Buffers",
    "ClientId",
    "Event",
    "Failure",
    "FedUnlearnError",
    "Federation",
    "Guarded",
    "History",
    "Job",
    "Jobs",
    "LabelTask",
    "Listener",
    "LocalTraining",
    "Mean",
    "Metrics",
    "MissingReply",
    "Outcome",
    "Phase",
    "Precision",
    "Progress",
    "Reason",
    "Replies",
    "Reply",
    "Request",
    "Round",
    "Selective",
    "Stage",
    "State",
    "Statistics",
    "Status",
    "Task",
    "Terms",
    "Vector",
    "did_you_mean",
    "names_of",
    "require",
    "require_count",
    "require_federation",
    "require_rate",
    "require_type",
    "train",
]
