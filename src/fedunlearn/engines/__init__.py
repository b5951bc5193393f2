"""Engines carry jobs to clients and replies back."""

from .sequential import Sequential

__all__ = ["Sequential"]
