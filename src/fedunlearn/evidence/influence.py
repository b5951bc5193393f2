"""Influence: who is better or worse off with a model than after retraining, and whether that is chance."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from ..core import FedUnlearnError
from ..core.errors import require
from .measures import listed
from .proportions import fisher
from .statistics import holm

FACTOR = 3.0
"""Times the noise floor that a difference must exceed."""

ALPHA = 0.05
"""The chance of any false alarm among clients that are like after retraining."""


@dataclass(frozen=True)
class Influence:
    """One measure of one client under a model, against retraining."""

    value: float
    retrained: float
    difference: float
    floor: float | None
    """The distance of a second retraining from the first; None without one."""
    beyond: bool | None
    """True if the noise floor and, of a share, an exact test are exceeded; None without a floor."""
    n: int | None = None
    """The number of examples of a share."""
    p_value: float | None = None
    """Of an exact test of both shares."""

    @property
    def beyond_floor(self) -> bool | None:
        """True if the difference exceeds three times the noise floor; None without one."""
        return None if self.floor is None else abs(self.difference) > FACTOR * self.floor


def client_influence(
    model: Mapping[str, float],
    retrained: Mapping[str, float],
    again: Mapping[str, float] | None,
    counts: Mapping[str, int] | None = None,
) -> dict[str, Influence]:
    """Compare one measure (accuracy or loss on unseen data) of each client with retraining.

    Two retrainings differ too. ``again`` is a second one; a client's floor is its own difference between the
    two or, if larger, the root mean square over all clients. A difference beyond three times the floor is
    more than chance moves a training. With ``counts``, the values are shares of so many examples, and an
    exact test, corrected after Holm over the clients, must find the difference, too. Give all clients at
    once. Without ``again`` the differences have no floor, and no client is flagged.

    >>> first, second = {"a": 0.80, "b": 0.70, "c": 0.75}, {"a": 0.81, "b": 0.69, "c": 0.75}
    >>> found = client_influence({"a": 0.80, "b": 0.50, "c": 0.76}, first, second)
    >>> [client for client, influence in found.items() if influence.beyond]
    ['b']
    >>> few = client_influence({"a": 0.80, "b": 0.50, "c": 0.76}, first, second, dict.fromkeys("abc", 20))
    >>> any(influence.beyond for influence in few.values())
    False
    """
    others = [retrained] if again is None else [retrained, again]
    if not model or any(model.keys() != other.keys() for other in others):
        raise FedUnlearnError("the model and both retrainings must be measured on the same clients")
    values = [value for measured in (model, *others) for value in measured.values()]
    require(all(map(math.isfinite, values)), "measures", values, "finite")
    gaps = None if again is None else {client: abs(again[client] - retrained[client]) for client in model}
    common = math.sqrt(sum(gap * gap for gap in gaps.values()) / len(gaps)) if gaps else 0.0
    found = {}
    for client, value in model.items():
        other, floor = retrained[client], None if gaps is None else max(gaps[client], common)
        n = None if counts is None else counts[client]
        p = None if n is None else fisher(_hits(value, n), n, _hits(other, n), n)
        found[client] = Influence(value, other, value - other, floor, None, n, p)
    (found,) = corrected([found])
    return found


def _hits(share: float, n: int) -> int:
    return min(max(round(share * n), 0), n)


def corrected(several: Sequence[Mapping[str, Influence]]) -> list[dict[str, Influence]]:
    """Judge differences by the noise floor and, of shares, by exact tests after Holm over all audits."""
    p_values = [each.p_value for found in several for each in found.values() if each.p_value is not None]
    levels = iter(holm(p_values, ALPHA))

    def judged(each: Influence) -> Influence:
        if each.p_value is not None:
            significant = each.p_value <= next(levels)
            return replace(each, beyond=each.beyond_floor and significant)
        return each if each.beyond is not None else replace(each, beyond=each.beyond_floor)

    return [{client: judged(each) for client, each in found.items()} for found in several]


def influence_sentence(measure: str, found: Mapping[str, Influence], targets: Collection[str]) -> str:
    """Say who is worse or better off than after retraining; the clients that were harmed come first."""
    spelled = {
        client: f"{'target ' if client in targets else ''}{client} ({each.difference:+.3f})"
        for client, each in found.items()
    }
    sizes = sorted({each.n for each in found.values() if each.n is not None})
    n = f" (n = {' to '.join(f'{size:,}' for size in dict.fromkeys((sizes[0], sizes[-1])))})" if sizes else ""
    largest = max(found, key=lambda client: abs(found[client].difference))
    if found[largest].beyond is None:
        return (
            f"Unseen data, {measure}{n}: the largest difference to retraining is that of {spelled[largest]}; "
            "whether it is chance, only a second retraining can tell."
        )
    floor = "three times the noise floor of two retrainings"
    beyond = f"beyond chance (exact test after Holm, and {floor})" if sizes else f"beyond {floor}"
    flagged = sorted(
        (client for client, each in found.items() if each.beyond), key=lambda c: -abs(found[c].difference)
    )
    if not flagged:
        return (
            f"Unseen data, {measure}{n}: no client differs from retraining {beyond}; the largest difference "
            f"is that of {spelled[largest]}."
        )
    worse = [client for client in flagged if (found[client].difference > 0) == (measure == "loss")]
    better = [client for client in flagged if client not in worse]
    told = [
        f"{what} than after retraining: {listed([spelled[client] for client in clients])}"
        for what, clients in (("worse", worse), ("better", better))
        if clients
    ]
    return f"Unseen data, {measure}{n}: {beyond}, {'; '.join(told)}."
