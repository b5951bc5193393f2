"""Drawing and writing figures: colours, and files whose bytes depend only on the data."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core import FedUnlearnError
from ..runs import write

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The colour-blind-safe palette of Okabe and Ito, without yellow, which is too light for lines.
VERMILION, BLUE, GREEN, ORANGE = "#D55E00", "#0072B2", "#009E73", "#E69F00"
PURPLE, SKY, BLACK, GREY = "#CC79A7", "#56B4E9", "#000000", "#6E6E6E"


@contextmanager
def drawing(settings: Mapping[str, Any]) -> Iterator[Any]:
    """Pyplot with the style of the figures; drawing the same data twice gives the same bytes."""
    try:
        import matplotlib
    except ImportError:
        raise FedUnlearnError("figures need matplotlib: pip install 'fedunlearn[report]'") from None
    matplotlib.use("agg")
    from matplotlib import pyplot

    base: dict[Any, Any] = {
        "axes.spines.top": False,
        "axes.spines.right": False,
        "svg.hashsalt": "fedunlearn",
    }
    with pyplot.rc_context(base | dict(settings)):
        yield pyplot


def save(figure: Figure, paths: Sequence[Path]) -> list[Path]:
    """Writes a figure in the formats of the suffixes, without dates, and closes it."""
    from matplotlib import pyplot

    undated = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
    for path in paths:
        image = io.BytesIO()
        figure.savefig(image, format=path.suffix[1:], dpi=160, metadata=undated.get(path.suffix))
        write(path, image.getvalue())
    pyplot.close(figure)
    return list(paths)
