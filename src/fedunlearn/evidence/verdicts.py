"""Verdicts: is a client forgotten as if it had never taken part, too little, or too much?

The standard is a model retrained without the client. Losses alone hardly show membership: what an example's
difficulty adds hides it. So each loss is *calibrated*: the mean loss of reference models that never saw the
forgotten examples is subtracted. References are twins (federations with another client of the same
distribution in the target's place), a retrained model, or checkpoints from before the client joined.

The test compares the AUC of the calibrated losses with that of the retrained model on the same examples:

| verdict | when |
|---|---|
| EQUIVALENT | the 90 % interval of the difference lies within ±margin, and the test can see (below) |
| UNDER | otherwise, if the 95 % interval lies above 0: more is remembered than after retraining |
| OVER | otherwise, if the 95 % interval lies below 0: worse on the forgotten examples than retraining |
| INCONCLUSIVE | otherwise, or too few examples to claim equivalence |
| NO_SIGNAL | no alarm, but the same test does not call the model before unlearning, ω⁰, UNDER |

The last row is the power gate. A test that does not find the client in ω⁰, which was trained on it, would
pass every model. Without a retrained model there is no verdict at all.

Several targets raise more false alarms than one, so ``alarm_levels`` corrects the level of alarms after Holm.
A pass of all needs every single one (an intersection-union test), and no correction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from ..core import FedUnlearnError
from ..core.errors import require, require_count
from .calibration import compare, hardest, several
from .statistics import NORMAL, Estimate, Interval, Paired, Scores, delong, holm, tost

MARGIN = 0.05
"""The largest difference of AUC that counts as equivalent."""

MINIMUM = 600
"""Forgotten and unseen examples that a claim of equivalence needs. With 600 of each, a model that is as good
as retrained passes in four of five cases, with 300 in one of three."""

ALARM_MINIMUM = 30
"""Examples of each kind below which the normal approximation is not trusted for an alarm either."""

ALARM_LEVEL = 0.95
"""Confidence of an alarm: of models like retrained ones, about one in twenty raises a false one."""


class Verdict(StrEnum):
    """The result of a test of a model."""

    EQUIVALENT = "equivalent"
    UNDER = "under"
    OVER = "over"
    INCONCLUSIVE = "inconclusive"
    NO_SIGNAL = "no_signal"

    @property
    def alarm(self) -> bool:
        """True if the model was found to differ from retraining."""
        return self in (Verdict.UNDER, Verdict.OVER)


@dataclass(frozen=True)
class Finding:
    """A verdict with the numbers that it rests on."""

    verdict: Verdict | None
    """None: no verdict is possible, because there is no retrained model to compare with."""
    sentence: str
    auc: float
    interval: Interval
    """Of the AUC, 90 %."""
    n_forgotten: int
    n_unseen: int
    margin: float | None = None
    """None where equivalence was not tested."""
    reference_auc: float | None = None
    difference: float | None = None
    difference_interval: Interval | None = None
    """90 %: equivalence is claimed where it lies within the margin."""
    alarm_interval: Interval | None = None
    """95 %, and more where there are several targets: an alarm is raised where it excludes 0."""
    gate: Verdict | None = None
    """The same test's verdict on ω⁰; EQUIVALENT needs UNDER here."""


def judge(
    model: Scores,
    *,
    retrained: Scores | Sequence[Scores] | None,
    original: Scores | None,
    references: Sequence[Scores] = (),
    margin: float = MARGIN,
    minimum: int = MINIMUM,
) -> Finding:
    """Judge a model by its losses on forgotten and unseen examples.

    ``retrained`` and ``original`` (ω⁰) are the losses of these models on the same examples, and so are
    ``references``; without any, the retrained model is the reference. Two retrained models are a better
    standard than one: their mean AUC errs less. Without a retrained model the result shows the AUC and says
    that no verdict is possible; without ω⁰ there are alarms, but no pass. A model that is its own reference
    would pass, so equal losses raise an error.

    >>> import numpy as np
    >>> rng = np.random.default_rng(1)
    >>> def losses(remembered):
    ...     noise = rng.gamma(2.0, 0.5, size=2000)
    ...     return Scores(hardness[:1000] + noise[:1000] - remembered, hardness[1000:] + noise[1000:])
    >>> hardness = rng.gamma(2.0, 1.0, size=2000) + 1
    >>> retrained, twin, before = losses(0.0), losses(0.0), losses(0.5)
    >>> judge(losses(0.0), retrained=retrained, original=before, references=[twin]).verdict
    <Verdict.EQUIVALENT: 'equivalent'>
    >>> print(judge(losses(0.3), retrained=retrained, original=before, references=[twin]).sentence)
    Under-forgotten: the AUC exceeds that of retraining by 0.106 (95 % interval [0.080, 0.132]).
    """
    if retrained is None:
        return no_verdict(model)
    standard = several(retrained)
    references = tuple(references) or standard
    named = [("retrained model", standard), ("reference", references)]
    for name, other in ((name, other) for name, others in named for other in others):
        if other in (model, original):
            which = "model" if model == other else "model before unlearning"
            raise FedUnlearnError(f"the {which} and the {name} have equal losses: give different models")
    before = None if original is None else compare(original, standard, references)
    return decide(compare(model, standard, references), before, margin=margin, minimum=minimum)


def decide(
    model: Paired,
    original: Paired | None,
    *,
    margin: float = MARGIN,
    minimum: int = MINIMUM,
    level: float = ALARM_LEVEL,
) -> Finding:
    """Judge a model by its paired comparison with retraining, and by that of ω⁰.

    The comparisons are all that the verdict needs: a client can compute them and keep its losses. Without
    that of ω⁰ there are alarms, but no pass. ``level`` is the confidence of an alarm: where there are several
    targets, take it from ``alarm_levels``. Equivalence and the power gate keep theirs.

    >>> def compared(difference):
    ...     other, gap = Estimate(0.5, 0.01), Estimate(difference, 0.01)
    ...     return Paired(Estimate(0.5 + difference, 0.01), other, gap, n_forgotten=1000, n_unseen=1000)
    >>> decide(compared(0.01), original=compared(0.08)).verdict
    <Verdict.EQUIVALENT: 'equivalent'>
    >>> decide(compared(0.01), original=compared(0.02)).verdict
    <Verdict.NO_SIGNAL: 'no_signal'>
    """
    require_count("minimum", minimum)
    sizes = model.n_forgotten, model.n_unseen
    if original is not None and sizes != (original.n_forgotten, original.n_unseen):
        raise FedUnlearnError("the model and the one before unlearning were compared on different examples")
    gate = None if original is None else _outcome(original, margin, ALARM_LEVEL)
    verdict = _outcome(model, margin, level)
    # An alarm stands on its own. Silence counts only if the test had enough examples and could see ω⁰.
    if not verdict.alarm:
        if min(sizes) < minimum:
            verdict = Verdict.INCONCLUSIVE
        elif gate is not Verdict.UNDER:
            verdict = Verdict.NO_SIGNAL
    return _finding(verdict, model, gate, margin, minimum, level)


def alarm_levels(comparisons: Sequence[Paired], level: float = ALARM_LEVEL) -> tuple[float, ...]:
    """Return the confidence that an alarm about each of several targets needs, corrected after Holm.

    If no target differs from retraining, the chance of any alarm is then at most 1 − ``level``, instead of
    that for each target. A comparison with too few examples for an alarm counts, but raises none.

    >>> def compared(difference):
    ...     gap = Estimate(difference, 0.01)
    ...     return Paired(Estimate(0.5 + difference, 0.01), Estimate(0.5, 0.01), gap, 1000, 1000)
    >>> alarm_levels([compared(0.022), compared(0.03)])
    (0.95, 0.975)
    >>> alarm_levels([compared(0.022)])
    (0.95,)
    """
    require(0 < level < 1, "level", level, "between 0 and 1")
    return tuple(1 - alpha for alpha in holm([_p_value(found) for found in comparisons], 1 - level))


def no_verdict(model: Scores) -> Finding:
    """Return the AUC of a model without a retrained one to compare it with: never a pass.

    In nine small worlds, the AUC of plain losses was within 0.5 ± 0.05 for ω⁰ itself in eight.

    >>> print(no_verdict(Scores([0.1, 0.2], [0.1, 0.2])).sentence)
    No verdict possible without a retrained model: an AUC near 0.5 is also found where nothing was forgotten.
    """
    return unjudged(delong(model), len(model.forgotten), len(model.unseen))


def unjudged(auc: Estimate, n_forgotten: int, n_unseen: int) -> Finding:
    """``no_verdict`` from the AUC alone, which a client can compute."""
    sentence = (
        "No verdict possible without a retrained model: an AUC near 0.5 is also found where nothing was "
        "forgotten."
    )
    return Finding(None, sentence, auc.value, _possible(auc), n_forgotten, n_unseen)


def tail_alarm(
    model: Scores,
    *,
    retrained: Scores | Sequence[Scores],
    references: Sequence[Scores] = (),
    share: float = 0.1,
) -> Finding:
    """Look at the hardest examples alone, where memorisation shows first; UNDER and OVER only.

    Hardest is by the references, with one threshold for both sets: the mean loss that ``share`` of the unseen
    examples exceed. Its error is too large to claim equivalence, so no alarm is INCONCLUSIVE, not a pass.

    >>> import numpy as np
    >>> rng = np.random.default_rng(1)
    >>> hard, noise = rng.gamma(2.0, 1.0, size=2000), rng.normal(scale=0.3, size=(2, 2000))
    >>> reference = Scores(hard[:1000], hard[1000:])
    >>> retrained = Scores(hard[:1000] + noise[0, :1000], hard[1000:] + noise[0, 1000:])
    >>> memorised = np.where(hard[:1000] > 4, hard[:1000] - 1, hard[:1000]) + noise[1, :1000]
    >>> model = Scores(memorised, hard[1000:] + noise[1, 1000:])
    >>> tail_alarm(model, retrained=retrained, references=[reference]).verdict
    <Verdict.UNDER: 'under'>
    """
    found = hardest(model, retrained, references, share=share)
    if found is None:
        raise FedUnlearnError("fewer than two examples of a set are that hard: take a larger share")
    return tail_finding(found)


def tail_finding(found: Paired, *, level: float = ALARM_LEVEL) -> Finding:
    """Say what a comparison of the hardest examples shows: an alarm, or nothing."""
    return _finding(_outcome(found, None, level), found, None, None, 0, level)


def _p_value(found: Paired) -> float:
    """Two-sided, of no difference; 1 where the examples are too few for an alarm."""
    if min(found.n_forgotten, found.n_unseen) < ALARM_MINIMUM:
        return 1.0
    value, error = abs(found.difference.value), found.difference.error
    return 2 * NORMAL.cdf(-value / error) if error else float(not value)


def _outcome(found: Paired, margin: float | None, level: float) -> Verdict:
    """Return the result of the test alone, without minimum and gate."""
    if margin is not None and tost(found.difference, margin).equivalent:
        return Verdict.EQUIVALENT
    interval = found.difference.interval(level)
    if 0 in interval or min(found.n_forgotten, found.n_unseen) < ALARM_MINIMUM:
        return Verdict.INCONCLUSIVE
    return Verdict.UNDER if interval.low > 0 else Verdict.OVER


def _possible(auc: Estimate) -> Interval:
    """The 90 % interval of an AUC, which is never below 0 or above 1."""
    interval = auc.interval(0.9)
    return Interval(max(interval.low, 0.0), min(interval.high, 1.0), interval.level)


def _finding(
    verdict: Verdict,
    found: Paired,
    gate: Verdict | None,
    margin: float | None,
    minimum: int,
    level: float,
) -> Finding:
    return Finding(
        verdict,
        _sentence(verdict, found, gate, margin, minimum, level),
        found.model.value,
        _possible(found.model),
        found.n_forgotten,
        found.n_unseen,
        margin,
        found.reference.value,
        found.difference.value,
        found.difference.interval(0.9),
        found.difference.interval(level),
        gate,
    )


def _sentence(
    verdict: Verdict,
    found: Paired,
    gate: Verdict | None,
    margin: float | None,
    minimum: int,
    level: float,
) -> str:
    difference, equivalence = found.difference, found.difference.interval(0.9)
    alarm = difference.interval(level)
    match verdict:
        case Verdict.UNDER:
            return (
                f"Under-forgotten: the AUC exceeds that of retraining by {difference.value:.3f} "
                f"({100 * level:.3g} % interval {alarm})."
            )
        case Verdict.OVER:
            return (
                f"Over-forgotten: the AUC falls short of that of retraining by {-difference.value:.3f} "
                f"({100 * level:.3g} % interval of the difference {alarm})."
            )
        case Verdict.EQUIVALENT:
            return (
                f"Equivalent to retraining within ±{margin:g}: the AUC differs by {difference.value:.3f} "
                f"(90 % interval {equivalence}), and the same test finds the client in the model before."
            )
        case Verdict.NO_SIGNAL:
            return f"No signal: {_BLIND[gate]}, so it cannot certify any other."
    if margin is None:
        return (
            f"No alarm among the {found.n_forgotten} hardest forgotten examples, which are too few to claim "
            "more."
        )
    fewest = min(found.n_forgotten, found.n_unseen)
    if fewest < ALARM_MINIMUM and 0 not in alarm:
        return (
            f"Inconclusive: the {100 * level:.3g} % interval of the difference, {alarm}, excludes 0, but an "
            f"alarm needs {ALARM_MINIMUM} forgotten and unseen examples, and there are "
            f"{found.n_forgotten:,} and {found.n_unseen:,}."
        )
    if fewest < minimum:
        return (
            f"Inconclusive: a verdict of equivalence needs {minimum:,} forgotten and {minimum:,} unseen "
            f"examples, and there are {found.n_forgotten:,} and {found.n_unseen:,}."
        )
    return (
        f"Inconclusive: the 90 % interval of the difference, {equivalence}, is not within ±{margin:g}; "
        "more examples narrow it."
    )


_BLIND = {
    None: "the test was not tried on the model before unlearning",
    Verdict.EQUIVALENT: "the test calls even the model before unlearning equivalent",
    Verdict.INCONCLUSIVE: "the test does not find the client in the model before unlearning",
    Verdict.OVER: "the test calls the model before unlearning over-forgotten",
}
