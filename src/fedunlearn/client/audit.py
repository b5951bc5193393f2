"""The work ``audit``: a client compares models on its own data, and only sums and comparisons leave it.

A job brings several models. For each of them a client reveals, for each of its sets, sums of losses and of
scores with their counts. A target also reveals ``NUMBERS`` for each comparison (the AUCs that a verdict rests
on, with standard errors, and the numbers of examples), ``COUNTS`` for each rate in the tail, and sums of
output distances and of a probe's hits. The loss of an example never leaves the client.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np
import torch
from torch import Size, Tensor

from ..core import Buffers, ClientId, FedUnlearnError, Job, State, Vector
from ..evidence import (
    Estimate,
    Paired,
    Scores,
    TailCounts,
    calibrated,
    compare,
    delong,
    hardest,
    needed_unseen,
    tail_counts,
)
from ..evidence.proportions import FPRS
from . import canaries
from .data import ClientData, Data, own_examples, size

NUMBERS = (
    "AUC of the model",
    "its standard error",
    "AUC of retraining",
    "its standard error",
    "difference of the AUCs",
    "its standard error",
    "forgotten examples",
    "unseen examples",
)
"""The numbers that leave a target for each comparison."""

COUNTS = (
    "forgotten examples below the threshold",
    "forgotten examples",
    "unseen examples below it",
    "unseen examples",
)
"""The counts that leave a target for each true positive rate."""

RETRAINED = ("retrained", "again")
REFERENCE = "reference "
BUFFER = " buffer "

Held = TypeVar("Held")


def audit_job(
    model: State,
    *,
    retrained: State | None = None,
    original: State | None = None,
    again: State | None = None,
    references: Sequence[State] = (),
    compare: bool,
) -> Job:
    """Return a job to measure all these models; ``compare`` also tests for membership, as targets do."""
    named = {"retrained": retrained, "original": original, "again": again}
    others = {name: state for name, state in named.items() if state is not None}
    others |= {f"{REFERENCE}{number}": state for number, state in enumerate(references)}
    arrays: dict[str, Tensor] = {}
    for name, state in others.items():
        arrays[name] = state.params
        arrays |= {f"{name}{BUFFER}{buffer}": value for buffer, value in state.buffers.items()}
    expects: dict[str, Size] = {}
    if compare:
        expects["losses"] = Size([len(NUMBERS)])
        if retrained is not None:
            expects |= dict.fromkeys(("model", "hardest"), Size([len(NUMBERS)]))
            rated = [name for name, state in named.items() if state is not None]
            for title in FPRS:
                expects |= {rate_name(name, title): Size([len(COUNTS)]) for name in ("model", *rated)}
        if retrained is not None and original is not None:
            expects["original"] = Size([len(NUMBERS)])
    return Job("audit", model.params, arrays, {"compare": compare}, model.buffers, expects)


def models_of(job: Job) -> dict[str, tuple[Vector, Buffers]]:
    """Return the models of a job by name, with their buffers; ``model`` is the one that is audited."""
    found: dict[str, tuple[Vector, Buffers]] = {"model": (job.params, job.buffers or {})}
    for name, array in job.arrays.items():
        if BUFFER not in name:
            mark = f"{name}{BUFFER}"
            buffers = {
                each.removeprefix(mark): value for each, value in job.arrays.items() if each.startswith(mark)
            }
            found[name] = array, buffers
    return found


def compared_sets(client: ClientId, data: ClientData) -> tuple[Data, Data]:
    """Return the examples to be forgotten, and examples like them that no client trained on.

    Triggered examples need unseen ones with the trigger, which only a set ``audit`` can have.
    """
    sets = data.evaluations
    unseen = sets.get("audit", None if "backdoor" in sets else sets.get("test"))
    if unseen is None:
        raise FedUnlearnError(
            f"{client} holds no examples like the forgotten ones that were never trained on, and an audit "
            "needs them: give it a set 'audit' (in experiments, set data.audit)",
            code="data",
        )
    return sets["forget"] if "forget" in sets else own_examples(data), unseen


def require_one_mix(client: ClientId, forgotten: Tensor, unseen: Tensor, least: float = 0.1) -> None:
    """Refuse sets of which more than ``least`` have other labels: a test would take that for memory.

    Random splits of the labels must differ less, too, each of 999: of sets that were drawn alike, at most one
    in a thousand is refused.
    """
    labels, place = torch.cat([forgotten, unseen]).unique(return_inverse=True)
    pooled, ours = place.bincount(), place[: len(forgotten)].bincount(minlength=len(labels))
    splits = np.random.default_rng(0).multivariate_hypergeometric(pooled, len(forgotten), size=999)
    drawn = np.vstack([ours, splits])
    gaps = drawn / len(forgotten) - (pooled.numpy() - drawn) / len(unseen)
    share, *chance = abs(gaps).sum(1) / 2
    if share > max(least, *chance):
        raise FedUnlearnError(
            f"the unseen examples of {client} have other labels than the forgotten ones ({share:.0%}, "
            f"above all label {labels[abs(gaps[0]).argmax()]}), so there can be no verdict: give it a set "
            "'audit' with labels mixed as in the forgotten examples",
            code="data",
        )


def measured_sets(data: ClientData, job: Job, compared: tuple[Data, Data] | None) -> dict[str, Data]:
    """Return the sets whose losses and scores a client sums; training data only beside a retrained model.

    The sum over a single example would be its loss, so such a set is left out.
    """
    left_out = ("seen", "forget", *canaries.SETS)
    sets = {name: held for name, held in data.evaluations.items() if name not in left_out}
    if "retrained" in job.arrays:
        if compared is None:
            sets["seen"] = data.evaluations.get("seen", own_examples(data))
        else:
            sets["forgotten"] = compared[0]
    return {name: held for name, held in sets.items() if size(held) > 1}


def calibrating(losses: Mapping[str, Held]) -> list[Held]:
    """Return the losses that calibrate the others: of the references, or else of retraining."""
    references = [held for name, held in losses.items() if name.startswith(REFERENCE)]
    return references or [losses[name] for name in RETRAINED if name in losses]


def comparisons(losses: Mapping[str, Scores]) -> dict[str, Tensor]:
    """Return everything that a target reveals of its losses under the models."""
    model, sizes = losses["model"], (len(losses["model"].forgotten), len(losses["model"].unseen))
    retrained = [losses[name] for name in RETRAINED if name in losses]
    if not retrained:
        alone = delong(model)
        return {"losses": packed(Paired(alone, alone, Estimate(0.0, 0.0), *sizes))}
    references = calibrating(losses)
    # A single model that calibrates itself has no scores left.
    left = [name for name in losses if len(references) > 1 or losses[name] is not references[0]]
    rates = {name: losses[name] for name in left if not name.startswith(REFERENCE)}
    found = {
        "losses": compare(model, retrained),
        "model": compare(model, retrained, references),
    }
    if "original" in losses:
        found["original"] = compare(losses["original"], retrained, references)
    if (tail := hardest(model, retrained, references)) is not None:
        found["hardest"] = tail
    return {name: packed(pair) for name, pair in found.items()} | {
        rate_name(name, title): packed_counts(tail_counts(calibrated(scores, references), fpr))
        for name, scores in rates.items()
        for title, fpr in FPRS.items()
        if len(scores.unseen) >= needed_unseen(fpr)
    }


def rate_name(model: str, fpr: str) -> str:
    """Return the name of the array with the true positive rate of a model."""
    return f"{model} at {fpr}"


def packed(pair: Paired) -> Tensor:
    """Return a comparison as the numbers that travel."""
    estimates = (pair.model, pair.reference, pair.difference)
    numbers = [number for each in estimates for number in (each.value, each.error)]
    return torch.tensor([*numbers, pair.n_forgotten, pair.n_unseen], dtype=torch.float64)


def unpacked(numbers: Tensor) -> Paired:
    """Return the comparison that a client sent; refuse numbers that cannot be one."""
    values = numbers.double().tolist()
    model, reference, difference = (Estimate(*values[place : place + 2]) for place in (0, 2, 4))
    forgotten, unseen = map(int, values[6:])
    fine = (
        all(0 <= each.value <= 1 for each in (model, reference))
        and abs(difference.value) <= 1
        and all(each.error >= 0 for each in (model, reference, difference))
        and [forgotten, unseen] == values[6:]
        and min(forgotten, unseen) >= 2
    )
    if not fine:
        raise FedUnlearnError(
            "sent AUCs that are not between 0 and 1, or counts that are not whole numbers", code="client"
        )
    if abs(model.value - reference.value - difference.value) > 1e-6:
        raise FedUnlearnError("sent a difference of AUCs that is not theirs", code="client")
    return Paired(model, reference, difference, forgotten, unseen)


def packed_counts(counts: TailCounts) -> Tensor:
    """Return counts as the numbers that travel."""
    numbers = [counts.hits, counts.n_forgotten, counts.alarms, counts.n_unseen]
    return torch.tensor(numbers, dtype=torch.float64)


def unpacked_counts(numbers: Tensor) -> TailCounts:
    """Return the counts that a client sent; refuse numbers that cannot be counts."""
    values = numbers.double().tolist()
    hits, forgotten, alarms, unseen = map(int, values)
    if [hits, forgotten, alarms, unseen] != values or not (
        0 <= hits <= forgotten and 0 <= alarms <= unseen and min(forgotten, unseen) > 0
    ):
        raise FedUnlearnError("sent a true positive rate whose counts are not possible", code="client")
    return TailCounts(hits, forgotten, alarms, unseen)
