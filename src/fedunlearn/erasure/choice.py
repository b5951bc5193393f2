"""Which method to use where nobody names one."""

from __future__ import annotations

from ..core import Request

CLEAN_TARGETS = {
    **dict.fromkeys(("fedosd", "finetune", "fedquit", "fupga"), "left too much"),
    **dict.fromkeys(("federaser", "mode", "not"), "forgot enough and harmed retained clients"),
    "fedosd-joint": "forgot too much and ruined the model",
}
"""What audits found about methods where the target had no backdoor (docs/evidence/results.md)."""


def recommend(
    request: Request, *, gone: bool = False, poisoned: bool = False, trusted: bool = False
) -> tuple[str, str]:
    """A method, and why: exact ones first, FedOSD only where what must go is a backdoor.

    ``poisoned`` says that the targets planted a backdoor, or are suspected to; ``trusted``, that they will
    still train honestly when they are asked to unlearn.
    """
    if "cluster" in request.history.kinds:
        return "knot", (
            "training was clustered, so that retraining the target's cluster alone is exact, and the "
            "cheapest exact way (docs/methods/knot.md)"
        )
    if "slice" in request.history.kinds:
        return "sisa", (
            "training was sliced, so that repeating the target's shard from the slice in which it joined is "
            "exact, and costs a part of a retraining (docs/methods/sisa.md)"
        )
    if poisoned and trusted and not gone:
        return "fedosd", (
            "the target planted a backdoor, is there and is trusted to help: FedOSD removes it while the "
            "model stays in use, and was like retraining in 8 of 9 audits of such targets "
            "(docs/evidence/results.md). Single examples may remain: their hardest tenth raised alarms"
        )
    because = (
        "the target has left, and this asks nothing of it"
        if gone
        else "a target that may cheat is not asked for anything"
        if poisoned
        else "it is exact, while FedOSD left clean targets under-forgotten in 5 of 6 audits"
    )
    return "fast-retrain", (
        f"{because}; a new model that no target had a part in was like retraining in a quarter of its rounds "
        "with a perceptron; LeNet-5 on little data needed half of them and momentum 0.5 "
        "(docs/evidence/results.md, docs/methods/fast-retrain.md)"
    )
