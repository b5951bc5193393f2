"""The accountant against exact trade-offs of one-dimensional processes."""

from __future__ import annotations

import math

import pytest
import torch

from fedunlearn.maths import gaussian_delta, gaussian_epsilon, gaussian_mu, noise_sensitivity

GRID = torch.linspace(-12, 12, 801, dtype=torch.float64)
STEP = float(GRID[1] - GRID[0])
QUADRATURE = 2e-4
"""Error of sums over the grid, of densities with a kink."""


def density(mean: torch.Tensor, sigma: float) -> torch.Tensor:
    """Of N(mean, σ²) on the grid, one row for each mean."""
    return torch.exp(-(((GRID - mean.unsqueeze(-1)) / sigma) ** 2) / 2) / (sigma * math.sqrt(2 * math.pi))


def last_noisy(start: float, shrink: float, sigma: float, updates: list[torch.Tensor]) -> torch.Tensor:
    """The density of the model after the last noise; the updates are functions on the grid."""
    found = density(torch.tensor((1 - shrink) * start, dtype=torch.float64), sigma)
    for update in updates:
        found = found @ density((1 - shrink) * (GRID - update), sigma) * STEP
    return found


def delta_of(one: torch.Tensor, other: torch.Tensor, epsilon: float) -> float:
    """The least δ with which two densities are (ε, δ)-indistinguishable."""
    return float((one - math.exp(epsilon) * other).clamp(min=0).sum() * STEP)


@pytest.mark.parametrize("rounds", [1, 2, 5])
@pytest.mark.parametrize("shrink", [0.0, 0.3])
@pytest.mark.parametrize("epsilon", [0.0, 0.5, 2.0])
def test_without_updates_the_bound_is_the_exact_trade_off(rounds, shrink, epsilon):
    still = [torch.zeros_like(GRID)] * (rounds - 1)
    one, other = (last_noisy(start, shrink, 0.8, still) for start in (1.0, -1.0))
    bound = gaussian_delta(epsilon, noise_sensitivity(rounds, 1.0, 0.0, shrink) / 0.8)
    assert delta_of(one, other, epsilon) == pytest.approx(bound, abs=QUADRATURE)


def adversaries(clip: float, rounds: int) -> dict[str, list[torch.Tensor]]:
    """Updates that drive the two starts apart, and random ones."""
    random = torch.Generator().manual_seed(1)

    def steps() -> torch.Tensor:
        heights = 2 * torch.rand(40, generator=random, dtype=torch.float64) - 1
        return clip * heights.repeat_interleave(21)[: len(GRID)]

    apart = -clip * torch.sign(GRID)
    return {"apart": [apart] * rounds} | {f"random {n}": [steps() for _ in range(rounds)] for n in range(3)}


@pytest.mark.parametrize(("radius", "clip"), [(1.0, 0.2), (0.3, 0.5), (0.05, 0.5), (1.0, 1.0)])
@pytest.mark.parametrize("shrink", [0.0, 0.5])
@pytest.mark.parametrize("rounds", [2, 4])
def test_no_update_beats_the_bound(radius, clip, shrink, rounds):
    sigma, reached = 0.7, 0.0
    mu = noise_sensitivity(rounds, radius, clip, shrink) / sigma
    for updates in adversaries(clip, rounds - 1).values():
        one, other = (last_noisy(start, shrink, sigma, updates) for start in (radius, -radius))
        for epsilon in (0.0, 0.1, 0.5, 1.0, 2.0):
            found, bound = delta_of(one, other, epsilon), gaussian_delta(epsilon, mu)
            assert found <= bound + QUADRATURE
            if bound > 1e-3:
                reached = max(reached, found / bound)
    assert reached > 0.2, "the bound says something about these processes"


def test_more_rounds_never_certify_less():
    for shrink in (0.0, 0.1, 0.5):
        bounds = [noise_sensitivity(rounds, 1.0, 0.1, shrink) for rounds in range(1, 60)]
        assert bounds == sorted(bounds, reverse=True)
        assert bounds[0] == pytest.approx(2 * (1 - shrink))


def test_shrinking_forgets_the_start_and_leaves_the_updates():
    limit = 2 * 0.1 * math.sqrt(1 - 0.5**2) * 0.5 / (1 - 0.5)
    assert noise_sensitivity(80, 1e6, 0.1, 0.5) == pytest.approx(limit)


def test_the_gaussian_trade_off_has_its_known_values():
    assert gaussian_delta(1.0, 1.0) == pytest.approx(0.12693673750664394)
    assert gaussian_delta(0.0, 1.0) == pytest.approx(math.erf(0.5 / math.sqrt(2)))
    assert gaussian_delta(3.0, 0.0) == 0.0
    assert gaussian_epsilon(0.0, 1e-5) == 0.0


@pytest.mark.parametrize("epsilon", [0.01, 1.0, 30.0, 1e3, 1e6])
@pytest.mark.parametrize("delta", [1e-12, 1e-5, 0.1])
def test_mu_and_epsilon_belong_to_each_other(epsilon, delta):
    mu = gaussian_mu(epsilon, delta)
    assert gaussian_epsilon(mu, delta) == pytest.approx(epsilon, rel=1e-6)
    assert gaussian_delta(epsilon, mu) <= delta < gaussian_delta(epsilon, 1.001 * mu)
