"""Small data sets in the published formats, and a machine that has none."""

from __future__ import annotations

import gzip
import hashlib
import io
import pickle
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fedunlearn.data.sources import SETTING, SOURCES

Files = Mapping[str, bytes]


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Small tensors gain nothing from threads, and on a busy machine these wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty data directory, on a system that has no data sets installed."""
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv(SETTING, str(folder))
    for name, source in SOURCES.items():
        monkeypatch.setitem(SOURCES, name, replace(source, system=None))
    return folder


@pytest.fixture
def publish(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Files], None]:
    """Makes these bytes the published content of a data set."""

    def declare(name: str, files: Files) -> None:
        checksums = {file: hashlib.md5(files[file], usedforsecurity=False).hexdigest() for file in files}
        monkeypatch.setitem(SOURCES, name, replace(SOURCES[name], files=checksums))

    return declare


@pytest.fixture
def put() -> Callable[..., Path]:
    """Writes files into a folder, as they are or as .gz."""

    def write(folder: Path, files: Files, packed: bool = False) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            if packed:
                (folder / f"{name}.gz").write_bytes(gzip.compress(content))
            else:
                (folder / name).write_bytes(content)
        return folder

    return write


@pytest.fixture
def digits(home: Path, publish: Callable[[str, Files], None]) -> Files:
    """A tiny MNIST: 20 + 10 pictures of 5×4 pixels, two and one of each class."""
    pixels = np.random.default_rng(0).integers(0, 256, (30, 5, 4), dtype=np.uint8)
    pixels[0, 0, :3] = 0, 1, 255
    labels = np.tile(np.arange(10, dtype=np.uint8), 3)
    files = {
        "train-images-idx3-ubyte": _idx(pixels[:20]),
        "train-labels-idx1-ubyte": _idx(labels[:20]),
        "t10k-images-idx3-ubyte": _idx(pixels[20:]),
        "t10k-labels-idx1-ubyte": _idx(labels[20:]),
    }
    publish("mnist", files)
    return files


@pytest.fixture
def photographs(home: Path, publish: Callable[[str, Files], None]) -> Files:
    """A tiny CIFAR-10: five batches and a test batch, each with one picture of each class."""
    pixels = np.random.default_rng(1).integers(0, 256, (60, 3072), dtype=np.uint8)
    names = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
    files = {
        name: _python2_pickle({b"labels": list(range(10)), b"data": pixels[10 * place : 10 * place + 10]})
        for place, name in enumerate(names)
    }
    publish("cifar10", files)
    return files


@pytest.fixture
def things(home: Path, publish: Callable[[str, Files], None]) -> Files:
    """A tiny CIFAR-100: ten pictures of each class in the test file, one in the train file."""
    pixels = np.random.default_rng(2).integers(0, 256, (1100, 3072), dtype=np.uint8)
    files = {
        "train": _python2_pickle({b"fine_labels": list(range(100)), b"data": pixels[1000:]}),
        "test": _python2_pickle({b"fine_labels": list(range(100)) * 10, b"data": pixels[:1000]}),
    }
    publish("cifar100", files)
    publish("cifar100-test", {"test": files["test"]})
    return files


def _idx(array: np.ndarray) -> bytes:
    return struct.pack(f">HBB{array.ndim}i", 0, 8, array.ndim, *array.shape) + array.tobytes()


def _python2_pickle(content: object) -> bytes:
    """A pickle as Python 2 and the numpy of its day would have written it."""

    class Pickler(pickle._Pickler):  # the one written in Python, whose parts can be replaced
        dispatch = dict(pickle._Pickler.dispatch)

        def save_string(self, value: bytes) -> None:
            self.write(pickle.BINSTRING + struct.pack("<i", len(value)) + value)
            self.memoize(value)

        dispatch[bytes] = save_string

    stream = io.BytesIO()
    Pickler(stream, protocol=2).dump(content)
    return stream.getvalue().replace(b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n")
