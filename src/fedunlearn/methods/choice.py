"""Which method answers a request where nobody names one."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple


class Recommendation(NamedTuple):
    """A method with its options, and why."""

    method: str
    reason: str
    options: Mapping[str, bool] = {}


def recommend(
    *, poisoned: bool = False, gone: bool = False, trusted: bool = True, recorded: Collection[str] = ()
) -> Recommendation:
    """Recommend exact retraining, or FedOSD where what must go is a backdoor.

    ``poisoned`` says that the targets planted a backdoor, or are suspected to; ``trusted``, that they would
    still train honestly when asked to unlearn; ``gone``, that they have left. ``recorded`` are the kinds of
    history that training left behind.
    """
    if "cluster" in recorded:
        return Recommendation(
            "knot",
            "training was clustered, so that retraining the target's cluster alone is exact, and the "
            "cheapest exact way (docs/methods/knot.md)",
        )
    if "slice" in recorded:
        return Recommendation(
            "sisa",
            "training was sliced, so that repeating the target's shard from the slice in which it joined is "
            "exact, and costs a part of a retraining (docs/methods/sisa.md)",
        )
    if poisoned and trusted and not gone:
        return Recommendation(
            "fedosd",
            "the target planted a backdoor, is there and is trusted to help: FedOSD removes it while the "
            "model stays in use, and was like retraining in 8 of 9 audits of such targets "
            "(docs/results.md). Single examples may remain: their hardest tenth raised alarms",
        )
    because = (
        "the target has left, and this asks nothing of it"
        if gone
        else "a target that may cheat is not asked for anything"
        if poisoned
        else "it is exact, while FedOSD left clean targets under-forgotten in 5 of 6 audits"
    )
    return Recommendation(
        "fast-retrain",
        f"{because} (docs/results.md); a new model, in which no target has a part, is trained until "
        "the others are as well off as before (docs/methods/fast-retrain.md)",
        recommended_options("fast-retrain"),
    )


def recommended_options(method: str) -> dict[str, bool]:
    """The options with which a method is recommended."""
    return {"until_recovered": True} if method == "fast-retrain" else {}
