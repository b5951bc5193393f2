"""Calibrated losses: the difficulty of an example is subtracted before losses are compared."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..core import FedUnlearnError
from ..core.errors import require
from .statistics import Paired, Scores, paired_auc


def calibrated(losses: Scores, references: Sequence[Scores]) -> Scores:
    """Subtract from each loss the mean loss of reference models on the same example.

    The references must have been trained without the forgotten and without the unseen examples.

    >>> twins = Scores([1.0, 3.0], [1.0]), Scores([2.0, 3.0], [0.0])
    >>> calibrated(Scores([1.0, 1.0], [1.0]), twins).forgotten.tolist()
    [-0.5, -2.0]
    """
    hardness = _hardness(losses, references)
    with np.errstate(invalid="ignore"):  # ∞ − ∞ is NaN, which is refused
        return Scores(losses.forgotten - hardness.forgotten, losses.unseen - hardness.unseen)


def compare(model: Scores, retrained: Scores | Sequence[Scores], references: Sequence[Scores] = ()) -> Paired:
    """Compare the AUC of calibrated losses with that of retraining; without references, of plain losses.

    The AUC of several retrained models is their mean.

    >>> compare(Scores([0.1, 0.2], [0.3, 0.4]), Scores([0.1, 0.4], [0.2, 0.3])).difference.value
    0.5
    """
    standard = several(retrained)
    if references:
        model, standard = calibrated(model, references), tuple(calibrated(e, references) for e in standard)
    return paired_auc(model, *standard)


def hardest(
    model: Scores,
    retrained: Scores | Sequence[Scores],
    references: Sequence[Scores] = (),
    *,
    share: float = 0.1,
) -> Paired | None:
    """Return the comparison of ``tail_alarm``; None if fewer than two examples of a set are that hard.

    >>> hardest(Scores([1.0], [1.0, 2.0]), Scores([1.0], [1.0, 2.0])) is None
    True
    """
    require(0 < share < 1, "share", share, "between 0 and 1")
    standard = several(retrained)
    references = tuple(references) or standard
    hardness = _hardness(model, references)
    threshold = np.quantile(hardness.unseen, 1 - share)
    forgotten, unseen = hardness.forgotten > threshold, hardness.unseen > threshold
    if min(forgotten.sum(), unseen.sum()) < 2:
        return None
    losses = (calibrated(each, references) for each in (model, *standard))
    return paired_auc(*(Scores(each.forgotten[forgotten], each.unseen[unseen]) for each in losses))


def several(retrained: Scores | Sequence[Scores]) -> tuple[Scores, ...]:
    """Return the losses of one or several retrained models; refused if there are none."""
    found = (retrained,) if isinstance(retrained, Scores) else tuple(retrained)
    if not found:
        raise FedUnlearnError("there is no retrained model to compare with: give at least one")
    return found


def _hardness(losses: Scores, references: Sequence[Scores]) -> Scores:
    """The mean loss of the references on each example."""
    if not references:
        raise FedUnlearnError("losses are calibrated by reference models: give at least one")
    shape = len(losses.forgotten), len(losses.unseen)
    for reference in references:
        if (len(reference.forgotten), len(reference.unseen)) != shape:
            raise FedUnlearnError(
                f"a reference has losses of {len(reference.forgotten)} forgotten and "
                f"{len(reference.unseen)} unseen examples, the model of {shape[0]} and {shape[1]}: "
                "compute them on the same examples, in the same order"
            )
    return Scores(
        np.mean([reference.forgotten for reference in references], axis=0),
        np.mean([reference.unseen for reference in references], axis=0),
    )
