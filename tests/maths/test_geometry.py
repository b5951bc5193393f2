import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedunlearn.maths import conflicts, cosine, distance, orthogonal_direction

properties = settings(max_examples=200, deadline=None, derandomize=True, database=None)
seeds = st.integers(0, 2**32)
exponents = st.floats(-12, 12)


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_distance_is_summed_in_float64() -> None:
    # In float32 a running sum of ones would stop growing at 2**24.
    assert distance(torch.full((300_001,), 3.0), torch.full((300_001,), 2.0)) == math.sqrt(300_001)
    assert distance(torch.tensor([2.0**24]), torch.tensor([-1.0])) == 2**24 + 1
    assert distance(torch.tensor([1e30]), torch.tensor([-1e30])) == pytest.approx(2e30, rel=1e-6)


@properties
@given(seeds, st.integers(1, 64), exponents)
def test_distance_is_a_metric(seed: int, width: int, exponent: float) -> None:
    a, b, c = 10**exponent * normal(seed, 3, width)
    assert distance(a, a) == 0
    assert distance(a, b) == distance(b, a) == pytest.approx(float((a - b).norm()))
    assert distance(a, c) <= (distance(a, b) + distance(b, c)) * (1 + 1e-12)


@properties
@given(seeds, st.integers(1, 64), exponents, exponents)
def test_cosine_depends_on_direction_alone(seed: int, width: int, one: float, two: float) -> None:
    a, b = normal(seed, 2, width)
    value = cosine(10**one * a, -(10**two) * b)
    assert -1 <= value <= 1
    assert value == pytest.approx(-float(a @ b / a.norm() / b.norm()), abs=1e-12)
    assert cosine(a, 3 * a) == pytest.approx(1, abs=1e-12)


def test_cosine_of_parallel_vectors_never_leaves_its_range() -> None:
    values = [cosine(vector, 7 * vector) for vector in normal(1, 500, 3)]
    assert max(values) <= 1
    assert min(values) >= 1 - 1e-12


def test_cosine_with_a_zero_vector_is_zero() -> None:
    assert cosine(torch.zeros(3), torch.ones(3)) == 0
    assert cosine(torch.ones(3), torch.zeros(3)) == 0
    assert cosine(torch.zeros(3), torch.zeros(3)) == 0


def test_nan_is_not_hidden() -> None:
    assert math.isnan(cosine(torch.tensor([math.nan, 1.0]), torch.ones(2)))
    assert math.isnan(distance(torch.tensor([math.nan, 1.0]), torch.ones(2)))


def test_conflicts_are_the_rows_that_the_update_climbs() -> None:
    rows = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [1.0, 1.0], [0.0, 1.0], [0.0, 0.0]])
    assert conflicts(rows, torch.tensor([2.0, 0.0])) == 2
    assert conflicts(rows, torch.tensor([-2.0, 0.0])) == 1
    assert conflicts(rows, torch.zeros(2)) == 0
    assert conflicts(torch.zeros(0, 2), torch.ones(2)) == 0


def test_tolerance_is_on_the_cosine() -> None:
    row = torch.tensor([[1e-9, 1.1e-13], [1e9, 0.9e5]], dtype=torch.float64)
    assert conflicts(row, torch.tensor([0.0, 1e-20], dtype=torch.float64)) == 1
    assert conflicts(row, torch.tensor([0.0, 1e-20], dtype=torch.float64), tolerance=1e-3) == 0
    assert conflicts(row, torch.tensor([0.0, 1e-20], dtype=torch.float64), tolerance=1e-5) == 2


@properties
@given(seeds, st.integers(1, 12), st.integers(13, 64))
def test_orthogonal_direction_conflicts_with_nobody(seed: int, count: int, width: int) -> None:
    rows = normal(seed, count + 1, width).float()
    assert conflicts(rows[1:], orthogonal_direction(rows[0], rows[1:]).vector) == 0


@properties
@given(seeds, st.integers(1, 12), st.integers(1, 64))
def test_conflicts_count_positive_cosines_in_any_block_of_columns(seed: int, count: int, width: int) -> None:
    # 25,600 columns of twelve rows make more than one block.
    rows, update = normal(seed, count, width * 400).float(), normal(seed + 1, width * 400).float()
    cosines = rows.double() @ update.double() / rows.double().norm(dim=1) / update.double().norm()
    assert conflicts(rows, update) == int((cosines > 1e-4).sum())
    assert conflicts(rows, -update) == int((cosines < -1e-4).sum())


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_conflicts_with_non_finite_values_are_refused(value: float) -> None:
    rows = torch.ones(3, 2)
    rows[1, 0] = value
    with pytest.raises(ValueError, match="row 1"):
        conflicts(rows, torch.ones(2))
    with pytest.raises(ValueError, match="update"):
        conflicts(torch.ones(3, 2), torch.tensor([value, 1.0]))


@pytest.mark.parametrize("function", [distance, cosine])
def test_vectors_that_do_not_fit_are_refused(function) -> None:
    for a, b in (((3,), (4,)), ((2, 2), (2, 2)), ((3,), (1, 3))):
        with pytest.raises(ValueError, match="vectors of one length"):
            function(torch.ones(a), torch.ones(b))


@pytest.mark.parametrize("shapes", [((3,), (3,)), ((2, 3), (2,)), ((2, 3), (1, 3))])
def test_matrices_that_do_not_fit_are_refused(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    with pytest.raises(ValueError, match="displacements must be a matrix"):
        conflicts(torch.ones(shapes[0]), torch.ones(shapes[1]))


def test_inputs_stay_as_they_are() -> None:
    rows, update = normal(1, 3, 20), normal(2, 20)
    before = rows.clone(), update.clone()
    conflicts(rows, update)
    cosine(rows[0], update)
    distance(rows[0], update)
    assert torch.equal(rows, before[0])
    assert torch.equal(update, before[1])
