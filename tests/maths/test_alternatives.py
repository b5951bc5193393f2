import math
from itertools import chain, combinations

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedunlearn.maths import (
    DirectionStatus,
    common_descent,
    cosine,
    orthogonal_direction,
    plain_descent,
    random_direction,
)

properties = settings(max_examples=80, deadline=None, derandomize=True, database=None)
seeds = st.integers(0, 2**32)
dtypes = st.sampled_from([torch.float32, torch.float64])


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def draw_from(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@st.composite
def gradients(draw: st.DrawFn, most: int = 9, widest: int = 40) -> tuple[Tensor, Tensor]:
    """A target's gradient and those of the others: alike, opposed, repeated, of norms from 0.001 to 1000."""
    count, width = draw(st.integers(1, most)), draw(st.integers(2, widest))
    rows = normal(draw(seeds), count + 1, width)
    rows += draw(st.floats(-3, 3)) * normal(draw(seeds), width)
    for row in range(1, count):
        match draw(st.sampled_from(["own", "own", "duplicate", "opposite", "zero"])):
            case "duplicate":
                rows[row] = rows[0]
            case "opposite":
                rows[row] = -rows[0]
            case "zero":
                rows[row] = 0
    exponents = draw(st.lists(st.floats(-3, 3), min_size=count + 1, max_size=count + 1))
    rows = (rows * 10 ** torch.tensor(exponents, dtype=torch.float64).unsqueeze(1)).to(draw(dtypes))
    return rows[-1], rows[:-1]


def shortest(rows: Tensor) -> float:
    """The least norm in the convex hull, over the affine hulls of all subsets."""
    best = math.inf
    for chosen in chain.from_iterable(combinations(range(len(rows)), k) for k in range(1, len(rows) + 1)):
        some = rows[list(chosen)].double()
        edges = some[1:] - some[0]
        weights = (
            torch.linalg.lstsq(edges.T, -some[0], driver="gelsd").solution if len(edges) else edges[:, 0]
        )
        weights = torch.cat([1 - weights.sum().reshape(1), weights])
        if bool((weights >= -1e-12).all()):
            best = min(best, float((weights @ some).norm()))
    return best


@properties
@given(gradients())
def test_the_common_descent_descends_everybody(case: tuple[Tensor, Tensor]) -> None:
    forget, retain = case
    step, rows = common_descent(forget, retain), torch.cat([retain, forget.unsqueeze(0)]).double()
    products, length = rows @ step.vector.double(), float(step.vector.double().norm())
    longest = float(rows.norm(dim=1).max())
    assert float(products.max()) <= -(length**2) + 1e-6 * longest**2
    if step.status is DirectionStatus.OK:
        # The rounding of the vector itself apart.
        assert float((products / rows.norm(dim=1)).max()) <= 1e-6 * length


@properties
@given(gradients(most=4))
def test_the_common_descent_is_the_shortest_of_the_convex_hull(case: tuple[Tensor, Tensor]) -> None:
    forget, retain = case
    step, rows = common_descent(forget, retain), torch.cat([retain, forget.unsqueeze(0)])
    longest = float(rows.double().norm(dim=1).max())
    assert abs(float(step.vector.double().norm()) - shortest(rows)) <= 1e-6 * longest


@properties
@given(gradients())
def test_the_common_descent_is_no_longer_than_that_of_torchjd(case: tuple[Tensor, Tensor]) -> None:
    aggregation = pytest.importorskip("torchjd.aggregation", reason="an oracle, installed by hand")
    forget, retain = case
    rows = torch.cat([retain, forget.unsqueeze(0)]).double()
    theirs = aggregation.MGDA(epsilon=1e-12, max_iters=2000)(rows)
    ours, longest = common_descent(forget.double(), retain.double()).vector, float(rows.norm(dim=1).max())
    assert float(ours.norm()) <= float(theirs.norm()) + 1e-8 * longest


@properties
@given(gradients(), st.floats(-3, 3))
def test_the_common_descent_scales_with_the_gradients(case: tuple[Tensor, Tensor], exponent: float) -> None:
    forget, retain = (part.double() for part in case)
    one, other = common_descent(forget, retain), common_descent(10**exponent * forget, 10**exponent * retain)
    assume(one.status is DirectionStatus.OK and other.status is DirectionStatus.OK)
    longest = float(torch.cat([retain, forget.unsqueeze(0)]).norm(dim=1).max())
    assert float((other.vector / 10**exponent - one.vector).norm()) <= 1e-5 * longest


@pytest.mark.parametrize("match_norm", [False, True])
def test_between_opposite_gradients_there_is_no_common_descent(match_norm: bool) -> None:
    forget = normal(1, 20)
    step = common_descent(forget, -3 * forget.unsqueeze(0), match_norm=match_norm)
    assert step.status is DirectionStatus.IN_SPAN
    assert not step.vector.any()


def test_the_common_descent_of_one_gradient_is_its_own() -> None:
    forget = normal(1, 20)
    step = common_descent(forget, forget.unsqueeze(0))
    assert torch.allclose(step.vector, -forget)
    assert common_descent(forget, forget.new_empty(0, 20)).vector.tolist() == pytest.approx(
        (-forget).tolist()
    )


def test_the_common_descent_may_be_as_long_as_the_targets_gradient() -> None:
    forget, retain = normal(1, 20), normal(2, 3, 20)
    plain, long = common_descent(forget, retain), common_descent(forget, retain, match_norm=True)
    assert float(long.vector.norm()) == pytest.approx(float(forget.norm()))
    assert cosine(plain.vector, long.vector) == pytest.approx(1)
    assert long.amplification > 1


def test_the_common_descent_of_long_vectors_is_found_block_by_block() -> None:
    forget, retain = normal(1, 300_000), normal(2, 3, 300_000)
    step = common_descent(forget.float(), retain.float())
    rows = torch.cat([retain, forget.unsqueeze(0)])
    square = float(step.vector.double().norm()) ** 2
    assert (rows @ step.vector.double() / -square).tolist() == pytest.approx([1] * 4, rel=1e-5)


@properties
@given(seeds, st.integers(1, 6), st.integers(8, 60), st.sampled_from([0.0, 0.5, 1.0, 30.0, math.inf]), dtypes)
def test_the_random_direction_is_orthogonal_to_each_row_and_forgets(
    seed: int, count: int, width: int, spread: float, dtype: torch.dtype
) -> None:
    forget, retain = normal(seed, width).to(dtype), normal(seed + 1, count, width).to(dtype)
    step = random_direction(forget, retain, draw_from(seed), spread=spread)
    assert step.status is DirectionStatus.OK
    assert max(abs(cosine(row, step.vector)) for row in retain) <= 1e-6
    assert cosine(step.vector, forget) <= 0
    assert float(step.vector.norm()) == pytest.approx(float(forget.norm()), rel=1e-5)


def test_the_random_direction_follows_its_generator_alone() -> None:
    forget, retain = normal(1, 30), normal(2, 3, 30)
    one, again, other = (random_direction(forget, retain, draw_from(seed)).vector for seed in (1, 1, 2))
    assert torch.equal(one, again)
    assert cosine(one, other) < 0.9


def test_the_spread_leads_from_the_steepest_direction_to_chance() -> None:
    forget, retain = normal(3, 3000), normal(2, 3, 3000)
    steepest = orthogonal_direction(forget, retain).vector
    assert torch.allclose(random_direction(forget, retain, draw_from(1), spread=0).vector, steepest)
    near = random_direction(forget, retain, draw_from(1), spread=1).vector
    chance = random_direction(forget, retain, draw_from(1), spread=math.inf).vector
    assert cosine(near, steepest) == pytest.approx(1 / math.sqrt(2), abs=0.05)
    assert 0 <= cosine(chance, steepest) < 0.1


@pytest.mark.parametrize("spread", [-1.0, math.nan])
def test_a_spread_that_is_none_is_refused(spread: float) -> None:
    with pytest.raises(ValueError, match="spread"):
        random_direction(normal(1, 4), normal(2, 1, 4), draw_from(1), spread=spread)


def test_where_the_rows_fill_the_space_no_random_direction_is_left() -> None:
    step = random_direction(normal(1, 4), normal(2, 4, 4), draw_from(1))
    assert step.status is DirectionStatus.IN_SPAN
    assert not step.vector.any()


def test_plain_descent_is_the_negated_gradient() -> None:
    forget, retain = normal(1, 20), normal(2, 3, 20)
    step = plain_descent(forget, retain)
    assert torch.equal(step.vector, -forget)
    assert step.status is DirectionStatus.UNCONSTRAINED
    assert step.max_cosine == pytest.approx(max(abs(cosine(forget, row)) for row in retain))


@pytest.mark.parametrize(
    "direct",
    [plain_descent, common_descent, lambda forget, retain: random_direction(forget, retain, draw_from(1))],
)
def test_nothing_to_forget_is_nothing_to_do(direct) -> None:
    step = direct(torch.zeros(5), torch.ones(2, 5))
    assert step.status is DirectionStatus.ZERO_FORGET
    assert not step.vector.any()


@pytest.mark.parametrize(
    "direct",
    [plain_descent, common_descent, lambda forget, retain: random_direction(forget, retain, draw_from(1))],
)
def test_inputs_stay_as_they_are(direct) -> None:
    forget, retain = normal(1, 20), normal(2, 3, 20)
    direct(forget, retain).vector.zero_()
    assert torch.equal(forget, normal(1, 20))
    assert torch.equal(retain, normal(2, 3, 20))
