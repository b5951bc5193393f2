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


def write(folder: Path, share: int = 1) -> None:
    """One file for each site; ``share`` 4 takes every fourth image."""
    images = load("fashion-demo")
    folder.mkdir(parents=True, exist_ok=True)
    for site, classes in CLASSES.items():
        arrays = {}
        for part, (x, y) in {"train": images.train, "test": images.test}.items():
            held = torch.isin(y, torch.tensor(classes))
            arrays |= {f"x_{part}": x[held][::share].numpy(), f"y_{part}": y[held][::share].numpy()}
        np.savez(folder / f"{site}.npz", **arrays)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
