"""Several methods on the same requests: the same ω⁰, the same schedule, the same accounting."""

from ..experiment import Show
from .plan import Comparison, Plan, read_comparison
from .run import carry_out, missing, planned, unlike

__all__ = [
    "Comparison",
    "Plan",
    "Show",
    "carry_out",
    "missing",
    "planned",
    "read_comparison",
    "unlike",
]
