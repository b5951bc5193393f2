"""Writes the data of four sites from the embedded images: ``python make_data.py FOLDER``.

Site 3 alone holds the classes 8 (bags) and 9 (ankle boots), so it shows when that site is forgotten.
"""

import sys
from pathlib import Path

import numpy as np
import torch

from fedunlearn.data import load

CLASSES = {
    "site-0": [0, 1, 2, 3, 4],
    "site-1": [3, 4, 5, 6, 7],
    "site-2": [0, 1, 2, 5, 6, 7],
    "site-3": [8, 9],
}


def held(labels: torch.Tensor, site: str) -> torch.Tensor:
    """The rows of a site: sites that hold the same class have different images of it."""
    rows = []
    for label in CLASSES[site]:
        holders = [name for name in CLASSES if label in CLASSES[name]]
        rows.append((labels == label).nonzero().flatten()[holders.index(site) :: len(holders)])
    return torch.cat(rows).sort().values


def write(folder: Path, share: int = 1) -> None:
    """One file for each site; ``share`` 2 takes every second image."""
    images = load("fashion-demo")
    folder.mkdir(parents=True, exist_ok=True)
    for site in CLASSES:
        arrays = {}
        for part, (x, y) in {"train": images.train, "test": images.test}.items():
            rows = held(y, site)[::share]
            arrays |= {f"x_{part}": x[rows].numpy(), f"y_{part}": y[rows].numpy()}
        np.savez(folder / f"{site}.npz", **arrays)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
