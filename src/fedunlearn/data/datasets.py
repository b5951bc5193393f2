"""Datasets, read from disk, verified and transformed; this module never uses the network."""

from __future__ import annotations

import io
import lzma
import math
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import safetensors.torch
import torch
from torch import Tensor

from ..client.data import Examples
from ..core import FedUnlearnError
from ..core.registry import dataset
from .sources import SOURCES, find, locate, read

Bytes = npt.NDArray[np.uint8]

DEMO = Path(__file__).with_name("fashion-demo.safetensors.xz")

CIFAR_MEAN = (0.4914, 0.4822, 0.4465)
CIFAR_STD = (0.2023, 0.1994, 0.2010)


@dataclass(frozen=True)
class Dataset:
    """Transformed float32 images of shape (N, C, H, W) and int64 labels."""

    name: str
    classes: int
    train: Examples
    test: Examples


def load(name: str, directory: Path | None = None, fraction: float = 1.0) -> Dataset:
    """Load the named dataset from ``directory``, or else from the data directory or a system package.

    A ``fraction`` below one keeps the first examples of each class in each split, at least one.
    """
    make = dataset[name]
    if not 0 < fraction <= 1:
        raise FedUnlearnError(f"the fraction of dataset {name!r} must be in (0, 1], not {fraction}")
    whole: Dataset = make(directory)
    if fraction == 1:
        return whole
    train, test = (
        part.take(_first_of_each_class(part.y, whole.classes, fraction)) for part in (whole.train, whole.test)
    )
    return Dataset(whole.name, whole.classes, train, test)


def where(name: str) -> Path | None:
    """Return the path that ``load`` would read from, or None if the dataset is not on this machine."""
    dataset.entry(name)
    if name == "fashion-demo":
        return DEMO
    return locate(name) if name in SOURCES else None


def _first_of_each_class(labels: Tensor, classes: int, fraction: float) -> Tensor:
    kept = []
    for label in range(classes):
        members = torch.nonzero(labels == label).flatten()
        # The small term keeps the ceiling of 0.07 * 100 at 7.
        kept.append(members[: math.ceil(fraction * len(members) - 1e-9)])
    return torch.cat(kept).sort().values


def _examples(pixels: Bytes, labels: Bytes | Sequence[int]) -> Examples:
    """Scale 0..255 to 0..1 in one pass, without an intermediate copy."""
    x = np.divide(pixels, np.float32(255), dtype=np.float32)
    return Examples(torch.from_numpy(x), torch.from_numpy(np.asarray(labels).astype(np.int64)))


@dataset("fashion-demo", summary="4,000 + 1,000 of Fashion-MNIST, part of this package", licence="MIT")
def fashion_demo(directory: Path | None = None) -> Dataset:
    """The first 400 + 100 images of each class of Fashion-MNIST, embedded in the package."""
    content = _demo_content()

    def split(name: str) -> Examples:
        return _examples(content[f"{name}.images"][:, None].numpy(), content[f"{name}.labels"].numpy())

    return Dataset("fashion-demo", 10, split("train"), split("test"))


@cache
def _demo_content() -> dict[str, Tensor]:
    """Unpacked once: every run of a comparison loads the data, and unpacking takes longer than a round."""
    return safetensors.torch.load(lzma.decompress(DEMO.read_bytes()))


@dataset("mnist", summary="handwritten digits, 60,000 + 10,000 of 28×28", licence="CC BY-SA 3.0")
def mnist(directory: Path | None = None) -> Dataset:
    """MNIST (LeCun et al., Proceedings of the IEEE 1998)."""
    return _idx_dataset("mnist", directory)


@dataset("fmnist", summary="articles of clothing, 60,000 + 10,000 of 28×28", licence="MIT")
def fmnist(directory: Path | None = None) -> Dataset:
    """Fashion-MNIST (Xiao et al., arXiv 2017)."""
    return _idx_dataset("fmnist", directory)


def _idx_dataset(name: str, directory: Path | None) -> Dataset:
    folder = find(name, directory)

    def split(prefix: str) -> Examples:
        images = _idx_array(read(name, folder, f"{prefix}-images-idx3-ubyte"))
        return _examples(images[:, None], _idx_array(read(name, folder, f"{prefix}-labels-idx1-ubyte")))

    return Dataset(name, 10, split("train"), split("t10k"))


def _idx_array(content: bytes) -> Bytes:
    """Decode IDX: two zero bytes, type, number of dimensions, each dimension as big-endian int32, data."""
    dimensions = content[3]
    shape = np.frombuffer(content, ">i4", count=dimensions, offset=4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * dimensions).reshape(shape)


@dataset("cifar10", summary="photographs in 10 classes, 50,000 + 10,000 of 3×32×32", licence="none stated")
def cifar10(directory: Path | None = None) -> Dataset:
    """CIFAR-10 (Krizhevsky, technical report 2009)."""
    folder = find("cifar10", directory)
    batches = [f"data_batch_{number}" for number in range(1, 6)]
    train = _normalised(*_cifar("cifar10", folder, batches, b"labels"))
    return Dataset("cifar10", 10, train, _normalised(*_cifar("cifar10", folder, ["test_batch"], b"labels")))


@dataset("cifar100", summary="photographs in 100 classes, 50,000 + 10,000 of 3×32×32", licence="none stated")
def cifar100(directory: Path | None = None) -> Dataset:
    """CIFAR-100 (Krizhevsky, technical report 2009), with its fine labels.

    A few images occur twice (14 in train, 2 in test, 10 in both), so another client may still hold an image
    that a client asks to forget.
    """
    folder = find("cifar100", directory)
    train = _normalised(*_cifar("cifar100", folder, ["train"], b"fine_labels"))
    return Dataset("cifar100", 100, train, _normalised(*_cifar("cifar100", folder, ["test"], b"fine_labels")))


@dataset(
    "cifar100-test",
    summary="the 10,000 test images of CIFAR-100 only: 80 % of each class as train, the rest as test",
    licence="none stated",
)
def cifar100_test(directory: Path | None = None) -> Dataset:
    """A small CIFAR-100 from its test file; results are not comparable with those of the train split."""
    folder = find("cifar100-test", directory)
    whole = _normalised(*_cifar("cifar100-test", folder, ["test"], b"fine_labels"))
    first = _first_of_each_class(whole.y, 100, 0.8)
    rest = torch.ones(len(whole.y), dtype=torch.bool)
    rest[first] = False
    return Dataset("cifar100-test", 100, whole.take(first), whole.take(rest))


def _normalised(pixels: Bytes, labels: list[int]) -> Examples:
    examples = _examples(pixels, labels)
    examples.x.sub_(torch.tensor(CIFAR_MEAN)[:, None, None]).div_(torch.tensor(CIFAR_STD)[:, None, None])
    return examples


def _cifar(name: str, folder: Path, files: Sequence[str], key: bytes) -> tuple[Bytes, list[int]]:
    batches = [_unpickle(read(name, folder, file), folder / file) for file in files]
    pixels = np.concatenate([batch[b"data"] for batch in batches]).reshape(-1, 3, 32, 32)
    return pixels, [label for batch in batches for label in batch[key]]


def _unpickle(content: bytes, path: Path) -> dict[bytes, Any]:
    """Return the dictionary in a CIFAR file; the restricted unpickler cannot execute code."""
    try:
        # Python 2 wrote the files, so their strings are bytes.
        result: dict[bytes, Any] = _ArraysOnly(io.BytesIO(content), encoding="bytes").load()
    except pickle.UnpicklingError as error:
        raise FedUnlearnError(
            f"{path} is not a CIFAR file ({error}): get another copy", code="damaged"
        ) from error
    return result


class _ArraysOnly(pickle.Unpickler):
    """An unpickler that accepts only numpy arrays; a pickle could otherwise call any function."""

    _known: ClassVar[dict[tuple[str, str], Any]] = {
        # Taken from an array, because numpy versions keep the function in different modules.
        ("numpy.core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
    }

    def find_class(self, module: str, name: str) -> Any:
        try:
            return self._known[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it refers to {module}.{name}, which is not allowed") from None
