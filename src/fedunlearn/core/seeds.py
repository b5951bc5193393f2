"""Randomness derived from names, so that order, engine and restarts cannot change a result."""

from __future__ import annotations

import hashlib

import torch


def derive(*names: object) -> int:
    """A 63-bit seed from a sequence of names; different sequences give unrelated seeds."""
    text = "\x1f".join(f"{type(name).__name__}:{name}" for name in names)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator(*names: object) -> torch.Generator:
    """A generator of its own for one purpose."""
    return torch.Generator().manual_seed(derive(*names))
