"""How good reconstructions are, against simple guesses."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True)
class Quality:
    """Means over the examples of one request."""

    psnr: float
    ssim: float
    identified: float
    """Share of the examples to which their reconstruction is closer, by correlation, than any other picture
    of the dataset."""
    best_ssim: float


def compare(originals: Tensor, made: Tensor, everything: Tensor, fallback: Tensor) -> tuple[Quality, Tensor]:
    """The quality, and the reconstructions in the order of the originals.

    Each reconstruction is assigned to the original that makes the whole assignment best. ``fallback`` stands
    in where there are fewer than originals.
    """
    missing = len(originals) - len(made)
    made = torch.cat([made, fallback.expand(missing, *fallback.shape)]) if missing > 0 else made
    errors = torch.cdist(originals.flatten(1), made.flatten(1)).square()
    made = made[torch.from_numpy(linear_sum_assignment(errors.numpy())[1])]
    mse = (originals - made).square().flatten(1).mean(1).clamp_min(1e-10)
    similar = ssim(originals, made)
    quality = Quality(
        psnr=float((-10 * mse.log10()).mean()),
        ssim=float(similar.mean()),
        identified=float(identifies(originals, made, everything).float().mean()),
        best_ssim=float(similar.max()),
    )
    return quality, made


def identifies(originals: Tensor, made: Tensor, everything: Tensor) -> Tensor:
    """Which reconstructions correlate with no other picture more than with their original."""
    nearest = (standardised(made) @ standardised(everything).T).max(1).values
    own = (standardised(made) * standardised(originals)).sum(1)
    constant = made.flatten(1).std(1) < 1e-6
    return (own >= nearest - 1e-6) & ~constant


def longer(lengths: Tensor, chosen: Tensor) -> float | None:
    """How often a chosen vector is longer than one that is not; None where all or none are chosen."""
    one, other = lengths[chosen], lengths[~chosen]
    return float((one[:, None] > other).float().mean()) if len(one) and len(other) else None


def standardised(pictures: Tensor) -> Tensor:
    """Pictures as rows of mean 0 and length 1."""
    rows = pictures.flatten(1)
    return F.normalize(rows - rows.mean(1, keepdim=True), dim=1)


def ssim(one: Tensor, other: Tensor, window: int = 7) -> Tensor:
    """Structural similarity of pictures with values of 0 to 1 (Wang et al., 2004), with a uniform window."""

    def mean(x: Tensor) -> Tensor:
        return F.avg_pool2d(x, window, stride=1)

    a, b = mean(one), mean(other)
    spread_a, spread_b = mean(one * one) - a * a, mean(other * other) - b * b
    joint = mean(one * other) - a * b
    c1, c2 = 0.01**2, 0.03**2
    index = ((2 * a * b + c1) * (2 * joint + c2)) / ((a * a + b * b + c1) * (spread_a + spread_b + c2))
    return index.flatten(1).mean(1)


def class_means(labels: Tensor, known: Tensor, known_labels: Tensor) -> Tensor:
    """The guess of somebody who knows the labels: the mean of other pictures of the class."""
    return torch.stack([known[known_labels == label].mean(0) for label in labels])


def others_of_class(labels: Tensor, known: Tensor, known_labels: Tensor, draw: torch.Generator) -> Tensor:
    """Random other pictures with the same labels, different ones while there are any."""
    picks = torch.empty_like(labels)
    for label in labels.unique():
        members = torch.nonzero(known_labels == label).flatten()
        members = members[torch.randperm(len(members), generator=draw)]
        places = torch.nonzero(labels == label).flatten()
        picks[places] = members[torch.arange(len(places)) % len(members)]
    return known[picks]
