"""The metrics that runs write: what each is called, how it is written and which way is better.

Files, terminal, HTML, LaTeX, glossary and trackers read this one table. A key with a client's name after a
space, such as ``r_acc client-3``, is that client's value of the metric before the space. Keys that are not in
the table, such as a score of your own, are shown under their own name.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

Better = Literal["lower", "higher", "none", "retraining"]


@dataclass(frozen=True)
class Metric:
    """One number of a run.

    ``unit`` is ``share`` (0 to 1, written in percent), ``bytes`` (written in KB or MB), ``s`` (two
    significant digits), or what is counted. ``better`` is ``retraining`` where neither low nor high is good
    by itself: the number to reach is that of a model retrained without the target.
    """

    key: str
    title: str
    unit: str
    digits: int
    better: Better
    help: str

    def text(self, value: float, sign: str = "") -> str:
        """Return a value as tables and sentences write it, maybe with a sign."""
        if self.unit == "share":
            return f"{value:{sign}.{self.digits}%}"
        if self.unit == "bytes":
            size, name = (1e3, "KB") if abs(value) < 1e6 else (1e6, "MB")
            return f"{significant(value / size, sign)} {name}" if value else "0"
        return significant(value, sign) if self.unit == "s" else f"{value:{sign},.{self.digits}f}"


def significant(value: float, sign: str = "") -> str:
    """Return a number with two significant digits, and all digits before the point.

    >>> significant(0.0123), significant(1234.5)
    ('0.012', '1,234')
    """
    digits = max(0, 1 - math.floor(math.log10(abs(value)))) if value else 0
    return f"{value:{sign},.{digits}f}"


_TABLE = (
    Metric(
        "asr",
        "ASR",
        "share",
        1,
        "lower",
        "Attack success rate: the share of the target's triggered data that gets the attacker's label. A "
        "model retrained without the target is not at zero either; its ASR is the level to reach.",
    ),
    Metric(
        "forget_acc",
        "Forget acc",
        "share",
        1,
        "retraining",
        "Accuracy on the data to be forgotten. Lower is not better: a model retrained without the data is "
        "right on part of it too, and its accuracy is the level to reach.",
    ),
    Metric(
        "forget_auc",
        "Forget AUC",
        "",
        3,
        "retraining",
        "How well losses tell the target's training examples from its unseen ones: .5 is chance. Measured "
        "where the target holds no set of its own for forgetting. The level to reach is that of a model "
        "retrained without the target.",
    ),
    Metric(
        "r_acc",
        "R-Acc",
        "share",
        1,
        "higher",
        "Accuracy of the retained clients, each on its own test data; mean over clients.",
    ),
    Metric("r_acc_std", "std", "share", 1, "none", "Standard deviation of R-Acc over the retained clients."),
    Metric(
        "r_acc_worst",
        "Worst",
        "share",
        1,
        "higher",
        "Accuracy of the retained client with the lowest one. A good mean can hide a client that pays for "
        "the forgetting.",
    ),
    Metric("r_acc_best", "Best", "share", 1, "none", "Accuracy of the retained client with the highest one."),
    Metric(
        "target_acc",
        "Target acc",
        "share",
        1,
        "none",
        "Accuracy on the target's own test data, without trigger. It stays high where other clients hold "
        "similar data.",
    ),
    Metric(
        "r_seen",
        "R-Acc (train)",
        "share",
        1,
        "none",
        "Accuracy of the retained clients on examples that they trained on. Learning rates are chosen by it.",
    ),
    Metric(
        "distance",
        "Distance",
        "",
        3,
        "none",
        "Euclidean distance from the parameters to those of ω⁰. If it falls in post-training, the model is "
        "on its way back.",
    ),
    Metric(
        "conflicts",
        "NC",
        "clients",
        2,
        "lower",
        "Number of conflicts: retained clients whose loss a step increases, to first order; mean over the "
        "rounds of a stage. Comparisons show the unlearning stage.",
    ),
    Metric(
        "coverage",
        "Coverage",
        "share",
        0,
        "none",
        "Share of the retained clients that answered in at least one round since the request.",
    ),
    Metric("heard", "Heard", "clients", 0, "none", "Retained clients that answered in this round."),
    Metric(
        "missing",
        "Missing",
        "clients",
        0,
        "none",
        "Clients that were asked in this round, without an answer.",
    ),
    Metric(
        "loss_target",
        "Target loss",
        "",
        3,
        "none",
        "Mean loss of the model on the triggered data, or on the data to be forgotten, which is all that "
        "the target trains on where it holds no set for it.",
    ),
    Metric(
        "loss_retained",
        "Retained loss",
        "",
        3,
        "lower",
        "Mean loss of the retained clients on test data.",
    ),
    Metric(
        "train_loss_target",
        "Target training loss",
        "",
        3,
        "none",
        "Mean loss that the targets trained with in this round, in their own objective.",
    ),
    Metric(
        "train_loss_retained",
        "Retained training loss",
        "",
        3,
        "none",
        "Mean loss that the retained clients trained with in this round, in their own objective.",
    ),
    Metric("rounds", "Rounds", "rounds", 0, "lower", "Rounds after the request."),
    Metric(
        "local_trainings",
        "Trainings",
        "trainings",
        0,
        "lower",
        "Local trainings: how often a client trained after the request.",
    ),
    Metric("bytes_up", "Sent up", "bytes", 0, "lower", "Bytes that clients sent to the server."),
    Metric("bytes_down", "Sent down", "bytes", 0, "lower", "Bytes that the server sent to clients."),
    Metric("bytes", "Exchanged", "bytes", 0, "lower", "Bytes sent in both directions."),
    Metric(
        "bytes_stored",
        "Stored",
        "bytes",
        0,
        "lower",
        "Bytes that the server keeps for the method: its memory and the history of pre-training that "
        "it needs.",
    ),
    Metric(
        "seconds",
        "Seconds",
        "s",
        0,
        "lower",
        "Wall time of the rounds, without evaluation. It depends on the machine and its load.",
    ),
    Metric(
        "seconds_server",
        "Server seconds",
        "s",
        1,
        "lower",
        "Seconds in which the server computed.",
    ),
    Metric("lr", "Learning rate", "", 5, "none", "Learning rate of this round, after decay."),
    Metric("phase", "Phase", "", 0, "none", "Number of the phase, from 0."),
    Metric("round", "Round", "rounds", 0, "none", "Number of the round in its phase, from 1; ω⁰ is 0."),
    Metric("elapsed", "Elapsed", "rounds", 0, "none", "Rounds since the request, over all phases."),
    Metric(
        "sine",
        "Sine",
        "",
        3,
        "none",
        "Sine of the angle between the targets' gradient and the span of the retained ones: 0 leaves no "
        "direction to step in.",
    ),
    Metric(
        "amplification",
        "Amplification",
        "",
        3,
        "none",
        "How much longer the orthogonal part was made to have the length of the targets' gradient.",
    ),
    Metric("rank", "Rank", "", 0, "none", "Number of independent directions among the retained gradients."),
    Metric(
        "max_cosine",
        "Largest cosine",
        "",
        6,
        "lower",
        "Largest cosine between the step and a retained gradient that it should be orthogonal to.",
    ),
    Metric("protected", "Protected", "clients", 0, "none", "Retained clients that the step does not harm."),
    Metric(
        "step_share",
        "Step share",
        "share",
        0,
        "none",
        "Share of the method's step that the guards admitted, in rounds in which they shortened it.",
    ),
    Metric(
        "epsilon",
        "ε",
        "",
        2,
        "lower",
        "Certified: with δ of its options, a model is (ε, δ)-indistinguishable from one of the same "
        "rounds from any other model in the ball. It says nothing about what ω⁰ itself discloses.",
    ),
    Metric("reach", "Reach", "", 3, "none", "Distance from the centre of FUPGA's ball, in radii."),
    Metric("erased", "Erased", "", 3, "none", "Length of what FedKdu subtracts, relative to ω⁰."),
    Metric("relative_step", "Relative step", "", 3, "none", "Length of PUF's step, relative to the model."),
    Metric("expanded", "Expanded", "", 0, "none", "1 where FUPareto stepped in the null space, else 0."),
    Metric("free", "Free", "", 0, "none", "Number of directions that SFU's projection leaves free."),
)

METRICS: Mapping[str, Metric] = {metric.key: metric for metric in _TABLE}
"""Every metric by its key, in the order of tables."""

_SCORE = re.compile(r"(r|forget|target)_(.+?)(_std|_worst|_best)?")
_OF_SCORE = {"_std": "std of {}", "_worst": "Worst {}", "_best": "Best {}"}
_ERRORS = {"mse": "MSE", "rmse": "RMSE", "mae": "MAE", "error": "error", "perplexity": "perplexity"}
"""Scores of which less is better, and how they are written."""


def metric(key: str) -> Metric:
    """The metric of a key; one of a task's own scores, or of an unknown key, is made up from its name."""
    base, _, client = key.partition(" ")
    found = METRICS.get(base) or _score(base)
    return replace(found, key=key, title=f"{found.title} {client}") if client else found


def _score(key: str) -> Metric:
    matched = _SCORE.fullmatch(key)
    if matched is None:
        return Metric(key, key.replace("_", " "), "", 3, "none", "")
    of, part = matched[1], matched[3]
    name = _ERRORS.get(matched[2], matched[2].replace("_", " "))
    if of == "forget":
        return Metric(
            key,
            f"Forget {name}",
            "",
            3,
            "retraining",
            f"{name} on the data to be forgotten; the level to reach is that of a retrained model.",
        )
    if of == "target":
        return Metric(key, f"Target {name}", "", 3, "none", f"{name} on the target's own test data.")
    title = _OF_SCORE[part].format(f"R-{name}") if part else f"R-{name}"
    if part == "_std":
        return Metric(key, title, "", 3, "none", f"Standard deviation of R-{name} over the retained clients.")
    better: Better = "lower" if matched[2] in _ERRORS else "none"
    return Metric(key, title, "", 3, better, f"{name} of the retained clients, each on its own test data.")


def client_of(key: str) -> str:
    """The client that a key is about; empty where it is about all."""
    return key.partition(" ")[2]
