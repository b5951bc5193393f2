import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedunlearn import FedUnlearnError
from fedunlearn.evidence import (
    DIFFERENCE_EDGES,
    LOSS_EDGES,
    Scores,
    auc,
    binned_auc,
    delong,
    histogram,
    joint_histogram,
    paired_auc,
    paired_binned_auc,
)

properties = settings(max_examples=100, deadline=None, derandomize=True, database=None)
sizes = st.integers(2, 200)
seeds = st.integers(0, 2**32)


def test_the_edges_are_public_and_fixed() -> None:
    assert (len(LOSS_EDGES), LOSS_EDGES[0], LOSS_EDGES[-1]) == (64, pytest.approx(1e-6), pytest.approx(50))
    assert np.array_equal(DIFFERENCE_EDGES, -DIFFERENCE_EDGES[::-1])
    assert len(DIFFERENCE_EDGES) == 128
    for edges in (LOSS_EDGES, DIFFERENCE_EDGES):
        assert (np.diff(edges) > 0).all()
        with pytest.raises(ValueError, match="read-only"):
            edges[0] = 0


def test_nothing_falls_out_of_the_bins() -> None:
    counts = histogram([0.0, 1e-9, 1e-6, 49.9, 50.0, np.inf])
    assert len(counts) == 65
    assert (counts[0], counts[1], counts[-2], counts[-1]) == (2, 1, 1, 2)
    assert counts.sum() == 6


@properties
@given(seeds, sizes, sizes, st.floats(0.1, 3))
def test_the_binned_auc_is_within_its_bound(seed: int, m: int, n: int, spread: float) -> None:
    rng = np.random.default_rng(seed)
    forgotten, unseen = rng.lognormal(-1, spread, m), rng.lognormal(-0.7, spread, n)
    found = binned_auc(histogram(forgotten), histogram(unseen))
    assert abs(found.value - auc(forgotten, unseen)) <= found.slack + 1e-12


def test_the_bound_is_reached_where_a_bin_hides_the_order() -> None:
    forgotten, unseen = [0.30, 0.31], [0.32, 0.33]
    edges = np.array([0.1, 1.0])
    found = binned_auc(histogram(forgotten, edges), histogram(unseen, edges))
    assert found.value + found.slack == auc(forgotten, unseen) == 1


@properties
@given(seeds, sizes, sizes)
def test_counts_carry_what_the_numbers_of_the_bins_carry(seed: int, m: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    forgotten, unseen = rng.standard_t(2, size=(2, m)), rng.standard_t(2, size=(2, n))
    found = paired_binned_auc(joint_histogram(*forgotten), joint_histogram(*unseen))
    bins = [np.searchsorted(DIFFERENCE_EDGES, scores, side="right") for scores in (forgotten, unseen)]
    one, two = (Scores(bins[0][model], bins[1][model]) for model in (0, 1))
    expected = paired_auc(one, two)
    for name in ("model", "reference", "difference"):
        ours, theirs = getattr(found, name), getattr(expected, name)
        assert (ours.value, ours.error) == pytest.approx((theirs.value, theirs.error), abs=1e-9)
    assert (found.n_forgotten, found.n_unseen) == (m, n)
    assert found.difference.slack == pytest.approx(found.model.slack + found.reference.slack)
    exact = paired_auc(Scores(forgotten[0], unseen[0]), Scores(forgotten[1], unseen[1]))
    assert abs(found.difference.value - exact.difference.value) <= found.difference.slack + 1e-12
    alone = binned_auc(histogram(forgotten[0], DIFFERENCE_EDGES), histogram(unseen[0], DIFFERENCE_EDGES))
    assert alone.value == pytest.approx(delong(one).value)
    assert alone.error == pytest.approx(delong(one).error, abs=1e-9)


def test_how_large_the_error_is_on_losses_like_those_of_a_model() -> None:
    rng = np.random.default_rng(1)

    def world(size: int, remembered: float) -> tuple[np.ndarray, np.ndarray]:
        """Calibrated differences under a model and a retrained one: the noise grows with the loss."""
        loss = rng.lognormal(-1.5, 1.6, size)
        models = rng.lognormal([[-remembered], [0], [0]], [[0.5], [0.5], [0.35]], (3, size)) * loss
        return models[0] - models[2], models[1] - models[2]

    forgotten, unseen = world(600, 0.15), world(5000, 0)
    found = paired_binned_auc(joint_histogram(*forgotten), joint_histogram(*unseen)).difference
    exact = paired_auc(Scores(forgotten[0], unseen[0]), Scores(forgotten[1], unseen[1])).difference
    # The bound is a quarter of the margin. In fact chance orders a bin, and the error is far smaller.
    assert found.slack < 0.0125
    assert abs(found.value - exact.value) < 0.001


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: histogram([np.nan]), "without NaN"),
        (lambda: histogram([1.0], np.array([2.0, 1.0])), "must rise"),
        (lambda: joint_histogram([1.0], [1.0, 2.0]), "score the same examples"),
        (lambda: binned_auc([1, 2], [1, 2, 3]), "use the same bins"),
        (lambda: binned_auc([1, -1], [1, 2]), "0 or more"),
        (lambda: binned_auc([1, 0], [1, 2]), "at least two examples"),
        (lambda: paired_binned_auc(np.ones((2, 3)), np.ones((2, 3))), "a square"),
    ],
)
def test_what_cannot_be_counted_is_refused(call, said: str) -> None:
    with pytest.raises(FedUnlearnError, match=said):
        call()
