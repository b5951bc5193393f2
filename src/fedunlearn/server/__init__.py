"""A server that trains and forgets, and requests about a model that was trained elsewhere."""

from .answering import ASKS_THE_GONE, NEVER_TRAINED, ForgettingFailed
from .forgetting import forget, pretrain, read_history, remove_rows
from .server import Server
from .surroundings import fresh_model

__all__ = [
    "ASKS_THE_GONE",
    "NEVER_TRAINED",
    "ForgettingFailed",
    "Server",
    "forget",
    "fresh_model",
    "pretrain",
    "read_history",
    "remove_rows",
]
