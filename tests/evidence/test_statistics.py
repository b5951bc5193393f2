import math
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats
from scipy.spatial import distance
from support.codes import refused

from fedunlearn.evidence import (
    Estimate,
    Interval,
    Scores,
    auc,
    auc_error,
    canary_bound,
    clopper_pearson,
    delong,
    exact_bounds,
    holm,
    jensen_shannon,
    newcombe,
    paired_auc,
    tail_counts,
    tail_rate,
    tost,
    tpr_at_fpr,
    tug_of_war,
    wilson,
)

properties = settings(max_examples=100, deadline=None, derandomize=True, database=None)
# Few different values, so that ties are common.
samples = st.lists(st.integers(-5, 5).map(float), min_size=2, max_size=20)
distributions = st.lists(st.floats(0, 1), min_size=3, max_size=3).filter(lambda p: sum(p) > 0.01)


def slow_placements(scores: Scores) -> NDArray[np.float64]:
    """ψ of DeLong for every pair, written out: rows are forgotten examples."""
    return np.array(
        [[1.0 if u < h else 0.5 if u == h else 0.0 for h in scores.unseen] for u in scores.forgotten]
    )


def slow_covariance(one: Scores, two: Scores) -> float:
    """DeLong's covariance of two AUCs: S10/m + S01/n, from all pairs."""
    psi, phi = slow_placements(one), slow_placements(two)
    m, n = psi.shape
    s10 = sum((psi[i].mean() - psi.mean()) * (phi[i].mean() - phi.mean()) for i in range(m)) / (m - 1)
    s01 = sum((psi[:, j].mean() - psi.mean()) * (phi[:, j].mean() - phi.mean()) for j in range(n)) / (n - 1)
    return float(s10 / m + s01 / n)


def correlated(seed: int, m: int, n: int, shift: float = 0.3) -> tuple[Scores, Scores]:
    rng = np.random.default_rng(seed)
    forgotten, unseen = rng.normal(size=(3, m)), rng.normal(size=(3, n))
    return (
        Scores(forgotten[0] + forgotten[1] - shift, unseen[0] + unseen[1]),
        Scores(forgotten[0] + forgotten[2], unseen[0] + unseen[2]),
    )


@properties
@given(samples, samples)
def test_auc_is_the_share_of_ordered_pairs(forgotten: list[float], unseen: list[float]) -> None:
    assert auc(forgotten, unseen) == pytest.approx(slow_placements(Scores(forgotten, unseen)).mean())


@properties
@given(samples, samples)
def test_auc_of_swapped_samples_is_the_rest_to_one(a: list[float], b: list[float]) -> None:
    assert auc(a, b) + auc(b, a) == pytest.approx(1, abs=1e-12)
    assert auc(a, a) == pytest.approx(0.5)


@properties
@given(samples, samples)
def test_auc_and_its_error_depend_on_order_alone(a: list[float], b: list[float]) -> None:
    plain = Scores(a, b)
    mapped = Scores(np.exp(plain.forgotten) ** 3, np.exp(plain.unseen) ** 3)
    assert delong(mapped) == delong(plain)


def test_auc_agrees_with_the_mann_whitney_statistic() -> None:
    rng = np.random.default_rng(1)
    a, b = np.round(rng.normal(size=200), 1), np.round(rng.normal(0.3, size=300), 1)
    assert auc(a, b) == pytest.approx(stats.mannwhitneyu(b, a).statistic / (200 * 300))


def test_auc_agrees_with_scikit_learn() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(1)
    a, b = np.round(rng.normal(size=200), 1), np.round(rng.normal(0.3, size=300), 1)
    member = np.repeat([1, 0], [200, 300])
    assert auc(a, b) == pytest.approx(metrics.roc_auc_score(member, -np.concatenate([a, b])))


@properties
@given(st.integers(0, 2**32), st.integers(5, 60), st.integers(5, 60))
def test_delong_agrees_with_scipy(seed: int, m: int, n: int) -> None:
    """The statistic of Brunner and Munzel is the distance of the AUC from 0.5 in DeLong's errors."""
    rng = np.random.default_rng(seed)
    a, b = np.round(rng.normal(size=m), 1), np.round(rng.normal(0.3, size=n), 1)
    found = delong(Scores(a, b))
    assert (found.value - 0.5) / found.error == pytest.approx(-stats.brunnermunzel(b, a).statistic)


@properties
@given(samples, samples, st.integers(0, 2**32))
def test_delong_agrees_with_all_pairs(a: list[float], b: list[float], seed: int) -> None:
    rng = np.random.default_rng(seed)
    one = Scores(a, b)
    two = Scores(rng.permutation(one.forgotten), np.round(one.unseen + rng.normal(size=len(b))))
    found = paired_auc(one, two)
    variance = slow_covariance(one, one) + slow_covariance(two, two) - 2 * slow_covariance(one, two)
    assert found.model.error**2 == pytest.approx(slow_covariance(one, one), abs=1e-12)
    assert found.difference.error**2 == pytest.approx(variance, abs=1e-12)
    assert found.difference.value == pytest.approx(found.model.value - found.reference.value)
    assert (found.n_forgotten, found.n_unseen) == (len(a), len(b))


def test_delong_agrees_with_the_bootstrap() -> None:
    one, two = correlated(2, 150, 250)
    rng = np.random.default_rng(3)
    drawn = []
    for _ in range(1000):
        i, j = rng.integers(150, size=150), rng.integers(250, size=250)
        drawn.append(auc(one.forgotten[i], one.unseen[j]) - auc(two.forgotten[i], two.unseen[j]))
    found = paired_auc(one, two).difference
    assert found.error == pytest.approx(np.std(drawn), rel=0.1)
    # Independent samples would have a larger error.
    assert found.error < 0.85 * math.hypot(delong(one).error, delong(two).error)


def test_the_paired_error_agrees_with_the_jackknife() -> None:
    """Leaving out one example at a time, of each set: another estimate of the same variance."""
    one, two = correlated(4, 120, 150)

    def difference(i: NDArray[np.bool_], j: NDArray[np.bool_]) -> float:
        return auc(one.forgotten[i], one.unseen[j]) - auc(two.forgotten[i], two.unseen[j])

    everything = np.ones(120, bool), np.ones(150, bool)
    variance = 0.0
    for place, size in enumerate((120, 150)):
        left = []
        for number in range(size):
            chosen = [each.copy() for each in everything]
            chosen[place][number] = False
            left.append(difference(*chosen))
        variance += (size - 1) / size * np.square(np.array(left) - np.mean(left)).sum()
    # Both are (n − 1)/n of each other at most.
    assert paired_auc(one, two).difference.error == pytest.approx(math.sqrt(variance), rel=0.01)


def test_a_model_compared_with_itself_differs_by_exactly_nothing() -> None:
    one, _ = correlated(1, 40, 50)
    assert paired_auc(one, one).difference == Estimate(0.0, 0.0)


def test_separated_scores_have_no_error() -> None:
    assert delong(Scores([1, 2], [3, 4])) == Estimate(1.0, 0.0)


def test_infinite_losses_are_ordered_too() -> None:
    assert auc([math.inf, 1.0], [math.inf, 2.0]) == 0.625


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: Scores([1, math.nan], [1]), "forgotten scores contain NaN"),
        (lambda: Scores([], [1]), "give one number for each example"),
        (lambda: Scores([1], [[1]]), "unseen scores of shape"),
        (lambda: delong(Scores([1], [1, 2])), "at least two"),
        (lambda: paired_auc(Scores([1, 2], [1, 2]), Scores([1, 2], [1, 2, 3])), "2 scores of unseen"),
        (lambda: tost(Estimate(0, 1), 0.6), "margin = 0.6"),
        (lambda: wilson(3, 2), "hits = 3: it must be at most n = 2"),
        (lambda: clopper_pearson(0, 0), "n = 0"),
        (lambda: wilson(1, 2, level=1), "level = 1"),
        (lambda: holm([0.5, 1.5]), "p_values"),
        (lambda: holm([0.5], alpha=0), "alpha = 0"),
        (lambda: newcombe(1, 2, 3, 2), "hits = 3: it must be at most n = 2"),
        (lambda: canary_bound(3, 2), "correct = 3: it must be at most guesses = 2"),
        (lambda: jensen_shannon([0.5, 0.6], [0.5, 0.5]), "add up to 1"),
        (lambda: jensen_shannon([1.0], [0.5, 0.5]), "compare equal shapes"),
        (lambda: tug_of_war({"test": 0.5}, {"forgotten": 0.5}), "give the same sets"),
        (lambda: tug_of_war({"test": 50}, {"test": 0.5}), "accuracy on test = 50"),
    ],
)
def test_what_cannot_be_computed_is_refused(call, said: str) -> None:
    with refused("invalid", says=said):
        call()


def test_scores_do_not_follow_the_array_that_they_came_from() -> None:
    values = np.array([1.0, 2.0])
    scores = Scores(values, [1, 2])
    values[:] = 9
    assert scores.forgotten.tolist() == [1, 2]
    assert scores == Scores([1, 2], [1, 2]) != Scores([1, 2], [1, 3])


@properties
@given(st.floats(-0.1, 0.1), st.floats(1e-4, 0.1), st.floats(0.01, 0.1))
def test_the_two_tests_are_the_interval(value: float, error: float, margin: float) -> None:
    found = tost(Estimate(value, error), margin)
    assert found.equivalent == (found.p_value < 0.05) == found.interval.within(margin)
    lower = stats.norm.sf((value + margin) / error)
    upper = stats.norm.cdf((value - margin) / error)
    assert found.p_value == pytest.approx(max(lower, upper), abs=1e-12)


def test_an_interval_that_touches_the_margin_is_not_within_it() -> None:
    assert Interval(-0.04, 0.04, level=0.9).within(0.05)
    assert not Interval(-0.05, 0.04, level=0.9).within(0.05)
    assert not Interval(-0.04, 0.05, level=0.9).within(0.05)


def test_a_known_difference_needs_no_test() -> None:
    assert tost(Estimate(0.01, 0.0), 0.05).p_value == 0
    assert tost(Estimate(0.06, 0.0), 0.05).p_value == 1


@properties
@given(st.integers(0, 200), st.integers(1, 200), st.sampled_from([0.9, 0.95, 0.99]))
def test_intervals_of_proportions_agree_with_scipy(hits: int, n: int, level: float) -> None:
    hits = min(hits, n)
    result = stats.binomtest(hits, n)
    for ours, method in ((wilson, "wilson"), (clopper_pearson, "exact")):
        theirs = result.proportion_ci(level, method)
        found = ours(hits, n, level)
        assert (found.low, found.high) == pytest.approx((theirs.low, theirs.high), abs=1e-9)
        assert hits / n in found


def test_intervals_of_proportions_known_from_the_literature() -> None:
    # Newcombe (Statistics in Medicine, 1998), table I: 81 of 263, 15 of 148, 0 of 20 and 1 of 29.
    for hits, n, low, high in [
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ]:
        assert (wilson(hits, n).low, wilson(hits, n).high) == pytest.approx((low, high), abs=5e-5)
    for hits, n, low, high in [
        (81, 263, 0.2527, 0.3676),
        (15, 148, 0.0578, 0.1617),
        (0, 20, 0.0, 0.1684),
        (1, 29, 0.0009, 0.1776),
    ]:
        exact = clopper_pearson(hits, n)
        assert (exact.low, exact.high) == pytest.approx((low, high), abs=5e-5)


def test_the_interval_of_a_difference_known_from_the_literature() -> None:
    # Newcombe (Statistics in Medicine, 1998), the paper on differences, table II, method 10.
    for hits, n, other, other_n, low, high in [
        (56, 70, 48, 80, 0.0524, 0.3339),
        (9, 10, 3, 10, 0.1705, 0.8090),
        (10, 10, 0, 20, 0.6791, 1.0),
        (5, 56, 0, 29, -0.0381, 0.1926),
    ]:
        found = newcombe(hits, n, other, other_n)
        assert (found.low, found.high) == pytest.approx((low, high), abs=5e-5)
        turned = newcombe(other, other_n, hits, n)
        assert (turned.low, turned.high) == pytest.approx((-high, -low), abs=5e-5)


def test_holm_known_from_the_literature() -> None:
    # Four tests: the two smallest reject, the third does not and stops the fourth.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.05 / 3, 0.025, 0.025, 0.0125])


@properties
@given(st.lists(st.floats(0, 0.2), min_size=1, max_size=8))
def test_holm_rejects_what_adjusted_p_values_reject(p_values: list[float]) -> None:
    """Adjusted as R's p.adjust does: a running maximum of (m − rank) p."""
    order = np.argsort(p_values, kind="stable")
    scaled = np.array(p_values)[order] * np.arange(len(order), 0, -1)
    adjusted = np.empty(len(order))
    adjusted[order] = np.maximum.accumulate(scaled)
    for p, level, ours in zip(p_values, holm(p_values), adjusted, strict=True):
        if abs(ours - 0.05) > 1e-9:
            assert (p <= level) == (ours <= 0.05)


def test_holm_of_many_true_hypotheses_is_rarely_wrong() -> None:
    rng = np.random.default_rng(1)
    wrong, plain = 0, 0
    for _ in range(2000):
        p_values = rng.uniform(size=6).tolist()
        wrong += any(p <= level for p, level in zip(p_values, holm(p_values), strict=True))
        plain += min(p_values) <= 0.05
    assert wrong / 2000 <= 0.065
    assert plain / 2000 > 0.2


def test_the_tpr_counts_what_lies_below_the_threshold() -> None:
    rng = np.random.default_rng(1)
    scores = Scores(rng.normal(-1, size=500), rng.normal(size=2000))
    found = tpr_at_fpr(scores, 0.01)
    assert found.fpr == 0.01
    assert found.tpr == (scores.forgotten < np.sort(scores.unseen)[20]).mean()
    assert found.tpr in found.interval
    assert found.interval == clopper_pearson(round(500 * found.tpr), 500)
    assert 0.01 in found.fpr_interval
    assert tail_rate(tail_counts(scores, 0.01)) == found


def test_ties_at_the_threshold_never_raise_the_fpr() -> None:
    assert tpr_at_fpr(Scores(np.zeros(100), np.zeros(1000)), 0.01).tpr == 0


@pytest.mark.parametrize(("fpr", "needed"), [(0.01, 1000), (0.001, 10_000), (0.1, 100)])
def test_a_tpr_is_refused_where_its_threshold_rests_on_too_few(fpr: float, needed: int) -> None:
    values = np.arange(float(needed))
    tpr_at_fpr(Scores([1.0], values), fpr)
    with refused("invalid", says=rf"needs {needed:,} unseen examples and there are {needed - 1:,}"):
        tpr_at_fpr(Scores([1.0], values[1:]), fpr)


@properties
@given(distributions, distributions)
def test_the_jensen_shannon_distance_agrees_with_scipy(p: list[float], q: list[float]) -> None:
    one, two = np.array(p) / sum(p), np.array(q) / sum(q)
    found = jensen_shannon(one, two)
    assert found == pytest.approx(distance.jensenshannon(one, two, base=2), abs=1e-6)
    assert found == jensen_shannon(two, one)
    assert 0 <= found <= 1
    assert jensen_shannon([one, two], [two, two]) == pytest.approx(found / 2, abs=1e-7)


def test_the_tug_of_war_is_the_product_of_its_factors() -> None:
    found = tug_of_war(
        {"forgotten": 0.9, "retained": 0.8, "test": 0.7}, {"forgotten": 0.5, "retained": 0.8, "test": 0.8}
    )
    assert found.factors == pytest.approx({"forgotten": 0.6, "retained": 1.0, "test": 0.9})
    assert found.value == pytest.approx(0.54)


@pytest.mark.parametrize(
    ("correct", "guesses", "epsilon"),
    [(32, 32, 2.32), (24, 32, 0.38), (160, 256, 0.29), (16, 32, 0), (0, 9, 0)],
)
def test_the_canary_bound(correct: int, guesses: int, epsilon: float) -> None:
    found = canary_bound(correct, guesses)
    assert found.epsilon_low == pytest.approx(epsilon, abs=0.005)
    exact = stats.binomtest(correct, guesses, alternative="greater").proportion_ci(0.95, "exact")
    assert found.accuracy_low == pytest.approx(exact.low, abs=1e-9)


def test_the_canary_bound_is_wrong_as_rarely_as_it_says() -> None:
    rng, epsilon = np.random.default_rng(1), 0.5
    correct = rng.binomial(100, math.exp(epsilon) / (1 + math.exp(epsilon)), size=2000)
    bounds = {value: canary_bound(value, 100).epsilon_low for value in set(correct.tolist())}
    assert np.mean([bounds[value] > epsilon for value in correct.tolist()]) <= 0.06


def test_exact_bounds_name_the_extra_that_they_need(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.special", None)
    with refused("invalid", says=r"need SciPy: pip install 'fedunlearn\[evidence\]'$"):
        clopper_pearson(1, 2)
    assert 0.5 in wilson(1, 2)
    assert not exact_bounds()
    assert tail_counts(Scores([0.0], np.arange(1000.0) + 1), 0.01).hits == 1


def test_scipy_is_noticed() -> None:
    assert exact_bounds()


def test_the_error_of_an_auc_follows_from_its_value() -> None:
    rng = np.random.default_rng(3)
    for shift in (0.0, 0.5):
        drawn = [Scores(rng.normal(size=300), rng.normal(shift, size=120)) for _ in range(400)]
        values = [delong(each).value for each in drawn]
        assert auc_error(float(np.mean(values)), 300, 120) == pytest.approx(np.std(values), rel=0.15)
