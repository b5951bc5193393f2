"""Creates the dataset ``fashion-demo``, which is part of the package, from the published Fashion-MNIST.

Run ``python scripts/make_demo_data.py`` with Fashion-MNIST installed (Debian's dataset-fashion-mnist, or
``fedunlearn data get fmnist``). The same input gives the same bytes.
"""

from __future__ import annotations

import lzma

import safetensors.torch
import torch
from torch import Tensor

from fedunlearn import Examples
from fedunlearn.data import load
from fedunlearn.data.datasets import DEMO

PER_CLASS = {"train": 400, "test": 100}
LARGEST = 2_000_000


def demo() -> bytes:
    """The uncompressed safetensors: the first images of each class, in the published order."""
    fashion = load("fmnist")
    tensors: dict[str, Tensor] = {}
    for split, examples in (("train", fashion.train), ("test", fashion.test)):
        kept = first(examples, fashion.classes, PER_CLASS[split])
        tensors[f"{split}.images"] = (kept.x[:, 0] * 255).round().to(torch.uint8)
        tensors[f"{split}.labels"] = kept.y.to(torch.uint8)
    return safetensors.torch.save(tensors)


def first(examples: Examples, classes: int, count: int) -> Examples:
    """The first ``count`` examples of each class, in their original order."""
    places = [torch.nonzero(examples.y == label).flatten()[:count] for label in range(classes)]
    return examples.take(torch.cat(places).sort().values)


def main() -> None:
    """Writes the file into the package's source folder."""
    packed = lzma.compress(demo(), preset=9 | lzma.PRESET_EXTREME)
    if len(packed) > LARGEST:
        raise SystemExit(f"{len(packed)} bytes exceed the limit of {LARGEST}: lower PER_CLASS")
    DEMO.write_bytes(packed)
    print(f"{DEMO}: {len(packed)} bytes")


if __name__ == "__main__":
    main()
