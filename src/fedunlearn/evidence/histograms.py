"""Counts in fixed public bins: what clients can reveal instead of losses, and the AUC that follows from them.

The order within a bin is lost. For counts a of n forgotten and h of m unseen examples, the AUC of the scores
themselves differs from the binned one by at most ½ Σ_b (a_b / n) (h_b / m). That bound is the ``slack`` of an
estimate and widens its intervals, so no verdict rests on the order within a bin.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..core import FedUnlearnError
from .statistics import Array, Estimate, Paired

LOSS_EDGES: Array = np.geomspace(1e-6, 50, 64)
"""64 edges of losses. The first bin is below 1e-6, the last one at 50 and above."""

_SIZES: Array = np.geomspace(1e-3, 20, 64)

DIFFERENCE_EDGES: Array = np.concatenate([-_SIZES[::-1], _SIZES])
"""64 edges of each sign for differences of losses, and one bin around zero."""

LOSS_EDGES.flags.writeable = DIFFERENCE_EDGES.flags.writeable = False


def histogram(values: ArrayLike, edges: Array = LOSS_EDGES) -> NDArray[np.int64]:
    """Count the values in each bin; there is one bin more than edges.

    An edge belongs to the bin above it. NaN raises an error.

    >>> histogram([0.1, 0.3, 0.3, 9.0], edges=np.array([0.2, 1.0]))
    array([1, 2, 1])
    """
    return np.bincount(_bins(values, edges), minlength=len(edges) + 1).astype(np.int64)


def joint_histogram(
    model: ArrayLike, reference: ArrayLike, edges: Array = DIFFERENCE_EDGES
) -> NDArray[np.int64]:
    """Count examples by the bin of their score under a model (row) and under a reference model (column).

    The paired test needs pairs: two separate histograms do not show how far the models err together. Cells
    with a count of one place an example in two bins, so a joint histogram reveals more than two histograms.

    >>> joint_histogram([-0.5, 0.5], [0.1, 0.5], edges=np.array([0.0, 0.2]))
    array([[0, 1, 0],
           [0, 0, 0],
           [0, 0, 1]])
    """
    rows, columns = _bins(model, edges), _bins(reference, edges)
    if len(rows) != len(columns):
        raise FedUnlearnError(
            f"{len(rows)} scores of the model and {len(columns)} of the reference: score the same examples"
        )
    size = len(edges) + 1
    return np.bincount(rows * size + columns, minlength=size * size).reshape(size, size).astype(np.int64)


def binned_auc(forgotten: ArrayLike, unseen: ArrayLike) -> Estimate:
    """Return the AUC of two histograms with DeLong's standard error, and the bound of binning as its slack.

    >>> estimate = binned_auc([3, 1, 0], [1, 1, 2])
    >>> estimate.value, estimate.slack
    (0.8125, 0.125)
    """
    a, h = _counts(forgotten, 1), _counts(unseen, 1)
    _require_same_bins(a, h)
    above, below = _placements(a, h)
    variance = _variance(above, a) / a.sum() + _variance(below, h) / h.sum()
    return Estimate(float(a @ above / a.sum()), math.sqrt(variance), _slack(a, h))


def paired_binned_auc(forgotten: ArrayLike, unseen: ArrayLike) -> Paired:
    """Compare two models by joint histograms, one of forgotten and one of unseen examples.

    Equals ``paired_auc`` of the numbers of the bins. The slack of the difference is the sum of both slacks.

    >>> forgotten = joint_histogram([-0.9, -0.3, 0.1], [-0.1, 0.0, 0.1])
    >>> unseen = joint_histogram([0.3, 0.2, -0.1], [0.1, -0.1, 0.0])
    >>> round(paired_binned_auc(forgotten, unseen).difference.value, 3)
    0.389
    """
    a, h = _counts(forgotten, 2), _counts(unseen, 2)
    _require_same_bins(a, h)
    model = binned_auc(a.sum(axis=1), h.sum(axis=1))
    reference = binned_auc(a.sum(axis=0), h.sum(axis=0))
    above, below = _placements(a.sum(axis=1), h.sum(axis=1))
    reference_above, reference_below = _placements(a.sum(axis=0), h.sum(axis=0))
    variance = (
        _variance(above[:, None] - reference_above[None, :], a) / a.sum()
        + _variance(below[:, None] - reference_below[None, :], h) / h.sum()
    )
    difference = Estimate(model.value - reference.value, math.sqrt(variance), model.slack + reference.slack)
    return Paired(model, reference, difference, int(a.sum()), int(h.sum()))


def _bins(values: ArrayLike, edges: Array) -> NDArray[np.intp]:
    found = np.asarray(values, dtype=np.float64)
    if found.ndim != 1 or np.isnan(found).any():
        raise FedUnlearnError("scores to be counted must be one number for each example, without NaN")
    if len(edges) < 1 or not (np.diff(edges) > 0).all():
        raise FedUnlearnError("the edges of bins must rise")
    return np.searchsorted(edges, found, side="right")


def _placements(a: Array, h: Array) -> tuple[Array, Array]:
    """By bin: the share of unseen scores above it and of forgotten ones below it; its own counts half."""
    above = 1 - (np.cumsum(h) - h / 2) / h.sum()
    below = (np.cumsum(a) - a / 2) / a.sum()
    return above, below


def _variance(values: Array, counts: Array) -> float:
    """The sample variance of values that occur so often."""
    n = counts.sum()
    mean = (values * counts).sum() / n
    return float((np.square(values - mean) * counts).sum() / (n - 1))


def _slack(a: Array, h: Array) -> float:
    return float(a @ h / (2 * a.sum() * h.sum()))


def _counts(counts: ArrayLike, dimensions: int) -> Array:
    found = np.asarray(counts, dtype=np.float64)
    fine = found.ndim == dimensions and (dimensions == 1 or found.shape[0] == found.shape[1])
    if not fine or not (found >= 0).all() or not np.isfinite(found).all():
        raise FedUnlearnError("a histogram has one count for each bin, 0 or more, and a joint one a square")
    if found.sum() < 2:
        raise FedUnlearnError("a histogram needs at least two examples: without them there is no error")
    return found


def _require_same_bins(a: Array, h: Array) -> None:
    if a.shape != h.shape:
        raise FedUnlearnError(f"histograms of shapes {a.shape} and {h.shape}: use the same bins for both")
