"""Engines carry jobs to clients and replies back."""

from .parallel import Parallel
from .sequential import Sequential
from .simulation import require, simulate

__all__ = ["Parallel", "Sequential", "require", "simulate"]
