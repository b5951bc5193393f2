import math
from fractions import Fraction

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedunlearn.maths import Direction, DirectionStatus, directions, orthogonal_direction

properties = settings(max_examples=200, deadline=None, derandomize=True, database=None)
seeds = st.integers(0, 2**32)


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def unit(rows: Tensor) -> Tensor:
    norms = rows.double().norm(dim=-1, keepdim=True)
    return rows.double() / torch.where(norms > 0, norms, 1.0)


def worst_cosine(step: Direction, retain: Tensor) -> float:
    return float((unit(retain) @ unit(step.vector)).abs().max())


def relative(actual: Tensor, expected: Tensor) -> float:
    return float((actual.double() - expected.double()).norm() / expected.double().norm())


@st.composite
def dependent_rows(draw: st.DrawFn, most: int = 12) -> Tensor:
    """Rows in general position, some replaced by zeros, duplicates and sums: of any rank, never nearly so."""
    count = draw(st.integers(1, most))
    rows = normal(draw(seeds), count, draw(st.integers(count + 1, 64)))
    for row in range(1, count):
        match draw(st.sampled_from(["own", "own", "duplicate", "sum", "zero"])):
            case "duplicate":
                rows[row] = rows[0]
            case "sum":
                rows[row] = rows[:row].sum(0)
            case "zero":
                rows[row] = 0
    return rows


@st.composite
def hostile_rows(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """A forget vector, and rows of any norm, some of which differ by very little, along forget itself."""
    rows = draw(dependent_rows())
    forget = normal(draw(seeds), rows.shape[1])
    for row in range(1, len(rows)):
        if draw(st.booleans()):
            rows[row] = rows[0] + 10 ** -draw(st.floats(0, 16)) * forget
    forget = forget + draw(st.floats(0.01, 1)) * normal(draw(seeds), rows.shape[1])
    exponents = draw(st.lists(st.floats(-12, 12), min_size=len(rows), max_size=len(rows)))
    rows = rows * 10 ** torch.tensor(exponents, dtype=torch.float64).unsqueeze(1)
    dtype = draw(st.sampled_from([torch.float32, torch.float64]))
    return forget.to(dtype), rows.to(dtype)


def not_negligible(rows: Tensor) -> Tensor:
    norms = rows.double().norm(dim=1)
    return rows[norms > 1e-12 * norms[norms > 0].median()]


@properties
@given(hostile_rows())
def test_p1_orthogonal_to_each_row(case: tuple[Tensor, Tensor]) -> None:
    forget, retain = case
    step = orthogonal_direction(forget, retain)
    assume(step.status is DirectionStatus.OK)
    worst = worst_cosine(step, not_negligible(retain))
    assert worst <= 1e-6
    assert step.max_cosine == pytest.approx(worst, rel=1e-6, abs=1e-15)


@properties
@given(hostile_rows())
def test_p2_faithful_direction_has_the_norm_of_forget(case: tuple[Tensor, Tensor]) -> None:
    forget, retain = case
    step = orthogonal_direction(forget, retain)
    assume(step.status is DirectionStatus.OK)
    assert float(step.vector.double().norm()) == pytest.approx(float(forget.double().norm()), rel=1e-6)
    assert step.amplification == pytest.approx(1 / step.sine)


@properties
@given(hostile_rows(), st.floats(1, 20))
def test_p2_capped_direction_is_stretched_no_further(case: tuple[Tensor, Tensor], cap: float) -> None:
    forget, retain = case
    step = orthogonal_direction(forget, retain, max_amplification=cap)
    assume(step.status is DirectionStatus.OK)
    projected = step.sine * float(forget.double().norm())
    assert step.amplification == min(1 / step.sine, cap)
    assert float(step.vector.double().norm()) == pytest.approx(step.amplification * projected, rel=1e-6)


@properties
@given(dependent_rows(), seeds, seeds)
def test_p3_descends_and_no_feasible_direction_descends_more(retain: Tensor, seed: int, other: int) -> None:
    forget = normal(seed, retain.shape[1])
    step = orthogonal_direction(forget, retain)
    assume(step.status is DirectionStatus.OK)
    _, values, basis = torch.linalg.svd(unit(retain), full_matrices=False)
    basis = basis[values > 1e-9]
    noise = normal(other, 20, retain.shape[1])
    rivals = torch.cat([noise, step.vector + 0.01 * noise])
    rivals = rivals - (rivals @ basis.T) @ basis
    rivals = rivals[rivals.norm(dim=1) > 1e-6]
    best = float(unit(step.vector) @ unit(forget))
    assert best <= 0
    assert best == pytest.approx(-step.sine, abs=1e-12)
    assert float((unit(rivals) @ unit(forget)).min()) >= best - 1e-12


@properties
@given(dependent_rows(), seeds, st.data())
def test_p4_indifferent_to_scale_order_and_duplicates_of_rows(
    retain: Tensor, seed: int, data: st.DataObject
) -> None:
    forget = normal(seed, retain.shape[1])
    step = orthogonal_direction(forget, retain)
    assume(step.status is DirectionStatus.OK)
    count = len(retain)
    exponents = data.draw(st.lists(st.floats(-5, 5), min_size=count, max_size=count))
    order = data.draw(st.lists(st.integers(0, count - 1), max_size=count)) + data.draw(
        st.permutations(range(count))
    )
    changed = (retain * 10 ** torch.tensor(exponents, dtype=torch.float64).unsqueeze(1))[order]
    again = orthogonal_direction(forget, changed)
    assert again.rank == step.rank
    assert relative(again.vector, step.vector) <= 1e-9


@properties
@given(dependent_rows(), seeds, st.floats(-6, 6))
def test_p5_scales_with_forget(retain: Tensor, seed: int, exponent: float) -> None:
    forget = normal(seed, retain.shape[1])
    step = orthogonal_direction(forget, retain)
    assume(step.status is DirectionStatus.OK)
    scaled = orthogonal_direction(10**exponent * forget, retain)
    assert relative(scaled.vector, 10**exponent * step.vector) <= 1e-12
    assert scaled.sine == pytest.approx(step.sine, rel=1e-12)


@properties
@given(dependent_rows(), seeds, seeds)
def test_p6_turns_with_the_space(retain: Tensor, seed: int, rotation: int) -> None:
    forget = normal(seed, retain.shape[1])
    step = orthogonal_direction(forget, retain)
    assume(step.status is DirectionStatus.OK)
    turn, _ = torch.linalg.qr(normal(rotation, len(forget), len(forget)))
    turned = orthogonal_direction(turn @ forget, retain @ turn.T)
    assert relative(turned.vector, turn @ step.vector) <= 1e-9


@properties
@given(dependent_rows(), seeds)
def test_p7_projecting_a_projection_changes_nothing(retain: Tensor, seed: int) -> None:
    step = orthogonal_direction(normal(seed, retain.shape[1]), retain)
    assume(step.status is DirectionStatus.OK)
    again = orthogonal_direction(-step.vector, retain)
    assert again.sine == pytest.approx(1, abs=1e-12)
    assert relative(again.vector, step.vector) <= 1e-12


def exact_direction(forget: Tensor, retain: Tensor) -> list[Fraction]:
    """Eq. 6 in rational arithmetic, but for two square roots, taken to 40 digits."""

    def dot(a: list[Fraction], b: list[Fraction]) -> Fraction:
        return sum((x * y for x, y in zip(a, b, strict=True)), Fraction(0))

    def off(vector: list[Fraction], basis: list[list[Fraction]]) -> list[Fraction]:
        for axis in basis:
            share = dot(vector, axis) / dot(axis, axis)
            vector = [x - share * y for x, y in zip(vector, axis, strict=True)]
        return vector

    def root(x: Fraction) -> Fraction:
        return Fraction(math.isqrt(x.numerator * x.denominator * 10**80), x.denominator * 10**40)

    basis: list[list[Fraction]] = []
    for row in retain.tolist():
        rest = off([Fraction(x) for x in row], basis)
        if any(rest):
            basis.append(rest)
    g = [Fraction(x) for x in forget.tolist()]
    rest = off(g, basis)
    scale = -root(dot(g, g)) / root(dot(rest, rest))
    return [scale * x for x in rest]


@properties
@given(st.integers(1, 4), st.integers(1, 4), st.booleans(), seeds, seeds)
def test_agrees_with_exact_arithmetic(count: int, spare: int, dependent: bool, seed: int, other: int) -> None:
    retain, forget = normal(seed, count, count + spare), normal(other, count + spare)
    if dependent:
        retain = torch.cat([retain, 2 * retain[:1], retain[-1:]])
    step = orthogonal_direction(forget, retain)
    assume(step.status is DirectionStatus.OK)
    expected = torch.tensor([float(x) for x in exact_direction(forget, retain)], dtype=torch.float64)
    assert step.rank == count
    assert relative(step.vector, expected) <= 1e-12


def similar(seed: int, count: int, width: int, cosine: float) -> Tensor:
    return cosine**0.5 * normal(seed, 1, width) + (1 - cosine) ** 0.5 * normal(seed + 1, count, width)


def regime(name: str, count: int = 9, width: int = 100_000) -> tuple[Tensor, Tensor, int]:
    """A forget vector, retained rows and their rank: the regimes of the accuracy table."""
    rows, forget, rank = normal(1, count, width), normal(2, width), count
    match name:
        case "well-conditioned":
            pass
        case "all norms 1e-3":
            rows *= 1e-3 / width**0.5
        case "duplicate":
            rows[-1], rank = rows[0], count - 1
        case "near-duplicate 1e-4":
            rows[-1] = rows[0] + 1e-4 * normal(3, width)
        case "near-duplicate 1e-4 along forget":
            rows[-1], forget = rows[0] + 1e-4 * forget, forget + 0.5 * normal(3, width)
        case "near-duplicate 1e-6 along forget":
            rows[-1], forget = rows[0] + 1e-6 * forget, forget + 0.5 * normal(3, width)
        case "rank-deficient":
            rows[-1], rank = rows[:-1].sum(0), count - 1
        case "norms 1e-3..1e3":
            rows *= torch.logspace(-3, 3, count, dtype=torch.float64).unsqueeze(1)
        case "norms 1e-8..1e8":
            rows *= torch.logspace(-8, 8, count, dtype=torch.float64).unsqueeze(1)
        case "cos .999":
            rows = similar(3, count, width, 0.999)
        case "cos .999, small sine":
            rows = similar(3, count, width, 0.999)
            forget = rows.sum(0) / count + 0.005 * forget
    return forget.float(), rows.float(), rank


REGIMES = [
    "well-conditioned",
    "all norms 1e-3",
    "duplicate",
    "near-duplicate 1e-4",
    "near-duplicate 1e-4 along forget",
    "near-duplicate 1e-6 along forget",
    "rank-deficient",
    "norms 1e-3..1e3",
    "norms 1e-8..1e8",
    "cos .999",
    "cos .999, small sine",
]


@pytest.mark.parametrize("name", REGIMES)
def test_float32_regimes_are_orthogonal_to_1e_8(name: str) -> None:
    forget, retain, rank = regime(name)
    step = orthogonal_direction(forget, retain)
    assert step.status is DirectionStatus.OK
    assert step.rank == rank
    assert worst_cosine(step, retain) <= 1e-8
    assert step.max_cosine == pytest.approx(worst_cosine(step, retain), abs=1e-12)
    assert float(step.vector.double().norm()) == pytest.approx(float(forget.double().norm()), rel=1e-7)
    assert float(step.vector.double() @ forget.double()) < 0


FLOAT32_IS_ENOUGH = {
    "well-conditioned",
    "all norms 1e-3",
    "norms 1e-3..1e3",
    "cos .999",
    "cos .999, small sine",
}


class Passes(list[str]):
    """How often all rows are read, and for what."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def counted(*arguments, **keywords):
            self.append("read")
            return blocks(*arguments, **keywords)

        def gram(vectors, dtype):
            self.append(str(dtype))
            return cosines(vectors, dtype)

        blocks, cosines = directions.blocks, directions._Vectors.gram
        monkeypatch.setattr(directions, "blocks", counted)
        monkeypatch.setattr(directions._Vectors, "gram", gram)


@pytest.mark.parametrize("name", REGIMES)
def test_float32_rows_are_read_four_times_unless_they_all_but_coincide(name: str, monkeypatch) -> None:
    forget, retain, _ = regime(name)
    passes = Passes(monkeypatch)
    orthogonal_direction(forget, retain)
    assert ("torch.float64" not in passes) == (name in FLOAT32_IS_ENOUGH)
    assert name != "cos .999" or passes == ["torch.float32", "read", "read", "read"]
    assert passes.count("read") <= (4 if name in FLOAT32_IS_ENOUGH else 7)


@pytest.mark.parametrize("name", REGIMES)
def test_the_precision_of_the_gram_matrix_does_not_show(name: str, monkeypatch) -> None:
    forget, retain, _ = regime(name)
    step = orthogonal_direction(forget, retain)
    monkeypatch.setattr(directions, "_from_float32", lambda *_: None)
    exact = orthogonal_direction(forget, retain)
    assert (step.status, step.rank, step.dropped) == (exact.status, exact.rank, exact.dropped)
    assert relative(step.vector, exact.vector) <= 1e-6
    assert step.sine == pytest.approx(exact.sine, rel=2e-8)


def test_quantized_rows_do_not_mislead_float32() -> None:
    # Sums of equal terms round all to one side: the Gram matrix is wrong by 3e-5, where others are by 1e-7.
    retain = 0.1 * normal(1, 10, 300_000).sign().float()
    forget = normal(2, 300_000).float() + retain[0]
    step = orthogonal_direction(forget, retain)
    assert step.rank == 10
    assert worst_cosine(step, retain) <= 1e-8
    retain[-1] = retain[0]
    assert orthogonal_direction(forget, retain).rank == 9


def test_rows_that_differ_only_in_their_last_digit_stay_within_1e_7() -> None:
    forget, retain, _ = regime("well-conditioned")
    retain[-1] = retain[0] + 1e-7 * forget
    step = orthogonal_direction(forget + 0.5 * normal(3, len(forget)).float(), retain)
    assert worst_cosine(step, retain) <= 1e-7


@pytest.mark.parametrize("width", [20, 60_000])
def test_rows_at_the_limit_of_resolution_do_not_spoil_the_norm(width: int) -> None:
    # Their eigenvalue is known to a few percent only, so that one projection is not enough.
    for seed in range(20):
        rows, along = normal(3 * seed, 6, width), normal(3 * seed + 1, width)
        rows[1] = rows[0] + 10 ** (-6.4 - 0.014 * seed) * along
        forget = along + 0.05 * normal(3 * seed + 2, width)
        step = orthogonal_direction(forget, rows)
        assert float(step.vector.norm()) == pytest.approx(float(forget.norm()), rel=2e-8)
        assert worst_cosine(step, rows) <= 1e-6


def test_two_hundred_clients_of_a_real_model_size() -> None:
    # Overlapping windows of one random vector: 200 rows of 478,410 without their 383 MB.
    width = 478_410
    retain = normal(1, width + 200).float().as_strided((200, width), (1, 1))
    step = orthogonal_direction(normal(2, width).float(), retain)
    assert step.rank == 200
    assert step.max_cosine <= 1e-8


@pytest.mark.parametrize(("forget_norm", "row_norm"), [(1e-30, 1e-30), (1e30, 1e30), (1e30, 1e-30)])
def test_float32_norms_from_1e_minus_30_to_1e30(forget_norm: float, row_norm: float) -> None:
    forget, retain = unit(normal(1, 50)), unit(normal(2, 5, 50))
    expected = orthogonal_direction(forget, retain).vector
    step = orthogonal_direction((forget * forget_norm).float(), (retain * row_norm).float())
    assert step.status is DirectionStatus.OK
    assert relative(step.vector.double() / forget_norm, expected) <= 1e-6
    assert worst_cosine(step, (retain * row_norm).float()) <= 1e-7


@pytest.mark.parametrize("size", [1e-150, 1e150])
def test_float64_norms_whose_squares_are_at_the_end_of_the_range(size: float) -> None:
    forget, retain = at_sine(2e-3)
    step = orthogonal_direction(size * forget, size * retain)
    assert step.sine == pytest.approx(2e-3)
    assert float(step.vector[2]) == pytest.approx(-size)


@pytest.mark.parametrize("size", [0.0, 1e-13])
def test_zero_or_negligible_forget_takes_no_step(size: float) -> None:
    retain = unit(normal(1, 4, 20)).float()
    step = orthogonal_direction(size * unit(normal(2, 20)).float(), retain)
    assert step.status is DirectionStatus.ZERO_FORGET
    assert torch.equal(step.vector, torch.zeros(20))
    assert (step.sine, step.amplification, step.max_cosine) == (0, 0, 0)


def test_small_but_not_negligible_forget_takes_a_step() -> None:
    retain = unit(normal(1, 4, 20)).float()
    assert orthogonal_direction(1e-11 * unit(normal(2, 20)).float(), retain).status is DirectionStatus.OK


def test_zero_forget_without_rows_takes_no_step() -> None:
    assert orthogonal_direction(torch.zeros(3), torch.zeros(2, 3)).status is DirectionStatus.ZERO_FORGET


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_forget_in_the_span_takes_no_step(dtype: torch.dtype) -> None:
    retain = normal(1, 9, 1000)
    step = orthogonal_direction((normal(2, 9) @ retain).to(dtype), retain.to(dtype))
    assert step.status is DirectionStatus.IN_SPAN
    assert torch.equal(step.vector, torch.zeros(1000, dtype=dtype))
    assert step.sine < 1e-6
    assert (step.amplification, step.max_cosine, step.rank) == (0, 0, 9)


def at_sine(sine: float) -> tuple[Tensor, Tensor]:
    retain = torch.eye(3, dtype=torch.float64)[:2]
    return torch.tensor([math.sqrt(1 - sine**2), 0, sine], dtype=torch.float64), retain


def test_smallest_admitted_sine_is_the_border() -> None:
    assert orthogonal_direction(*at_sine(0.99e-3)).status is DirectionStatus.IN_SPAN
    step = orthogonal_direction(*at_sine(1.01e-3))
    assert step.status is DirectionStatus.OK
    assert step.sine == pytest.approx(1.01e-3)
    assert step.amplification == pytest.approx(1 / 1.01e-3)
    assert orthogonal_direction(*at_sine(0.1), min_sine=0.2).status is DirectionStatus.IN_SPAN


def test_cap_shortens_only_what_exceeds_it() -> None:
    forget, retain = at_sine(0.05)
    capped = orthogonal_direction(forget, retain, max_amplification=10)
    assert torch.allclose(capped.vector, torch.tensor([0, 0, -0.5], dtype=torch.float64), atol=1e-15)
    assert capped.amplification == 10
    assert orthogonal_direction(forget, retain, max_amplification=30).amplification == pytest.approx(20)


def test_as_many_rows_as_columns_leave_no_direction() -> None:
    step = orthogonal_direction(normal(1, 8).float(), normal(2, 12, 8).float())
    assert step.status is DirectionStatus.IN_SPAN
    assert step.rank == 8
    assert not step.vector.any()


def test_more_rows_than_columns_of_low_rank_leave_one() -> None:
    step = orthogonal_direction(normal(1, 8), normal(2, 12, 5) @ normal(3, 5, 8))
    assert step.status is DirectionStatus.OK
    assert step.rank == 5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [0.0, 1e-14])
def test_zero_row_gives_the_same_bits_as_its_absence(dtype: torch.dtype, size: float) -> None:
    retain, forget = normal(1, 9, 100_003).to(dtype), normal(2, 100_003).to(dtype)
    without = orthogonal_direction(forget, retain)
    with_zero = orthogonal_direction(forget, torch.cat([retain[:4], size * retain[:1], retain[4:]]))
    assert torch.equal(with_zero.vector, without.vector)
    assert (with_zero.dropped, without.dropped) == (1, 0)
    assert (with_zero.sine, with_zero.max_cosine, with_zero.rank) == (without.sine, without.max_cosine, 9)


@pytest.mark.parametrize("rows", [0, 3])
def test_without_a_non_zero_row_plain_descent(rows: int) -> None:
    forget = normal(1, 20).float()
    step = orthogonal_direction(forget, torch.zeros(rows, 20))
    assert step.status is DirectionStatus.UNCONSTRAINED
    assert torch.equal(step.vector, -forget)
    assert (step.sine, step.amplification, step.rank, step.max_cosine, step.dropped) == (1, 1, 0, 0, rows)


def test_duplicates_give_the_result_without_them() -> None:
    retain, forget = normal(1, 9, 10_000), normal(2, 10_000)
    with_duplicates = torch.cat([retain, 300 * retain[:3], -retain[5:6]])
    expected, step = orthogonal_direction(forget, retain), orthogonal_direction(forget, with_duplicates)
    assert step.rank == 9
    assert relative(step.vector, expected.vector) <= 1e-9


def test_one_retained_client() -> None:
    retain, forget = normal(1, 1, 1000), normal(2, 1000) + 2 * normal(1, 1000)
    step = orthogonal_direction(forget, retain)
    cosine = float(unit(retain[0]) @ unit(forget))
    assert step.sine == pytest.approx(math.sqrt(1 - cosine**2), rel=1e-12)
    assert worst_cosine(step, retain) <= 1e-14


def test_orthogonal_forget_is_only_turned_round() -> None:
    step = orthogonal_direction(
        torch.tensor([0.0, 0.0, 7.0]), torch.tensor([[1.0, 2.0, 0.0], [3.0, 1.0, 0.0]])
    )
    assert torch.allclose(step.vector, torch.tensor([0.0, 0.0, -7.0]))
    assert step.amplification == pytest.approx(1)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_non_finite_values_are_refused_by_row(value: float) -> None:
    forget, retain = normal(1, 20).float(), normal(2, 5, 20).float()
    retain[3, 7] = value
    with pytest.raises(ValueError, match="row 3 of retain"):
        orthogonal_direction(forget, retain)
    forget[0] = value
    with pytest.raises(ValueError, match="forget holds"):
        orthogonal_direction(forget, normal(2, 5, 20).float())


def test_a_list_of_rows_is_refused_with_what_to_do() -> None:
    with pytest.raises(ValueError, match=r"retain must be a tensor, got a list: torch.stack joins rows"):
        orthogonal_direction(torch.ones(2), [torch.ones(2)])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("forget", "retain"),
    [((3,), (2, 4)), ((4,), (4,)), ((1, 4), (2, 4)), ((4,), (2, 1, 4))],
)
def test_shapes_that_do_not_fit_are_refused(forget: tuple[int, ...], retain: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="retain must be a matrix"):
        orthogonal_direction(torch.ones(forget), torch.ones(retain))


@pytest.mark.parametrize("dtype", [torch.float16, torch.int64])
def test_types_without_the_digits_are_refused(dtype: torch.dtype) -> None:
    with pytest.raises(ValueError, match="forget must be float32"):
        orthogonal_direction(torch.ones(3, dtype=dtype), torch.ones(1, 3))
    with pytest.raises(ValueError, match="retain must be float32"):
        orthogonal_direction(torch.ones(3), torch.ones(1, 3, dtype=dtype))


@pytest.mark.parametrize("value", [0.0, -1.0, 1.1, math.nan])
def test_min_sine_out_of_range_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="min_sine"):
        orthogonal_direction(torch.ones(3), torch.ones(1, 3), min_sine=value)


@pytest.mark.parametrize("value", [0.0, 0.99, math.nan])
def test_max_amplification_below_one_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="max_amplification"):
        orthogonal_direction(torch.ones(3), torch.ones(1, 3), max_amplification=value)


def test_inputs_stay_as_they_are() -> None:
    forget, retain = normal(1, 1000).float(), normal(2, 6, 1000).float()
    retain[2] = 0
    before = forget.clone(), retain.clone()
    orthogonal_direction(forget, retain)
    orthogonal_direction(forget, torch.zeros(1, 1000)).vector.zero_()
    assert torch.equal(forget, before[0])
    assert torch.equal(retain, before[1])


def test_layout_and_storage_do_not_matter(tmp_path) -> None:
    forget, retain = normal(1, 5000).float(), normal(2, 6, 5000).float()
    expected = orthogonal_direction(forget, retain).vector
    file = tmp_path / "rows"
    file.write_bytes(retain.numpy().tobytes())
    mapped = torch.from_file(str(file), shared=True, size=retain.numel()).view(6, 5000)
    for other in (retain.T.contiguous().T, retain.repeat_interleave(2, 1)[:, ::2], mapped):
        assert torch.equal(orthogonal_direction(forget, other).vector, expected)
    assert torch.equal(orthogonal_direction(forget.repeat_interleave(2)[::2], retain).vector, expected)


@pytest.mark.parametrize("name", ["cos .999", "duplicate"])
@pytest.mark.parametrize("count", [9, 60])
def test_address_does_not_matter(name: str, count: int) -> None:
    forget, retain, _ = regime(name, count, 50_003)
    expected = orthogonal_direction(forget, retain)
    for offset, gap in ((1, 0), (3, 5), (8, 64)):
        room = torch.empty(offset + count * (50_003 + gap))
        elsewhere = room[offset:].view(count, 50_003 + gap)[:, :50_003]
        elsewhere.copy_(retain)
        moved = torch.empty(50_003 + offset)[offset:].copy_(forget)
        step = orthogonal_direction(moved, elsewhere)
        assert torch.equal(step.vector, expected.vector)
        assert (step.sine, step.max_cosine) == (expected.sine, expected.max_cosine)


def test_result_has_the_type_of_forget_and_no_graph() -> None:
    forget, retain = normal(1, 50), normal(2, 3, 50).float().requires_grad_()
    assert orthogonal_direction(forget, retain).vector.dtype is torch.float64
    vector = orthogonal_direction(forget.float(), retain).vector
    assert vector.dtype is torch.float32
    assert not vector.requires_grad


def test_direction_is_frozen() -> None:
    with pytest.raises(AttributeError):
        orthogonal_direction(torch.ones(3), torch.ones(1, 3)).rank = 2  # type: ignore[misc]
