"""Run folders: the files of a run, and how to resume from them."""

from ..core.hashes import digest, fingerprint, model_hash
from .files import locked, read_tensors, write, write_json, write_tensors
from .runs import (
    RECOVERY_HINT,
    Recorder,
    environment,
    public,
    read_json,
    read_metrics,
    read_outcome,
    read_state,
    write_state,
)

__all__ = [
    "RECOVERY_HINT",
    "Recorder",
    "digest",
    "environment",
    "fingerprint",
    "locked",
    "model_hash",
    "public",
    "read_json",
    "read_metrics",
    "read_outcome",
    "read_state",
    "read_tensors",
    "write",
    "write_json",
    "write_state",
    "write_tensors",
]
