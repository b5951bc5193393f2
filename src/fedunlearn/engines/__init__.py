"""Engines carry jobs to clients and replies back."""

from .joined import Joined, join
from .parallel import Parallel
from .sequential import Sequential
from .simulation import require, simulate

__all__ = ["Joined", "Parallel", "Sequential", "join", "require", "simulate"]
