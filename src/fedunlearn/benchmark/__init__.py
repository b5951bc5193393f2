"""The open benchmark: fixed requests and seeds, one tuning budget, results that anybody can check again."""

from ..report.benchmark import FORMAT
from .checking import check_results, repeat
from .plan import PROTOCOL, protocol, protocol_digest
from .results import gather, merge, read_results, write_results

__all__ = [
    "FORMAT",
    "PROTOCOL",
    "check_results",
    "gather",
    "merge",
    "protocol",
    "protocol_digest",
    "read_results",
    "repeat",
    "write_results",
]
