"""Explains every number in a report in a sentence or two."""

from __future__ import annotations

from collections.abc import Iterable

from ..measures.metrics import METRICS, metric
from .audits import TABLES

TERMS = {
    "clients": (
        "Client by client",
        "The score of one retained client on its own test data. With a different seed, the client of the "
        "same number holds different data.",
    ),
    "omega0": ("ω⁰", "The model when the request arrives: after pre-training and before unlearning."),
    "stages": (
        "Unlearned, post-trained, retrained",
        "After the rounds that remove the target's influence (¹), and after the rounds in which the retained "
        "clients repair the damage (²). Some methods have only one of the two stages. A method that retrains "
        "trains a new model instead; its numbers stand under ².",
    ),
    "ended": (
        "Ended",
        "done: all rounds are finished. converged: the method stopped early. unfinished: the run is still "
        "running, or was interrupted. diverged, no direction, missing reply: the run had to stop and kept "
        "the last good model.",
    ),
    "sha256": (
        "Model hash",
        "SHA-256 of the final parameters and buffers. Equal hashes mean bit-identical models.",
    ),
}
"""Terms that are not metrics."""

AUDITED = {column.key: (column.title, column.help) for columns in TABLES.values() for column in columns}
"""The columns of evidence."""


def glossary(keys: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Title and explanation of the metrics with these keys, then of the other terms."""
    wanted = list(dict.fromkeys(keys))
    audited = {key: text for key, text in AUDITED.items() if key in wanted}
    metrics = [key for key in METRICS if key in wanted]
    metrics += [key for key in wanted if key not in METRICS and key not in TERMS and key not in AUDITED]
    own = "A score of this task."
    return {key: (metric(key).title, metric(key).help or own) for key in metrics} | audited | TERMS
