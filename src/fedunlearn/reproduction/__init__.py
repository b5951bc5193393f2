"""The FedOSD paper (Pan et al., AAAI 2025): its numbers, its claims, and its tables beside ours."""

from .reproduce import beside, check_scale, collected, draw, named, plan, titles, write_tables
from .results import read_columns

__all__ = [
    "beside",
    "check_scale",
    "collected",
    "draw",
    "named",
    "plan",
    "read_columns",
    "titles",
    "write_tables",
]
