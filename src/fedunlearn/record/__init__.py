"""Run folders: what a run writes, and how it resumes."""

from .files import digest, locked, read_tensors, write, write_json, write_tensors
from .runs import (
    AMENDS,
    Recorder,
    environment,
    fingerprint,
    model_hash,
    public,
    read_json,
    read_metrics,
    read_outcome,
    read_state,
    write_state,
)

__all__ = [
    "AMENDS",
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
