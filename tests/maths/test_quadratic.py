from itertools import chain, combinations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedunlearn.maths._quadratic import nonnegative

properties = settings(max_examples=100, deadline=None, derandomize=True, database=None)
seeds = st.integers(0, 2**32)


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@st.composite
def problems(draw: st.DrawFn, most: int = 8) -> tuple[Tensor, Tensor]:
    """Least squares ‖Aᵀ λ − b‖² as Gram matrix and products; of any rank, rows repeated, negated or zero."""
    count = draw(st.integers(1, most))
    rows = normal(draw(seeds), count, draw(st.integers(1, 10)))
    for row in range(1, count):
        match draw(st.sampled_from(["own", "own", "own", "duplicate", "opposite", "sum", "zero"])):
            case "duplicate":
                rows[row] = rows[0]
            case "opposite":
                rows[row] = -rows[0]
            case "sum":
                rows[row] = rows[:row].sum(0)
            case "zero":
                rows[row] = 0
    exponents = draw(st.lists(st.floats(-2, 2), min_size=count, max_size=count))
    rows *= 10 ** torch.tensor(exponents, dtype=torch.float64).unsqueeze(1)
    return rows @ rows.T, rows @ normal(draw(seeds), rows.shape[1])


def value(gram: Tensor, linear: Tensor, found: Tensor) -> float:
    return float(found @ gram @ found / 2 - linear @ found)


def least(gram: Tensor, linear: Tensor) -> float:
    """The smallest value over all sets of coefficients that are not zero."""
    size, best = len(linear), 0.0
    for chosen in chain.from_iterable(combinations(range(size), k) for k in range(1, size + 1)):
        index = torch.tensor(chosen)
        found = torch.zeros(size, dtype=torch.float64)
        found[index] = torch.linalg.pinv(gram[index][:, index], hermitian=True) @ linear[index]
        if bool((found >= 0).all()):
            best = min(best, value(gram, linear, found))
    return best


@properties
@given(problems())
def test_the_conditions_of_karush_kuhn_and_tucker(case: tuple[Tensor, Tensor]) -> None:
    gram, linear = case
    found = nonnegative(gram, linear)
    slope = linear - gram @ found
    scale = float(gram.diagonal().max().sqrt() * 10)
    assert bool((found >= 0).all())
    # By the length of each row: what a coefficient could still gain.
    lengths = gram.diagonal().sqrt().clamp(min=1e-9 * scale)
    assert float((slope / lengths).max()) <= 1e-8 * scale
    assert float((found * slope).abs().max()) <= 1e-8 * scale**2


@properties
@given(problems(most=5))
def test_no_choice_of_coefficients_is_better(case: tuple[Tensor, Tensor]) -> None:
    gram, linear = case
    best = least(gram, linear)
    assert value(gram, linear, nonnegative(gram, linear)) <= best + 1e-8 * (1 + abs(best))


@properties
@given(problems())
def test_inputs_stay_as_they_are(case: tuple[Tensor, Tensor]) -> None:
    gram, linear = case
    before = gram.clone(), linear.clone()
    nonnegative(gram, linear)
    assert torch.equal(gram, before[0])
    assert torch.equal(linear, before[1])


def test_without_anything_to_gain_all_coefficients_are_zero() -> None:
    gram = torch.eye(3, dtype=torch.float64)
    assert torch.equal(nonnegative(gram, -torch.ones(3, dtype=torch.float64)), torch.zeros(3).double())
    assert torch.equal(nonnegative(0 * gram, torch.zeros(3, dtype=torch.float64)), torch.zeros(3).double())


def test_equal_rows_share_the_coefficient() -> None:
    gram = torch.ones(4, 4, dtype=torch.float64)
    found = nonnegative(gram, torch.ones(4, dtype=torch.float64))
    assert float(found.sum()) == 1 or abs(float(found.sum()) - 1) < 1e-12
    assert bool((found >= 0).all())
