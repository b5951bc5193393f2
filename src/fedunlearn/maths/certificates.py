"""What noisy rounds certify: the (ε, δ) with which their last model tells two starts apart."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

HALVINGS = 60
"""Of an interval, which leaves 1e-18 of it."""


def noise_sensitivity(rounds: int, radius: float, clip: float, shrink: float = 0.0) -> float:
    """How far apart two starts are after some noisy rounds, seen through the noise of one round.

    A round is ω ← p − u(p) with p = (1 − shrink) ω + N(0, σ²) and ‖u‖ ≤ clip, for any u that depends on p
    alone; both starts have a norm of at most ``radius``. The result, divided by σ, is the μ for which telling
    the last models apart is no easier than telling N(0, 1) from N(μ, 1).

    Proof. Move one process by s_t before the noise of round t, so that it meets the other in round k; from
    then on, both are the same. With a = 1 − shrink, their distance z obeys z ← a (z + 2 clip) − s_t, without
    the clip in the first round, so that Σ a^(k−t) s_t = 2 radius a^k + 2 clip (a + … + a^(k−1)). Each round
    is a Gaussian mechanism of sensitivity s_t, whatever came before, and these compose to μ = √(Σ s_t²)/σ
    (Dong, Roth and Su, 2022), which is least for s_t ∝ a^(k−t). This is the bound of k; any k up to the
    number of rounds may be chosen. Should it make z negative, the bound of k = 1 is smaller.
    """
    keep, smallest = 1 - shrink, math.inf
    start, drift, squares = 2 * radius, 0.0, 0.0
    for number in range(rounds):
        start *= keep
        if number:
            drift = keep * (drift + 2 * clip)
        squares = 1 + keep**2 * squares
        smallest = min(smallest, (start + drift) / math.sqrt(squares))
    return smallest


def gaussian_delta(epsilon: float, mu: float) -> float:
    """The least δ with which N(0, 1) and N(μ, 1) are (ε, δ)-indistinguishable (Balle and Wang, 2018)."""
    if mu == 0:
        return 0.0
    less, more = -epsilon / mu + mu / 2, -epsilon / mu - mu / 2
    return max(0.0, math.exp(_log_ndtr(less)) - math.exp(min(0.0, epsilon + _log_ndtr(more))))


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The least ε with which N(0, 1) and N(μ, 1) are (ε, δ)-indistinguishable, rounded up."""
    if gaussian_delta(0.0, mu) <= delta:
        return 0.0
    most = mu**2 / 2 + mu * math.sqrt(2 * math.log(1 / delta))
    return _change(lambda epsilon: gaussian_delta(epsilon, mu) > delta, most)[1]


def gaussian_mu(epsilon: float, delta: float) -> float:
    """The largest μ with which N(0, 1) and N(μ, 1) are (ε, δ)-indistinguishable, rounded down."""
    most = 1.0
    while gaussian_delta(epsilon, most) <= delta:
        most *= 2
    return _change(lambda mu: gaussian_delta(epsilon, mu) <= delta, most)[0]


def _change(holds: Callable[[float], bool], most: float) -> tuple[float, float]:
    """The last number from 0 on at which something holds, and the first at which it does not."""
    low, high = 0.0, most
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low, high


def _log_ndtr(value: float) -> float:
    return float(torch.special.log_ndtr(torch.tensor(value, dtype=torch.float64)))
