"""SHA-256 of tensors, models and settings."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from . import vectors
from .state import State


def content_hash(content: bytes) -> str:
    """SHA-256 of bytes."""
    return hashlib.sha256(content).hexdigest()


def digest(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of names, types, shapes and bytes."""
    total = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().contiguous()
        total.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)};".encode())
        total.update(tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8).numpy().data)
    return total.hexdigest()


def model_hash(state: State) -> str:
    """SHA-256 of a model's parameters and buffers; equal hashes mean bit-identical models."""
    return digest(
        {"params": state.params, **{f"buffer {name}": value for name, value in state.buffers.items()}}
    )


def module_hash(model: nn.Module) -> str:
    """The same of a module: what an erasure request names."""
    return model_hash(State(vectors.flatten(model), buffers=vectors.buffers(model)))


def fingerprint(value: Any) -> str:
    """SHA-256 of a JSON value in canonical form."""
    return content_hash(json.dumps(value, sort_keys=True, separators=(",", ":")).encode())
