"""The mathematics of federated unlearning, as plain functions on tensors.

Nothing here needs more than torch: a training loop of one's own can use this package alone.
"""

from .directions import Direction, DirectionStatus, orthogonal_direction
from .geometry import conflicts, cosine, distance
from .losses import unlearning_cross_entropy, unlearning_transform
from .projections import project_off

__all__ = [
    "Direction",
    "DirectionStatus",
    "conflicts",
    "cosine",
    "distance",
    "orthogonal_direction",
    "project_off",
    "unlearning_cross_entropy",
    "unlearning_transform",
]
