"""Unlearning methods: one paper, one file."""

from ..registry import method
from . import fedavg, fedosd, finetune, retrain
from .schedule import Schedule

__all__ = ["Schedule", "fedavg", "fedosd", "finetune", "method", "retrain"]
