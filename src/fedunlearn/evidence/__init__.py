"""Evidence of unlearning as pure functions of plain numbers: statistics and histograms.

SciPy, the extra ``evidence``, is needed only for exact bounds of proportions.
"""

from .histograms import (
    DIFFERENCE_EDGES,
    LOSS_EDGES,
    binned_auc,
    histogram,
    joint_histogram,
    paired_binned_auc,
)
from .statistics import (
    CanaryBound,
    Equivalence,
    Estimate,
    Interval,
    Paired,
    Scores,
    TailRate,
    TugOfWar,
    auc,
    canary_bound,
    clopper_pearson,
    delong,
    jensen_shannon,
    paired_auc,
    tost,
    tpr_at_fpr,
    tug_of_war,
    wilson,
)

__all__ = [
    "DIFFERENCE_EDGES",
    "LOSS_EDGES",
    "CanaryBound",
    "Equivalence",
    "Estimate",
    "Interval",
    "Paired",
    "Scores",
    "TailRate",
    "TugOfWar",
    "auc",
    "binned_auc",
    "canary_bound",
    "clopper_pearson",
    "delong",
    "histogram",
    "jensen_shannon",
    "joint_histogram",
    "paired_auc",
    "paired_binned_auc",
    "tost",
    "tpr_at_fpr",
    "tug_of_war",
    "wilson",
]
