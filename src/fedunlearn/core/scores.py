"""Which of the measures of a run tell how useful a model is, and how much it remembers."""

from __future__ import annotations

from collections.abc import Iterable


def utility_key(keys: Iterable[str]) -> str | None:
    """What tells how useful a model is: R-Acc, or the first score of the retained clients that there is."""
    return _first(keys, ("r_acc",), "r_", but=("r_seen",))


def forgetting_key(keys: Iterable[str]) -> str | None:
    """What tells how much is remembered: ASR, AUC, or the first score on the data to be forgotten."""
    return _first(keys, ("asr", "forget_auc", "forget_acc"), "forget_", but=())


def headline(keys: Iterable[str]) -> list[str]:
    """The measures at the head of a line of progress: one of forgetting, one of utility, as far as known.

    Without a backdoor, the loss on the data to be forgotten shows forgetting. A target's accuracy on its own
    test data does not: it stays high if other clients hold similar data.
    """
    known = list(keys)
    utility = utility_key(known)
    telling = ["asr", "loss_target", forgetting_key(known), *(["train_loss_target"] if utility else [])]
    forgetting = next((key for key in telling if key in known), None)
    return [key for key in (forgetting, utility) if key]


def _first(
    keys: Iterable[str], preferred: tuple[str, ...], prefix: str, *, but: tuple[str, ...]
) -> str | None:
    known = list(keys)
    scores = [
        key
        for key in known
        if key.startswith(prefix)
        and " " not in key
        and key not in but
        and not key.endswith(("_std", "_worst", "_best"))
    ]
    return next((key for key in (*preferred, *scores) if key in known), None)
