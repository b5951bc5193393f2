"""Measures other than the verdict, each against retraining, and their sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .distances import TugOfWar
from .proportions import TailRate, newcombe, wilson
from .statistics import Interval

EXACT = frozenset({"retrain", "fast-retrain", "rapid", "knot", "sisa"})
"""Methods whose new model no target and no model of a target had a part in: docs/evidence/claims.md."""

NAMED = 10
"""Clients that a sentence names before it counts the others."""


@dataclass(frozen=True)
class Rate:
    """A share of examples with Wilson's 95 % interval."""

    share: float
    interval: Interval
    n: int
    gap: float | None = None
    """To retraining; None for retraining itself, and without it."""
    gap_interval: Interval | None = None
    """Newcombe's, 95 %."""


@dataclass(frozen=True)
class OutputDistance:
    """The mean Jensen–Shannon distance of a model's outputs to those of retraining, from 0 to 1."""

    forgotten: float
    unseen: float


def rates(counts: Mapping[str, tuple[int, int]]) -> dict[str, Rate]:
    """Return the share of hits by model, from hits and numbers of examples.

    >>> found = rates({"model": (56, 70), "retrained": (48, 80)})
    >>> print(f"{found['model'].gap:.2f} {found['model'].gap_interval}")
    0.20 [0.052, 0.334]
    """
    standard = counts.get("retrained")
    found = {}
    for model, (hits, n) in counts.items():
        found[model] = Rate(hits / n, wilson(hits, n), n)
        if standard is not None and model != "retrained":
            gap, interval = hits / n - standard[0] / standard[1], newcombe(hits, n, *standard)
            found[model] = Rate(hits / n, wilson(hits, n), n, gap, interval)
    return found


def rate_sentence(what: str, examples: str, found: Mapping[str, Rate]) -> str:
    """Say how often something succeeds, and what it is after retraining."""
    ours, theirs = found["model"], found.get("retrained")
    told = f"{what} {ours.share:.3f} of {ours.n:,} {examples} examples (95 % interval {ours.interval})"
    if theirs is None:
        return f"{told}."
    return (
        f"{told}, after retraining on {theirs.share:.3f}; the difference is {ours.gap:+.3f} "
        f"({ours.gap_interval})."
    )


def tail_sentence(fpr: str, found: Mapping[str, TailRate]) -> str:
    """Say how many forgotten examples an attack finds that is rarely wrong."""
    ours = found["model"]
    told = f"an attack finds {ours.tpr:.3f} of them in the model (95 % interval {ours.interval})"
    others = {"original": "in the model before unlearning", "retrained": "after retraining"}
    others["again"] = "after another retraining"
    more = [f"{found[model].tpr:.3f} {where}" for model, where in others.items() if model in found]
    return f"at {fpr} false alarms {', '.join([told, *more])}."


def distance_sentence(found: Mapping[str, OutputDistance]) -> str:
    """Say how far the outputs are from those of retraining."""
    ours = found["model"]
    told = (
        f"their Jensen–Shannon distance to retraining is {ours.forgotten:.3f} on forgotten and "
        f"{ours.unseen:.3f} on unseen examples"
    )
    others = {"again": "another retraining", "original": "the model before unlearning"}
    more = [
        f"for {who} {found[model].forgotten:.3f} and {found[model].unseen:.3f}"
        for model, who in others.items()
        if model in found
    ]
    return f"{'; '.join([told, *more])}."


def tug_sentence(found: Mapping[str, TugOfWar]) -> str:
    """Say the scalar with its factors."""
    factors = ", ".join(f"{name} {factor:.3f}" for name, factor in found["model"].factors.items())
    told = (
        f"ToW (tug of war) is {found['model'].value:.3f}, the product of 1 − |accuracy − accuracy of "
        f"retraining| on examples ({factors}); 1 is like retraining"
    )
    if "again" in found:
        told += f", and another retraining has {found['again'].value:.3f}"
    return f"{told}."


def exact_sentence(method: str) -> str:
    """Say what an exact method guarantees by itself; nothing of any other."""
    sentence = (
        f"This model never saw the data that was to be forgotten: {method} is exact, it trains a new model "
        "without them. Tests only check that: they can be inconclusive for want of examples, and "
        "over-forgotten means chance or too few rounds."
    )
    return sentence if method in EXACT else ""


def listed(names: Sequence[str]) -> str:
    """Name the first few and count the others."""
    more = len(names) - NAMED
    others = f" and {more} other{'' if more == 1 else 's'}" if more > 0 else ""
    return ", ".join(names[:NAMED]) + others
