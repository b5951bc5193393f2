"""Several methods on the same requests: the same ω⁰, the same schedule, the same accounting."""

from .. import Show
from .plan import Comparison, Grid, Plan, place, read_comparison, reference_place
from .run import at_chosen_rate, carry_out, missing, planned, unlike
from .tuning import at_rate, rates_matter

__all__ = [
    "Comparison",
    "Grid",
    "Plan",
    "Show",
    "at_chosen_rate",
    "at_rate",
    "carry_out",
    "missing",
    "place",
    "planned",
    "rates_matter",
    "read_comparison",
    "reference_place",
    "unlike",
]
