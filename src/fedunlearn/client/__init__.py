"""The client's side: its data, training, measuring, and the other works that methods ask for."""

from . import losses as _registers_losses  # noqa: F401
from . import steps as _registers_steps  # noqa: F401
from .data import ClientData, Examples
from .learner import Learner

__all__ = ["ClientData", "Examples", "Learner"]
