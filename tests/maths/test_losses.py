import math
from collections.abc import Callable

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedunlearn.maths import unlearning_cross_entropy, unlearning_transform

properties = settings(max_examples=200, deadline=None, derandomize=True, database=None)
constants = st.sampled_from([1.0, 1.0001, 1.5, 2.0, 3.0, 1e4])
BOUND = 3 - 2 * math.sqrt(2)


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def gradient(loss: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    at = at.detach().clone().requires_grad_()
    (result,) = torch.autograd.grad(loss(at).sum(), at)
    return result


def plain(logits: Tensor, target: Tensor, constant: float = 2.0) -> Tensor:
    """Eq. 3 as it is printed, for logits where float64 needs no care."""
    p = torch.softmax(logits.double(), 1).gather(1, target.unsqueeze(1)).squeeze(1)
    return -torch.log(1 - p / constant)


@st.composite
def batches(draw: st.DrawFn, largest: float = 30) -> tuple[Tensor, Tensor]:
    classes, size, seed = draw(st.integers(2, 6)), draw(st.integers(1, 5)), draw(st.integers(0, 2**32))
    spread = draw(st.floats(0, 1)) ** 3 * largest
    target = draw(st.lists(st.integers(0, classes - 1), min_size=size, max_size=size))
    dtype = draw(st.sampled_from([torch.float32, torch.float64]))
    return (spread * normal(seed, size, classes).tanh()).to(dtype), torch.tensor(target)


@properties
@given(batches(), constants)
def test_p10_gradient_sums_to_zero_and_is_weighted_cross_entropy(
    batch: tuple[Tensor, Tensor], constant: float
) -> None:
    logits, target = batch
    ours = gradient(lambda z: unlearning_cross_entropy(z, target, reduction="sum", constant=constant), logits)
    assert float(ours.sum(1).abs().max()) <= 1e-6
    # The gradient of cross-entropy is softmax - one_hot; torch loses its label's entry where p nears 1.
    label = target.unsqueeze(1)
    softmax = torch.softmax(logits.double(), 1)
    p, q = softmax.gather(1, label), softmax.scatter(1, label, 0).sum(1, keepdim=True)
    theirs = -p / (constant - 1 + q) * softmax.scatter(1, label, -q)
    assert torch.allclose(ours.double(), theirs, rtol=1e-5, atol=1e-12)


@properties
@given(batches(largest=1e4))
def test_p10_gradient_is_bounded(batch: tuple[Tensor, Tensor]) -> None:
    logits, target = batch
    ours = gradient(lambda z: unlearning_cross_entropy(z, target, reduction="none"), logits)
    assert float(ours.abs().max()) <= BOUND + 1e-6
    assert float(ours.norm(dim=1).max()) <= math.sqrt(2) * BOUND + 1e-6


def test_p10_bound_is_reached() -> None:
    p = 2 - math.sqrt(2)
    logits = torch.tensor([[math.log(p / (1 - p)), 0.0]], dtype=torch.float64)
    ours = gradient(lambda z: unlearning_cross_entropy(z, torch.tensor([0])), logits)
    assert ours[0].tolist() == pytest.approx([BOUND, -BOUND], rel=1e-14)


@properties
@given(batches(largest=1e4))
def test_p11_value_lies_between_zero_and_log_2(batch: tuple[Tensor, Tensor]) -> None:
    losses = unlearning_cross_entropy(*batch, reduction="none")
    assert float(losses.min()) >= 0
    assert float(losses.max()) <= math.log(2) * (1 + 1e-7)


@properties
@given(st.lists(st.floats(-200, 200, width=32), min_size=2, max_size=20), constants)
def test_p11_value_rises_with_the_margin(margins: list[float], constant: float) -> None:
    first = torch.tensor(sorted(margins), dtype=torch.float64)
    logits = torch.stack([first, torch.zeros_like(first)], 1)
    target = torch.zeros(len(first), dtype=torch.int64)
    losses = unlearning_cross_entropy(logits, target, reduction="none", constant=constant)
    assert bool((losses.diff() >= -1e-15 * losses[:-1]).all())


FLOAT32 = float(torch.finfo(torch.float32).max)


@properties
@given(st.lists(st.floats(-FLOAT32, FLOAT32, width=32), min_size=2, max_size=6), st.data(), constants)
def test_p12_finite_logits_never_give_nan(numbers: list[float], data: st.DataObject, constant: float) -> None:
    target = torch.tensor(data.draw(st.integers(0, len(numbers) - 1)))
    logits = torch.tensor(numbers, requires_grad=True)
    loss = unlearning_cross_entropy(logits, target, constant=constant)
    loss.backward()
    assert not loss.isnan()
    assert logits.grad is not None
    assert bool(logits.grad.isfinite().all())


@pytest.mark.parametrize("constant", [1.0, 1.5, 2.0])
@pytest.mark.parametrize("margin", [-FLOAT32, -1e4, -104.0, -88.0, 0.0, 17.0, 88.0, 104.0, 1e4, FLOAT32])
def test_p12_at_the_edges_of_float32(margin: float, constant: float) -> None:
    logits = torch.tensor([margin, 0.0])
    loss = unlearning_cross_entropy(logits, torch.tensor(0), constant=constant)
    assert loss.isfinite()
    assert (
        gradient(lambda z: unlearning_cross_entropy(z, torch.tensor(0), constant=constant), logits)
        .isfinite()
        .all()
    )


@properties
@given(batches(), st.data())
def test_p13_ignored_labels_count_for_nothing(batch: tuple[Tensor, Tensor], data: st.DataObject) -> None:
    logits, target = batch
    ignored = torch.tensor(data.draw(st.lists(st.booleans(), min_size=len(target), max_size=len(target))))
    hidden = target.masked_fill(ignored, -100)
    ours = gradient(lambda z: unlearning_cross_entropy(z, hidden), logits)
    assert not ours[ignored].any()
    each = unlearning_cross_entropy(logits, target, reduction="none")
    assert torch.equal(
        unlearning_cross_entropy(logits, hidden, reduction="none"), each.masked_fill(ignored, 0)
    )
    if not bool(ignored.all()):
        kept, labels = logits[~ignored], target[~ignored]
        assert torch.equal(unlearning_cross_entropy(logits, hidden), unlearning_cross_entropy(kept, labels))
        assert torch.equal(ours[~ignored], gradient(lambda z: unlearning_cross_entropy(z, labels), kept))


def test_ignored_samples_may_hold_anything() -> None:
    logits = torch.tensor([[math.nan, math.inf], [1.0, 2.0]])
    target = torch.tensor([7, 1])
    assert unlearning_cross_entropy(logits, target, ignore_index=7).isfinite()
    ours = gradient(lambda z: unlearning_cross_entropy(z, target, ignore_index=7), logits)
    assert ours[0].tolist() == [0, 0]
    assert bool(ours[1].all())


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("size", [0, 3])
def test_nothing_but_ignored_labels_gives_zero_and_no_gradient(reduction: str, size: int) -> None:
    logits, target = normal(1, size, 4), torch.full((size,), -100)
    losses = unlearning_cross_entropy(logits, target, reduction=reduction)
    assert losses.tolist() == ([0] * size if reduction == "none" else 0)
    ours = gradient(lambda z: unlearning_cross_entropy(z, target, reduction=reduction), logits)
    assert torch.equal(ours, torch.zeros(size, 4, dtype=torch.float64))


@pytest.mark.parametrize("constant", [1.0, 2.0])
def test_gradient_of_a_network_is_weighted_cross_entropy_of_it(constant: float) -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 4)).double()
    for sample, label in zip(normal(1, 6, 5), (0, 1, 2, 3, 0, 1), strict=True):
        logits, target = network(sample), torch.tensor(label)
        p = torch.softmax(logits, 0)[label].item()
        ours = torch.autograd.grad(
            unlearning_cross_entropy(logits, target, constant=constant),
            list(network.parameters()),
            retain_graph=True,
        )
        theirs = torch.autograd.grad(cross_entropy(logits, target), list(network.parameters()))
        for one, other in zip(ours, theirs, strict=True):
            assert torch.allclose(one, -p / (constant - p) * other, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("constant", [1.0, 1.2, 2.0, 5.0])
def test_cross_entropy_passes_gradcheck(constant: float) -> None:
    logits, target = (3 * normal(1, 6, 4)).requires_grad_(), torch.tensor([0, 1, 2, 3, -100, 0])
    weight = torch.tensor([0.5, 2.0, 1.0, 0.1], dtype=torch.float64)
    for reduction in ("mean", "sum", "none"):
        assert torch.autograd.gradcheck(
            lambda z, reduction=reduction: unlearning_cross_entropy(
                z, target, weight=weight, reduction=reduction, constant=constant
            ),
            (logits,),
        )


@pytest.mark.parametrize("constant", [1.0, 1.2, 2.0, 5.0])
def test_transform_passes_gradcheck(constant: float) -> None:
    nll = torch.tensor([0.05, 0.3, 0.7, 1.0, 5.0, 20.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: unlearning_transform(x, constant=constant), (nll,))


@pytest.mark.parametrize("constant", [1.0, 2.0])
def test_second_derivatives_are_right(constant: float) -> None:
    logits = normal(1, 4, 3).requires_grad_()
    target = torch.tensor([0, 1, 2, 0])
    nll = torch.tensor([0.3, 1.0, 5.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(
        lambda z: unlearning_cross_entropy(z, target, constant=constant), (logits,)
    )
    assert torch.autograd.gradgradcheck(lambda x: unlearning_transform(x, constant=constant), (nll,))


def precise(logits: list[float], constant: float) -> tuple[float, list[float]]:
    """Value and gradient for label 0, to fifty digits."""
    with mpmath.workdps(50), mpmath.extradps(9000 if max(map(abs, logits)) > 1000 else 0):
        powers = [mpmath.exp(mpmath.mpf(z)) for z in logits]
        total, rest = sum(powers), sum(powers[1:])
        p, q = powers[0] / total, rest / total
        value = -mpmath.log((constant - 1 + q) / constant)
        return float(value), [float(p * q / (constant - 1 + q))] + [
            -float(p * (power / total) / (constant - 1 + q)) for power in powers[1:]
        ]


@pytest.mark.parametrize("constant", [1.0, 1.5, 2.0])
@pytest.mark.parametrize("margin", [-1e4, -80.0, -30.0, -16.7, -1.0, 0.0, 0.5, 1.0, 16.7, 30.0, 80.0, 1e4])
def test_float32_agrees_with_fifty_digits(margin: float, constant: float) -> None:
    logits = torch.tensor([margin, 0.0, -1.5])
    value, slopes = precise(logits.tolist(), constant)
    loss = unlearning_cross_entropy(logits, torch.tensor(0), constant=constant)
    assert loss.item() == pytest.approx(value, rel=1e-5, abs=1e-37)
    ours = gradient(lambda z: unlearning_cross_entropy(z, torch.tensor(0), constant=constant), logits)
    assert ours.tolist() == pytest.approx(slopes, rel=1e-5, abs=1e-37)


def test_saturated_gradient_is_not_lost() -> None:
    ours = gradient(lambda z: unlearning_cross_entropy(z, torch.tensor(0)), torch.tensor([16.7, 0.0]))
    assert ours.tolist() == pytest.approx([math.exp(-16.7), -math.exp(-16.7)], rel=1e-5)


def test_hopeless_value_is_not_lost() -> None:
    loss = unlearning_cross_entropy(torch.tensor([-30.0, 0.0]), torch.tensor(0))
    assert loss.item() == pytest.approx(math.exp(-30) / 2, rel=1e-5)


def test_ablation_m6_grows_without_bound_but_stays_exact() -> None:
    logits = torch.tensor([1e4, 0.0, 0.0])
    assert unlearning_cross_entropy(logits, torch.tensor(0), constant=1).item() == pytest.approx(
        1e4, rel=1e-4
    )
    ours = gradient(lambda z: unlearning_cross_entropy(z, torch.tensor(0), constant=1), logits)
    assert ours.tolist() == pytest.approx([1, -0.5, -0.5])


def test_reductions_and_class_weights_are_those_of_torch() -> None:
    logits, target = normal(1, 5, 3), torch.tensor([0, 2, 1, -100, 2])
    weight = torch.tensor([0.5, 2.0, 3.0], dtype=torch.float64)
    valid = target != -100
    expected = torch.zeros(5, dtype=torch.float64)
    expected[valid] = plain(logits[valid], target[valid]) * weight[target[valid]]
    assert torch.allclose(unlearning_cross_entropy(logits, target, weight=weight, reduction="none"), expected)
    assert unlearning_cross_entropy(logits, target, weight=weight, reduction="sum").item() == pytest.approx(
        expected.sum().item()
    )
    # What torch divides by: the ratio of its own sum and mean.
    total = cross_entropy(logits, target, weight, reduction="sum") / cross_entropy(logits, target, weight)
    assert unlearning_cross_entropy(logits, target, weight=weight).item() == pytest.approx(
        (expected.sum() / total).item()
    )
    assert unlearning_cross_entropy(logits, target).item() == pytest.approx(
        plain(logits[valid], target[valid]).mean().item()
    )


def test_weights_of_zero_give_zero() -> None:
    logits, target = normal(1, 3, 2), torch.tensor([0, 0, 0])
    weight = torch.tensor([0.0, 1.0], dtype=torch.float64)
    assert unlearning_cross_entropy(logits, target, weight=weight).item() == 0
    assert not gradient(lambda z: unlearning_cross_entropy(z, target, weight=weight), logits).any()


def test_shapes_are_those_of_torch() -> None:
    logits = normal(1, 4, 3, 5, 2)
    target = torch.randint(0, 3, (4, 5, 2), generator=torch.Generator().manual_seed(0))
    each = unlearning_cross_entropy(logits, target, reduction="none")
    assert each.shape == cross_entropy(logits, target, reduction="none").shape
    flat = logits.permute(0, 2, 3, 1).reshape(-1, 3)
    assert torch.allclose(each.reshape(-1), plain(flat, target.reshape(-1)))
    assert unlearning_cross_entropy(logits, target).item() == pytest.approx(each.mean().item())
    single = unlearning_cross_entropy(logits[0, :, 0, 0], target[0, 0, 0], reduction="none")
    assert single.shape == ()
    assert single.item() == pytest.approx(each[0, 0, 0].item())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(dtype: torch.dtype) -> None:
    logits, target = (5 * normal(1, 6, 3)).to(dtype), torch.tensor([0, 1, 2, 0, 1, 2])
    loss = unlearning_cross_entropy(logits, target)
    assert loss.dtype is torch.float32
    assert torch.equal(loss, unlearning_cross_entropy(logits.float(), target))
    assert gradient(lambda z: unlearning_cross_entropy(z, target), logits).dtype is dtype
    nll = logits.abs()
    assert torch.equal(unlearning_transform(nll), unlearning_transform(nll.float()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_inputs_stay_as_they_are(dtype: torch.dtype) -> None:
    logits, target, weight = normal(1, 5, 3).to(dtype), torch.tensor([0, 1, 2, -100, 0]), torch.rand(3)
    before = logits.clone(), target.clone(), weight.clone()
    gradient(lambda z: unlearning_cross_entropy(z, target, weight=weight), logits)
    unlearning_cross_entropy(logits, target, weight=weight, reduction="none")
    nll = logits.abs()
    unlearning_transform(nll)
    assert torch.equal(nll, logits.abs())
    for now, then in zip((logits, target, weight), before, strict=True):
        assert torch.equal(now, then)


@pytest.mark.parametrize("label", [-1, 3, -99])
def test_labels_out_of_range_are_refused(label: int) -> None:
    with pytest.raises(ValueError, match=rf"target must lie in 0\.\.2 or be -100, got {label}"):
        unlearning_cross_entropy(torch.zeros(2, 3), torch.tensor([0, label]))


@pytest.mark.parametrize("dtype", [torch.int32, torch.float32, torch.bool])
def test_labels_of_another_type_are_refused(dtype: torch.dtype) -> None:
    with pytest.raises(ValueError, match="int64"):
        unlearning_cross_entropy(torch.zeros(2, 3), torch.zeros(2, dtype=dtype))


@pytest.mark.parametrize(
    ("logits", "target"), [((2, 3), (3,)), ((2, 3), (2, 1)), ((3,), (1,)), ((2, 3, 4), (2, 3)), ((), ())]
)
def test_shapes_that_do_not_fit_are_refused(logits: tuple[int, ...], target: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="logits"):
        unlearning_cross_entropy(torch.zeros(logits), torch.zeros(target, dtype=torch.int64))


def test_other_misuse_is_refused() -> None:
    logits, target = torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64)
    with pytest.raises(ValueError, match="reduction must be one of mean, sum, none"):
        unlearning_cross_entropy(logits, target, reduction="average")
    with pytest.raises(ValueError, match="weight must have shape"):
        unlearning_cross_entropy(logits, target, weight=torch.ones(2))
    with pytest.raises(ValueError, match="floating point"):
        unlearning_cross_entropy(logits.long(), target)
    with pytest.raises(ValueError, match="at least two classes"):
        unlearning_cross_entropy(logits[:, :1], target)
    with pytest.raises(ValueError, match="floating point"):
        unlearning_transform(target)


@pytest.mark.parametrize("constant", [0.999, 0.0, -2.0, math.nan, math.inf])
def test_constants_without_a_loss_are_refused(constant: float) -> None:
    with pytest.raises(ValueError, match="constant must be"):
        unlearning_cross_entropy(torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64), constant=constant)
    with pytest.raises(ValueError, match="constant must be"):
        unlearning_transform(torch.ones(3), constant=constant)


@properties
@given(st.floats(0.001, 100), constants)
def test_transform_is_minus_log_of_one_minus_p_over_constant(nll: float, constant: float) -> None:
    with mpmath.workdps(80):
        p = mpmath.exp(-mpmath.mpf(nll))
        value, slope = float(-mpmath.log(1 - p / constant)), float(-p / (constant - p))
    at = torch.tensor([nll], dtype=torch.float64)
    assert unlearning_transform(at, constant=constant).item() == pytest.approx(value, rel=1e-12)
    ours = gradient(lambda x: unlearning_transform(x, constant=constant), at)
    assert ours.item() == pytest.approx(slope, rel=1e-12)


@properties
@given(batches(largest=10), constants)
def test_transform_of_cross_entropy_is_unlearning_cross_entropy(
    batch: tuple[Tensor, Tensor], constant: float
) -> None:
    logits, target = batch[0].double(), batch[1]

    def composed(z: Tensor) -> Tensor:
        return unlearning_transform(cross_entropy(z, target, reduction="none"), constant=constant)

    def direct(z: Tensor) -> Tensor:
        return unlearning_cross_entropy(z, target, reduction="none", constant=constant)

    assert torch.allclose(composed(logits), direct(logits), rtol=1e-6)
    assert torch.allclose(gradient(composed, logits), gradient(direct, logits), rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_transform_at_both_ends(dtype: torch.dtype) -> None:
    ends = torch.tensor([0.0, 1e4, math.inf], dtype=dtype)
    assert unlearning_transform(ends).tolist() == pytest.approx([math.log(2), 0, 0])
    assert gradient(unlearning_transform, ends).tolist() == [-1, 0, 0]
    assert gradient(lambda x: unlearning_transform(x, constant=1.5), ends).tolist() == pytest.approx(
        [-2, 0, 0]
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_transform_with_constant_one_stays_finite_at_zero(dtype: torch.dtype) -> None:
    logits = torch.tensor([[1e4, 0.0], [0.0, 0.0]], dtype=dtype)
    nll = cross_entropy(logits, torch.tensor([0, 0]), reduction="none")
    assert nll[0] == 0
    assert unlearning_transform(nll, constant=1).isfinite().all()
    ours = gradient(
        lambda z: unlearning_transform(cross_entropy(z, torch.tensor([0, 0]), reduction="none"), constant=1),
        logits,
    )
    assert bool(ours.isfinite().all())
    assert ours[1].tolist() == pytest.approx([0.5, -0.5])


def test_transform_takes_rounding_below_zero_but_no_more() -> None:
    assert unlearning_transform(torch.tensor([-1e-7])).item() == pytest.approx(math.log(2))
    with pytest.raises(ValueError, match=r"must not be negative, got -0\.5"):
        unlearning_transform(torch.tensor([1.0, -0.5]))


def test_transform_keeps_the_shape() -> None:
    assert unlearning_transform(torch.ones(2, 3, 4)).shape == (2, 3, 4)
    assert unlearning_transform(torch.tensor(1.0)).shape == ()
