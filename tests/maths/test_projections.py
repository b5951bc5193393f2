import math
from itertools import chain, combinations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedunlearn.maths import cosine, project_between, project_off

properties = settings(max_examples=200, deadline=None, derandomize=True, database=None)
dtypes = st.sampled_from([torch.float32, torch.float64])
exponents = st.floats(-8, 8)


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@st.composite
def clients(draw: st.DrawFn) -> tuple[list[Tensor], Tensor]:
    """Displacements of any scale, some nearly parallel to the way from ω⁰, which is never negligible."""
    dtype, width, seed = draw(dtypes), draw(st.integers(1, 64)), draw(st.integers(0, 2**32))
    away = normal(seed, width) / normal(seed, width).norm()
    scales = draw(st.lists(exponents, min_size=1, max_size=5))
    displacements = []
    for client, scale in enumerate(scales):
        other = normal(seed + 1 + client, width)
        mixed = draw(st.floats(-1, 1)) * away + 10 ** -draw(st.floats(0, 9)) * other / other.norm()
        displacements.append((10**scale * mixed).to(dtype))
    return displacements, (10 ** draw(st.floats(max(-8, max(scales) - 11), 8)) * away).to(dtype)


@properties
@given(clients(), st.booleans(), st.booleans())
def test_p8_the_mean_never_brings_the_model_back(
    case: tuple[list[Tensor], Tensor], always: bool, rescale: bool
) -> None:
    displacements, away = case
    results = [project_off(each, away, always=always, rescale=rescale) for each in displacements]
    before, mean = away.double(), torch.stack(results).double().mean(0)
    assert float((before - mean).norm()) >= float(before.norm()) * (1 - 1e-6)


@properties
@given(clients(), st.booleans())
def test_p8_what_remains_has_no_part_along_away(case: tuple[list[Tensor], Tensor], always: bool) -> None:
    displacements, away = case
    for each in displacements:
        result = project_off(each, away, always=always)
        assert cosine(result, away) <= 1e-7
        if always:
            assert abs(cosine(result, away)) <= 1e-7


@properties
@given(clients())
def test_rescaled_to_the_former_norm_or_zero(case: tuple[list[Tensor], Tensor]) -> None:
    displacements, away = case
    for each in displacements:
        result = project_off(each, away, always=True)
        if result.any():
            assert float(result.double().norm()) == pytest.approx(float(each.double().norm()), rel=1e-6)
        elif each.any():
            assert abs(cosine(each, away)) >= 1 - 1e-11


@properties
@given(clients())
def test_not_rescaled_it_is_the_nearest_point_of_the_plane(case: tuple[list[Tensor], Tensor]) -> None:
    displacements, away = case
    axis = away.double() / away.double().norm()
    for each in displacements:
        expected = each.double() - (each.double() @ axis) * axis
        result = project_off(each, away, always=True, rescale=False)
        assert float((result.double() - expected).norm()) <= 2e-6 * float(each.double().norm())


@properties
@given(clients(), st.booleans())
def test_p7_projecting_a_projection_changes_nothing(case: tuple[list[Tensor], Tensor], always: bool) -> None:
    displacements, away = case
    for each in displacements:
        once = project_off(each, away, always=always)
        twice = project_off(once, away, always=always)
        assert float((twice.double() - once.double()).norm()) <= 1e-6 * float(once.double().norm())


@properties
@given(st.integers(0, 2**32), exponents, exponents, dtypes)
def test_p9_a_product_of_exactly_zero_changes_no_bit(
    seed: int, one: float, two: float, dtype: torch.dtype
) -> None:
    displacement, away = normal(seed, 20), normal(seed + 1, 20)
    displacement[::2], away[1::2] = 0, 0
    displacement, away = (10**one * displacement).to(dtype), (10**two * away).to(dtype)
    assert torch.equal(project_off(displacement, away), displacement)


@properties
@given(clients())
def test_p9_only_a_positive_product_is_projected(case: tuple[list[Tensor], Tensor]) -> None:
    displacements, away = case
    for each in displacements:
        if float(each.double() @ away.double()) <= 0:
            assert torch.equal(project_off(each, away), each)
        else:
            assert torch.equal(project_off(each, away), project_off(each, away, always=True))


def test_the_smallest_positive_product_is_projected() -> None:
    displacement, away = torch.tensor([1.0, 1e-6]), torch.tensor([0.0, 1.0])
    assert torch.equal(project_off(displacement, away), torch.tensor([1.0, 0.0]))


def test_negative_product_is_projected_only_when_always() -> None:
    displacement, away = torch.tensor([3.0, -4.0]), torch.tensor([0.0, 2.0])
    assert torch.equal(project_off(displacement, away), displacement)
    assert torch.equal(project_off(displacement, away, always=True), torch.tensor([5.0, 0.0]))
    assert torch.equal(project_off(displacement, away, always=True, rescale=False), torch.tensor([3.0, 0.0]))


@pytest.mark.parametrize("always", [False, True])
@pytest.mark.parametrize("size", [0.0, 1e-13])
def test_negligible_away_changes_nothing(always: bool, size: float) -> None:
    displacement = normal(1, 20) / normal(1, 20).norm()
    away = size * displacement
    assert torch.equal(project_off(displacement, away, always=always), displacement)


@pytest.mark.parametrize("rescale", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_parallel_displacement_becomes_zero(rescale: bool, dtype: torch.dtype) -> None:
    away = normal(1, 50).to(dtype)
    assert torch.equal(project_off(3 * away, away, rescale=rescale), torch.zeros(50, dtype=dtype))


def test_border_of_what_is_too_parallel() -> None:
    away = torch.tensor([1.0, 0.0], dtype=torch.float64)
    assert not project_off(torch.tensor([1.0, 0.9e-6], dtype=torch.float64), away).any()
    kept = project_off(torch.tensor([1.0, 1.1e-6], dtype=torch.float64), away)
    assert kept.tolist() == pytest.approx([0, 1], abs=1e-9)


def test_zero_displacement_stays_zero() -> None:
    assert torch.equal(project_off(torch.zeros(3), torch.ones(3), always=True), torch.zeros(3))


@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_float32_norms_from_1e_minus_30_to_1e30(size: float) -> None:
    displacement, away = normal(1, 50), normal(2, 50) + normal(1, 50)
    expected = project_off(displacement, away)
    result = project_off((size * displacement).float(), (size * away).float()).double() / size
    assert float((result - expected).norm() / expected.norm()) <= 1e-6


def test_long_vectors_are_projected_block_by_block() -> None:
    displacement, away = normal(1, 300_000), normal(2, 300_000) + normal(1, 300_000)
    expected = displacement - (displacement @ away) / (away @ away) * away
    expected *= displacement.norm() / expected.norm()
    result = project_off(displacement.float(), away.float())
    assert float((result - expected).norm() / expected.norm()) <= 1e-6


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_non_finite_values_are_refused_by_name(value: float) -> None:
    with pytest.raises(ValueError, match="displacement holds"):
        project_off(torch.tensor([1.0, value]), torch.ones(2))
    with pytest.raises(ValueError, match="away holds"):
        project_off(torch.ones(2), torch.tensor([1.0, value]))


@pytest.mark.parametrize(
    "shapes",
    [((3,), (4,)), ((3, 1), (3, 1)), ((3,), (3, 1)), ((3,), (2, 4)), ((3,), (0, 3)), ((3,), (1, 2, 3))],
)
def test_shapes_that_do_not_fit_are_refused(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    with pytest.raises(ValueError, match="a vector and one or more rows of its length"):
        project_off(torch.ones(shapes[0]), torch.ones(shapes[1]))


@pytest.mark.parametrize("sign", [1, -1])
def test_inputs_stay_as_they_are(sign: int) -> None:
    displacement, away = sign * normal(1, 20), normal(1, 20) + normal(2, 20)
    before = displacement.clone(), away.clone()
    project_off(displacement, away).zero_()
    assert torch.equal(displacement, before[0])
    assert torch.equal(away, before[1])


@st.composite
def half_spaces(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """A vector and up to five normals of any scale: repeated, opposed, zero or in general position."""
    count, width, seed = draw(st.integers(1, 5)), draw(st.integers(1, 12)), draw(st.integers(0, 2**32))
    normals = normal(seed, count, width)
    for row in range(1, count):
        match draw(st.sampled_from(["own", "own", "duplicate", "opposite", "zero"])):
            case "duplicate":
                normals[row] = normals[0]
            case "opposite":
                normals[row] = -normals[0]
            case "zero":
                normals[row] = 0
    scales = torch.tensor(draw(st.lists(st.floats(-6, 6), min_size=count, max_size=count)))
    return 10 ** draw(exponents) * normal(seed + 1, width), normals * 10 ** scales.double().unsqueeze(1)


def nearest(displacement: Tensor, normals: Tensor) -> Tensor:
    """The best feasible one of the projections on all intersections of planes."""
    units = normals[normals.norm(dim=1) > 0]
    units = units / units.norm(dim=1, keepdim=True)
    best = torch.zeros_like(displacement)
    for chosen in chain.from_iterable(combinations(range(len(units)), k) for k in range(len(units) + 1)):
        planes = units[list(chosen)]
        point = displacement - planes.T @ (torch.linalg.pinv(planes.T, rtol=1e-10) @ displacement)
        feasible = not len(units) or float((units @ point).min()) >= -1e-10 * float(displacement.norm())
        if feasible and (point - displacement).norm() < (best - displacement).norm():
            best = point
    return best


def comparable(case: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """The same with a displacement of norm 1, beside which no row but a zero one is negligible."""
    displacement, rows = case
    return displacement / displacement.norm(), rows


@properties
@given(half_spaces(), dtypes, st.booleans(), st.booleans())
def test_off_several_rows_the_mean_leads_back_to_none(
    case: tuple[Tensor, Tensor], dtype: torch.dtype, always: bool, rescale: bool
) -> None:
    displacement, away = (part.to(dtype) for part in comparable(case))
    result = project_off(displacement, away, always=always, rescale=rescale)
    assert result.dtype == dtype
    for row in away:
        if row.any():
            assert cosine(result, row) <= 2e-6
            if always:
                assert abs(cosine(result, row)) <= 2e-6


@properties
@given(half_spaces())
def test_off_several_rows_it_is_the_nearest_vector_that_leads_back_to_none(
    case: tuple[Tensor, Tensor],
) -> None:
    displacement, away = comparable(case)
    result = project_off(displacement, away, rescale=False)
    expected = nearest(displacement, -away)
    if float(expected.norm()) > 2e-6:
        assert float((result - expected).norm()) <= 1e-7
        assert float((result - project_between(displacement, -away)).norm()) <= 1e-7
    else:
        assert not result.any() or float((result - expected).norm()) <= 1e-7


@properties
@given(half_spaces())
def test_off_several_rows_always_is_the_part_orthogonal_to_all(case: tuple[Tensor, Tensor]) -> None:
    displacement, away = comparable(case)
    units = torch.nn.functional.normalize(away)
    expected = displacement - units.T @ (torch.linalg.pinv(units.T, rtol=1e-10) @ displacement)
    result = project_off(displacement, away, always=True, rescale=False)
    if float(expected.norm()) > 2e-6:
        assert float((result - expected).norm()) <= 1e-7
    else:
        assert not result.any()


@properties
@given(half_spaces(), st.booleans())
def test_off_several_rows_the_norm_stays_or_is_zero(case: tuple[Tensor, Tensor], always: bool) -> None:
    displacement, away = comparable(case)
    result = project_off(displacement, away, always=always)
    assert not result.any() or float(result.norm()) == pytest.approx(1, rel=1e-9)


@properties
@given(half_spaces(), st.booleans())
def test_off_several_rows_twice_is_once(case: tuple[Tensor, Tensor], always: bool) -> None:
    displacement, away = comparable(case)
    once = project_off(displacement, away, always=always)
    assert float((project_off(once, away, always=always) - once).norm()) <= 1e-6


@properties
@given(half_spaces(), st.booleans(), st.integers(0, 2**32))
def test_off_several_rows_their_order_repetition_and_length_do_not_matter(
    case: tuple[Tensor, Tensor], always: bool, seed: int
) -> None:
    displacement, away = comparable(case)
    order = torch.randperm(len(away), generator=torch.Generator().manual_seed(seed))
    expected = project_off(displacement, away, always=always, rescale=False)
    for other in (away[order], torch.cat([away, away[:1]]), 3 * away):
        result = project_off(displacement, other, always=always, rescale=False)
        assert float((result - expected).norm()) <= 1e-7


@properties
@given(clients(), st.booleans(), st.booleans())
def test_off_one_row_is_the_vector_form_to_the_bit(
    case: tuple[list[Tensor], Tensor], always: bool, rescale: bool
) -> None:
    displacements, away = case
    for each in displacements:
        assert torch.equal(
            project_off(each, away.unsqueeze(0), always=always, rescale=rescale),
            project_off(each, away, always=always, rescale=rescale),
        )


@properties
@given(clients(), st.booleans())
def test_off_rows_of_which_all_but_one_are_zero_is_the_vector_form(
    case: tuple[list[Tensor], Tensor], always: bool
) -> None:
    displacements, away = case
    for each in displacements:
        expected = project_off(each, away, always=always).double()
        result = project_off(each, torch.stack([torch.zeros_like(away), away]), always=always).double()
        assert float((result - expected).norm()) <= 1e-6 * float(each.double().norm())


@pytest.mark.parametrize("always", [False, True])
@pytest.mark.parametrize("size", [0.0, 1e-13])
def test_off_negligible_rows_nothing_changes(always: bool, size: float) -> None:
    displacement = normal(1, 20) / normal(1, 20).norm()
    away = size * torch.stack([displacement, normal(2, 20)])
    assert torch.equal(project_off(displacement, away, always=always), displacement)


def test_off_rows_that_lead_elsewhere_no_bit_changes() -> None:
    displacement, away = normal(1, 20), normal(2, 3, 20)
    turned = away * -torch.sign(away @ displacement).unsqueeze(1)
    assert torch.equal(project_off(displacement, turned), displacement)


@pytest.mark.parametrize("size", [2.0**-60, 2.0**60])
def test_off_several_rows_and_between_planes_the_size_of_a_displacement_does_not_matter(size: float) -> None:
    displacement, away = normal(1, 20), normal(2, 3, 20)
    turned = 2.0**30 * away * torch.sign(away @ displacement).unsqueeze(1)
    assert torch.equal(project_off(size * displacement, turned), size * project_off(displacement, turned))
    between = project_between(displacement, -turned)
    assert not torch.equal(between, displacement)
    assert torch.equal(project_between(size * displacement, -turned), size * between)


@pytest.mark.parametrize("rescale", [False, True])
def test_off_rows_that_hold_it_in_their_cone_nothing_is_left(rescale: bool) -> None:
    away = normal(1, 2, 50).float()
    assert not project_off(2 * away[0] + 3 * away[1], away, rescale=rescale).any()


def test_off_several_rows_long_vectors_are_projected_block_by_block() -> None:
    displacement, away = normal(1, 300_000), normal(2, 2, 300_000)
    turned = away * torch.sign(away @ displacement).unsqueeze(1)
    expected = nearest(displacement, -turned)
    expected = expected * (displacement.norm() / expected.norm())
    result = project_off(displacement.float(), turned.float()).double()
    assert float((result - expected).norm() / expected.norm()) <= 1e-6


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_off_several_rows_non_finite_values_are_refused(value: float) -> None:
    with pytest.raises(ValueError, match="NaN"):
        project_off(torch.tensor([1.0, value]), torch.ones(2, 2))
    with pytest.raises(ValueError, match="NaN"):
        project_off(torch.ones(2), torch.tensor([[1.0, 1.0], [1.0, value]]))


@pytest.mark.parametrize("always", [False, True])
def test_off_several_rows_inputs_stay_as_they_are(always: bool) -> None:
    displacement, away = normal(1, 20), normal(2, 2, 20)
    project_off(displacement, away, always=always).zero_()
    assert torch.equal(displacement, normal(1, 20))
    assert torch.equal(away, normal(2, 2, 20))


@properties
@given(half_spaces())
def test_between_planes_it_is_the_nearest_point(case: tuple[Tensor, Tensor]) -> None:
    displacement, normals = case
    gap = project_between(displacement, normals) - nearest(displacement, normals)
    assert float(gap.norm()) <= 1e-7 * float(displacement.norm())


@properties
@given(half_spaces(), dtypes)
def test_between_planes_no_product_is_negative(case: tuple[Tensor, Tensor], dtype: torch.dtype) -> None:
    displacement, normals = (part.to(dtype) for part in case)
    result = project_between(displacement, normals)
    small = (1e-6 if dtype is torch.float32 else 1e-9) * float(displacement.double().norm())
    for row in normals.double():
        assert float(row @ result.double()) >= -small * float(row.norm())
    assert result.dtype == dtype


@properties
@given(half_spaces())
def test_between_planes_projecting_twice_is_projecting_once(case: tuple[Tensor, Tensor]) -> None:
    displacement, normals = case
    once = project_between(displacement, normals)
    gap = project_between(once, normals) - once
    assert float(gap.norm()) <= 1e-7 * float(displacement.norm())


@properties
@given(half_spaces(), st.integers(0, 2**32))
def test_between_planes_nothing_gets_longer_or_farther_apart(case: tuple[Tensor, Tensor], seed: int) -> None:
    displacement, normals = case
    other = float(displacement.norm()) * normal(seed, len(displacement))
    one, two = project_between(displacement, normals), project_between(other, normals)
    size = float(displacement.norm() + other.norm())
    assert float((one - two).norm()) <= float((displacement - other).norm()) + 1e-7 * size
    # A cone: what is taken away is orthogonal to what is left.
    assert abs(float(one @ (displacement - one))) <= 1e-7 * size**2


@properties
@given(half_spaces())
def test_between_planes_a_vector_that_may_stay_keeps_its_bits(case: tuple[Tensor, Tensor]) -> None:
    displacement, normals = case
    turned = normals * torch.where(normals @ displacement < 0, -1.0, 1.0).unsqueeze(1)
    assert torch.equal(project_between(displacement, turned), displacement)


def test_between_planes_long_vectors_are_projected_block_by_block() -> None:
    displacement, normals = normal(1, 300_000), normal(2, 2, 300_000)
    turned = normals * -torch.sign(normals @ displacement).unsqueeze(1)
    result = project_between(displacement.float(), turned.float()).double()
    expected = nearest(displacement, turned)
    assert float((result - expected).norm() / expected.norm()) <= 1e-6


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_between_planes_non_finite_values_are_refused(value: float) -> None:
    with pytest.raises(ValueError, match="NaN"):
        project_between(torch.tensor([1.0, value]), torch.ones(1, 2))
    with pytest.raises(ValueError, match="NaN"):
        project_between(torch.ones(2), torch.tensor([[1.0, value]]))


@pytest.mark.parametrize("shapes", [((3,), (3,)), ((3,), (2, 4)), ((3, 1), (2, 3))])
def test_between_planes_shapes_that_do_not_fit_are_refused(
    shapes: tuple[tuple[int, ...], tuple[int, ...]],
) -> None:
    with pytest.raises(ValueError, match="normals must be a matrix"):
        project_between(torch.ones(shapes[0]), torch.ones(shapes[1]))


def test_between_planes_inputs_stay_as_they_are() -> None:
    displacement, normals = normal(1, 20), normal(2, 2, 20)
    project_between(displacement, normals).zero_()
    assert torch.equal(displacement, normal(1, 20))
    assert torch.equal(normals, normal(2, 2, 20))
