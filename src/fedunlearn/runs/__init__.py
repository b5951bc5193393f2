"""Run folders: the files of a run, how to resume from them, and how their damage is noticed."""

from ..core.hashes import content_hash, digest, fingerprint, model_hash
from .environment import decisive, environment
from .files import Cipher, json_bytes, locked, read_tensors, write, write_json, write_tensors
from .folders import Folder, claim
from .manifest import RECOVERY_HINT, Manifest, read_manifest, require_listed, tell_unverified, verify
from .reading import earlier, public, read_json, read_metrics, read_outcome
from .recorder import Recorder
from .states import read_state, write_state

__all__ = [
    "RECOVERY_HINT",
    "Cipher",
    "Folder",
    "Manifest",
    "Recorder",
    "claim",
    "content_hash",
    "decisive",
    "digest",
    "earlier",
    "environment",
    "fingerprint",
    "json_bytes",
    "locked",
    "model_hash",
    "public",
    "read_json",
    "read_manifest",
    "read_metrics",
    "read_outcome",
    "read_state",
    "read_tensors",
    "require_listed",
    "tell_unverified",
    "verify",
    "write",
    "write_json",
    "write_state",
    "write_tensors",
]
