"""The open benchmark: fixed requests and seeds, one tuning budget, results that anybody can check again."""

from .checking import check_results
from .leaderboard import leaderboard_tables
from .page import write_leaderboard
from .plan import METHODS, PROTOCOL, protocol, protocol_digest
from .results import gather
from .stored import About, Cell, Results, Submitted, Tuning, merge, read_results, write_results

__all__ = [
    "METHODS",
    "PROTOCOL",
    "About",
    "Cell",
    "Results",
    "Submitted",
    "Tuning",
    "check_results",
    "gather",
    "leaderboard_tables",
    "merge",
    "protocol",
    "protocol_digest",
    "read_results",
    "write_leaderboard",
    "write_results",
]
