"""The backdoor's trigger on an image of each dataset."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ....client.data import Examples
from ....core import FedUnlearnError
from .style import COLUMN, SMALL, drawing, vectors


def triggers(pairs: Mapping[str, tuple[Examples, Examples]], path: Path) -> list[Path]:
    """A clean and a triggered image of each dataset, with the original label and the new one.

    The images are transformed as for training; the range of the clean one is mapped to black and white.
    """
    if not pairs:
        raise FedUnlearnError("there is no image to show: name at least one dataset")
    with drawing() as pyplot:
        figure, grid = pyplot.subplots(
            2,
            len(pairs),
            figsize=(COLUMN, 0.65 + 1.75 * COLUMN / max(3, len(pairs))),
            layout="constrained",
            squeeze=False,
        )
        for (name, (clean, triggered)), (above, below) in zip(pairs.items(), grid.T, strict=True):
            before, after = clean.x[0], triggered.x[0]
            low, high = float(before.min()), float(before.max())
            for axes, image in ((above, before), (below, after)):
                shown = ((image - low) / ((high - low) or 1)).clamp(0, 1).permute(1, 2, 0).numpy()
                axes.imshow(shown.squeeze(-1) if shown.shape[-1] == 1 else shown, "gray", vmin=0, vmax=1)
                axes.set_xticks([])
                axes.set_yticks([])
                axes.spines[:].set_visible(True)
            above.set_title(name, fontsize=SMALL, fontweight="bold")
            above.set_xlabel(f"label {int(clean.y[0])}", fontsize=SMALL)
            below.set_xlabel(f"label {int(clean.y[0])} → {int(triggered.y[0])}", fontsize=SMALL)
        grid[0, 0].set_ylabel("clean", fontsize=SMALL)
        grid[1, 0].set_ylabel("triggered", fontsize=SMALL)
        return vectors(figure, path)
