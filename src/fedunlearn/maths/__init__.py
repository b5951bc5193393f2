"""The mathematics of federated unlearning as plain functions on tensors.

This package needs only torch, so any training loop can use it alone.
"""

from .alternatives import common_descent, plain_descent, random_direction
from .certificates import gaussian_delta, gaussian_epsilon, gaussian_mu, noise_sensitivity
from .directions import Direction, DirectionStatus, orthogonal_direction
from .geometry import conflicts, cosine, distance
from .losses import unlearning_cross_entropy, unlearning_transform
from .pareto import min_norm_weights, null_space_descent, pareto_improvement
from .projections import project_between, project_off

__all__ = [
    "Direction",
    "DirectionStatus",
    "common_descent",
    "conflicts",
    "cosine",
    "distance",
    "gaussian_delta",
    "gaussian_epsilon",
    "gaussian_mu",
    "min_norm_weights",
    "noise_sensitivity",
    "null_space_descent",
    "orthogonal_direction",
    "pareto_improvement",
    "plain_descent",
    "project_between",
    "project_off",
    "random_direction",
    "unlearning_cross_entropy",
    "unlearning_transform",
]
