"""What every number in a report means, in a sentence or two."""

from __future__ import annotations

from collections.abc import Iterable

from ..measure.metrics import METRICS, metric

TERMS = {
    "clients": (
        "Client by client",
        "The score of one retained client on its own test data. With another seed, a client of the same "
        "number holds other data.",
    ),
    "omega0": ("ω⁰", "The model when the request arrives: after pre-training, before anything is forgotten."),
    "stages": (
        "Unlearned, post-trained",
        "After the rounds that remove the target's influence (¹), and after those in which the retained "
        "clients repair the damage (²). Some methods have only one of the two stages.",
    ),
    "ended": (
        "Ended",
        "done: all rounds are over. converged: the method stopped by itself. unfinished: the run goes on, "
        "or was stopped. diverged, no direction, missing reply: the run had to stop, and kept the last "
        "good model.",
    ),
    "sha256": (
        "Model hash",
        "SHA-256 of the final parameters and buffers. Equal hashes mean models that are equal to the last "
        "bit.",
    ),
}
"""What is explained beside metrics."""


def glossary(keys: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Title and explanation of the metrics with these keys, in the table's order, then of other terms."""
    wanted = list(dict.fromkeys(keys))
    metrics = [key for key in METRICS if key in wanted]
    metrics += [key for key in wanted if key not in METRICS and key not in TERMS]
    own = "A score of this task."
    return {key: (metric(key).title, metric(key).help or own) for key in metrics} | TERMS
