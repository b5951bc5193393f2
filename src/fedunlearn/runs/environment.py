"""Software and processor of a run, as far as they affect its bits and its duration."""

from __future__ import annotations

import os
import platform
import sys
from functools import cache
from importlib.metadata import version

import torch
from torch.nn.functional import conv2d

from ..core.hashes import digest
from ..core.seeds import generator
from ..core.threads import one_thread

DECISIVE = ("torch", "cpu_capability", "numerics")
"""Parts of an environment that change the bits of a result."""


def environment() -> dict[str, str]:
    """The environment that affects the bits and the duration of a run, besides configuration and seed."""
    return {
        "fedunlearn": version("fedunlearn"),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "numerics": _numerics(),
        "cores": str(os.cpu_count()),
        "byteorder": sys.byteorder,
    }


def decisive() -> dict[str, str]:
    """What of this environment changes the bits of a result."""
    here = environment()
    return {key: here[key] for key in DECISIVE}


@cache
def _numerics() -> str:
    """A digest of the bits that a few fixed computations have here.

    The libraries behind torch choose their kernels by the processor: with the same ``cpu_capability``, matrix
    products and exponentials have other bits on Intel than on AMD.
    """
    random = generator("numerics")

    def drawn(*shape: int) -> torch.Tensor:
        return torch.rand(shape, generator=random) - 0.5

    with torch.inference_mode(), one_thread():
        x, weight, images, kernel = drawn(200, 784), drawn(784, 64), drawn(8, 6, 14, 14), drawn(16, 6, 5, 5)
        found = {
            "product": x @ weight,
            "small product": x[:5, :33] @ weight[:33, :10],
            "double product": x.double() @ weight.double(),
            "convolution": conv2d(images, kernel),
            "exponential": x.exp(),
            "sum": x.sum(1),
        }
    return digest(found)[:8]
