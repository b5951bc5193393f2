import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedunlearn.maths import (
    DirectionStatus,
    cosine,
    min_norm_weights,
    null_space_descent,
    orthogonal_direction,
    pareto_improvement,
)

properties = settings(max_examples=20, deadline=None, derandomize=True, database=None)
seeds = st.integers(0, 2**32)
dtypes = st.sampled_from([torch.float32, torch.float64])


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@st.composite
def clients(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """Up to three targets and five others, of norms from 0.001 to 1000, with more columns than rows."""
    targets, others, width = draw(st.integers(1, 3)), draw(st.integers(1, 5)), draw(st.integers(12, 40))
    rows = normal(draw(seeds), targets + others, width) + draw(st.floats(0, 2)) * normal(draw(seeds), width)
    exponents = draw(st.lists(st.floats(-3, 3), min_size=len(rows), max_size=len(rows)))
    rows = (rows * 10 ** torch.tensor(exponents, dtype=torch.float64).unsqueeze(1)).to(draw(dtypes))
    return rows[:targets], rows[targets:]


@properties
@given(seeds, st.integers(1, 6), st.integers(2, 8))
def test_no_other_convex_weights_give_a_shorter_vector(seed: int, count: int, width: int) -> None:
    rows = normal(seed, count, width)
    weights = min_norm_weights(rows @ rows.T)
    assert float(weights.min()) >= 0
    assert float(weights.sum()) == pytest.approx(1)
    shortest = weights @ rows
    # The nearest point of a convex set: every vertex lies beyond the plane through it.
    assert float((rows @ shortest).min()) >= float(shortest @ shortest) - 1e-9


def test_a_zero_vector_has_all_the_weight() -> None:
    rows = torch.stack([normal(1, 3), torch.zeros(3, dtype=torch.float64), normal(2, 3)])
    assert min_norm_weights(rows @ rows.T).tolist() == [0, 1, 0]


@properties
@given(clients())
def test_an_improvement_descends_everybody_by_the_share_that_it_states(case: tuple[Tensor, Tensor]) -> None:
    forget, retain = case
    step = pareto_improvement(forget, retain)
    assert step.status is DirectionStatus.OK
    cosines = [cosine(step.vector, row) for row in (*forget, *retain)]
    assert max(cosines) == pytest.approx(-step.sine, abs=1e-5)
    assert step.max_cosine == pytest.approx(max(abs(cosine(step.vector, row)) for row in retain), abs=1e-5)
    assert float(step.vector.norm()) == pytest.approx(float(forget.norm(dim=1).mean()), rel=1e-4)


@properties
@given(clients(), seeds)
def test_no_other_direction_descends_the_last_by_more(case: tuple[Tensor, Tensor], seed: int) -> None:
    forget, retain = (part.double() for part in case)
    step, rows = pareto_improvement(forget, retain), torch.cat([forget, retain])
    for shift in (0.01, 0.3):
        other = step.vector / step.vector.norm() + shift * normal(seed, forget.shape[1])
        assert max(cosine(other, row) for row in rows) >= -step.sine - 1e-9


def test_between_opposed_clients_there_is_no_improvement() -> None:
    forget, row = normal(1, 2, 20), normal(2, 20)
    step = pareto_improvement(forget, torch.stack([row, -3 * row]))
    assert step.status is DirectionStatus.IN_SPAN
    assert not step.vector.any()


def test_a_share_that_is_too_small_is_no_improvement() -> None:
    forget, retain = normal(1, 2, 20), normal(2, 3, 20)
    share = pareto_improvement(forget, retain).sine
    found = pareto_improvement(forget, retain, min_cosine=share * 1.01)
    assert found.status is DirectionStatus.IN_SPAN
    assert found.sine == pytest.approx(share)
    assert pareto_improvement(forget, retain, min_cosine=share * 0.99).status is DirectionStatus.OK


@properties
@given(clients())
def test_the_null_space_descent_changes_no_retained_loss_and_descends_every_target(
    case: tuple[Tensor, Tensor],
) -> None:
    forget, retain = case
    step = null_space_descent(forget, retain)
    assert step.status is DirectionStatus.OK
    assert max(abs(cosine(step.vector, row)) for row in retain) <= 1e-5
    assert max(cosine(step.vector, row) for row in forget) <= -step.sine + 1e-5
    assert step.sine > 0
    assert float(step.vector.norm()) == pytest.approx(float(forget.norm(dim=1).mean()), rel=1e-4)


def test_in_the_null_space_one_target_goes_the_orthogonal_way() -> None:
    forget, retain = normal(1, 1, 20), normal(2, 3, 20)
    assert torch.equal(
        null_space_descent(forget, retain).vector, orthogonal_direction(forget[0], retain).vector
    )


def test_targets_that_are_opposed_in_the_null_space_have_no_step() -> None:
    retain, row = normal(2, 3, 20), normal(1, 20)
    assert null_space_descent(torch.stack([row, retain[0] - row]), retain).status is DirectionStatus.IN_SPAN


def test_a_target_in_the_span_of_the_others_does_not_hold_up_the_rest() -> None:
    retain, row = normal(2, 3, 20), normal(1, 20)
    step = null_space_descent(torch.stack([retain.sum(0), row]), retain)
    assert torch.equal(step.vector, orthogonal_direction(row, retain).vector)
    assert null_space_descent(retain.sum(0).unsqueeze(0), retain).status is DirectionStatus.IN_SPAN


@pytest.mark.parametrize("direct", [pareto_improvement, null_space_descent])
def test_zero_rows_impose_nothing(direct) -> None:
    forget, retain = normal(1, 2, 20), normal(2, 3, 20)
    zero = torch.zeros(1, 20, dtype=torch.float64)
    one = direct(forget, retain).vector
    assert torch.allclose(direct(torch.cat([forget, zero]), torch.cat([retain, zero])).vector, one)
    assert direct(zero, retain).status is DirectionStatus.ZERO_FORGET
    assert not direct(zero, retain).vector.any()


@pytest.mark.parametrize("direct", [pareto_improvement, null_space_descent])
def test_inputs_stay_as_they_are_and_nonsense_is_refused(direct) -> None:
    forget, retain = normal(1, 2, 20), normal(2, 3, 20)
    direct(forget, retain).vector.zero_()
    assert torch.equal(forget, normal(1, 2, 20))
    assert torch.equal(retain, normal(2, 3, 20))
    with pytest.raises(ValueError, match="same number of columns"):
        direct(forget[:, 1:], retain)
    with pytest.raises(ValueError, match="must have a row"):
        direct(forget[:0], retain)
    with pytest.raises(ValueError, match="NaN"):
        direct(forget * torch.nan, retain)


def test_long_vectors_are_read_block_by_block() -> None:
    forget, retain = normal(1, 2, 300_000).float(), normal(2, 3, 300_000).float()
    step = pareto_improvement(forget, retain)
    cosines = [cosine(step.vector, row) for row in (*forget, *retain)]
    assert cosines == pytest.approx([-step.sine] * 5, abs=1e-5)
