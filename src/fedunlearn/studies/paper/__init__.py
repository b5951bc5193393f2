"""Reproduction of the FedOSD paper (Pan et al., AAAI 2025): its numbers and claims, compared with ours."""

from .reproduce import check_scale, collected, compare_with_paper, draw, named, plan, titles, write_tables
from .results import read_columns

__all__ = [
    "check_scale",
    "collected",
    "compare_with_paper",
    "draw",
    "named",
    "plan",
    "read_columns",
    "titles",
    "write_tables",
]
