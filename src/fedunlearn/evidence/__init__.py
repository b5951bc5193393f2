"""Evidence of unlearning as pure functions of plain numbers: statistics and verdicts.

``judge`` is the entry point. SciPy, the extra ``evidence``, is needed only for exact bounds of proportions.
"""

from .calibration import calibrated, compare, hardest
from .canaries import CanaryFinding, canary_finding, guess_canaries
from .distances import TugOfWar, jensen_shannon, tug_of_war
from .influence import Influence, client_influence, corrected
from .measures import OutputDistance, Rate, rates
from .proportions import (
    CanaryBound,
    TailCounts,
    TailRate,
    canary_bound,
    clopper_pearson,
    exact_bounds,
    fisher,
    needed_unseen,
    newcombe,
    tail_counts,
    tail_rate,
    tpr_at_fpr,
    wilson,
)
from .record import MODELS, Evidence, TargetEvidence
from .relearning import Comeback, Curves, Relearning
from .statistics import (
    Equivalence,
    Estimate,
    Interval,
    Paired,
    Scores,
    auc,
    auc_error,
    delong,
    holm,
    paired_auc,
    tost,
)
from .verdicts import (
    Finding,
    Verdict,
    alarm_levels,
    decide,
    judge,
    no_verdict,
    tail_alarm,
    tail_finding,
    unjudged,
)

__all__ = [
    "MODELS",
    "CanaryBound",
    "CanaryFinding",
    "Comeback",
    "Curves",
    "Equivalence",
    "Estimate",
    "Evidence",
    "Finding",
    "Influence",
    "Interval",
    "OutputDistance",
    "Paired",
    "Rate",
    "Relearning",
    "Scores",
    "TailCounts",
    "TailRate",
    "TargetEvidence",
    "TugOfWar",
    "Verdict",
    "alarm_levels",
    "auc",
    "auc_error",
    "calibrated",
    "canary_bound",
    "canary_finding",
    "client_influence",
    "clopper_pearson",
    "compare",
    "corrected",
    "decide",
    "delong",
    "exact_bounds",
    "fisher",
    "guess_canaries",
    "hardest",
    "holm",
    "jensen_shannon",
    "judge",
    "needed_unseen",
    "newcombe",
    "no_verdict",
    "paired_auc",
    "rates",
    "tail_alarm",
    "tail_counts",
    "tail_finding",
    "tail_rate",
    "tost",
    "tpr_at_fpr",
    "tug_of_war",
    "unjudged",
    "wilson",
]
