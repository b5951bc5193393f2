"""Files that hold the state of a run."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from ..core import FedUnlearnError, State, Status
from .files import Cipher, read_tensors, tensor_bytes, write


def write_state(path: Path, state: State, **metadata: str) -> None:
    """Write a state: parameters, memory, buffers, round and status."""
    write(path, state_bytes(state, **metadata), private=True)


def state_bytes(state: State, **metadata: str) -> bytes:
    """What ``write_state`` writes."""
    tensors = {
        "params": state.params,
        **{f"memory {name}": value for name, value in state.memory.items()},
        **{f"buffer {name}": value for name, value in state.buffers.items()},
    }
    progress = {"round": state.round, "status": state.status, "reason": state.reason}
    return tensor_bytes(tensors, **metadata, state=json.dumps(progress))


def read_state(path: Path, cipher: Cipher | None = None) -> tuple[State, dict[str, str]]:
    """Read a state and its metadata, written by ``write_state``."""
    tensors, metadata = read_tensors(path, cipher)
    if "state" not in metadata:
        raise FedUnlearnError(f"{path} has tensors, but not the state of a run: name another file")

    def named(prefix: str) -> dict[str, torch.Tensor]:
        return {
            name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)
        }

    progress = json.loads(metadata.pop("state"))
    state = State(
        tensors["params"],
        progress["round"],
        memory=named("memory "),
        buffers=named("buffer "),
        status=Status(progress["status"]),
        reason=progress["reason"],
    )
    return state, metadata
