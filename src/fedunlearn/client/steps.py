"""Step rules: the change that a local step subtracts from the parameters, by the name that a job carries."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ..core import Job, Vector
from ..core.registry import step

Step = Callable[[Vector, Vector, float], Vector]
"""Maps parameters, gradient and learning rate to a step; made for each job, so it may count its steps."""


@step("plain", summary="the learning rate times the gradient")
def _plain(job: Job) -> Step:
    return lambda params, gradient, lr: lr * gradient


@step("clipped", summary="the gradient clipped to a norm, `clip`")
def clipped(job: Job) -> Step:
    """Shorten a gradient that is too long and keep its direction."""
    clip = float(job.config["clip"])

    def rule(params: Vector, gradient: Vector, lr: float) -> Vector:
        norm = float(torch.linalg.vector_norm(gradient))
        return lr * min(1.0, clip / norm if norm > 0 else 1.0) * gradient

    return rule
