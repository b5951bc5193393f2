"""What only the real files can show; skipped where they are not on the machine."""

from __future__ import annotations

import importlib.util
import lzma
from pathlib import Path

import pytest
import torch

from fedunlearn.data import Dataset, load, populate, where
from fedunlearn.data.datasets import DEMO
from fedunlearn.data.sources import SETTING


def real(name: str, **options) -> Dataset:
    if where(name) is None:
        pytest.skip(f"{name} is not on this machine: run `fedunlearn data get {name}` or set {SETTING}")
    return load(name, **options)


@pytest.fixture(scope="module")
def fashion() -> Dataset:
    return real("fmnist")


def test_fashion_has_its_published_shape(fashion):
    assert fashion.train.x.shape == (60_000, 1, 28, 28)
    assert fashion.test.x.shape == (10_000, 1, 28, 28)
    assert fashion.train.y.bincount().tolist() == [6000] * 10
    assert (float(fashion.train.x.min()), float(fashion.train.x.max())) == (0, 1)
    assert float(fashion.train.x.mean()) == pytest.approx(0.2860, abs=1e-4)


def test_fashion_makes_clients_of_the_papers_size(fashion):
    people = populate(fashion, partition="pat-50", clients=10, seed=0, batch_size=200)
    for client, held in people.pretraining.items():
        assert len(held.train.y) == 6000
        assert len(held.evaluations["test"].y) == 1000
        if client not in people.targets:
            assert held.train.y.unique().tolist() in ([0, 1, 2, 3, 4], [5, 6, 7, 8, 9])


def test_the_demo_is_the_beginning_of_fashion(fashion):
    path = Path(__file__).parents[2] / "scripts" / "make_demo_data.py"
    spec = importlib.util.spec_from_file_location("make_demo_data", path)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    # The content, because another version of liblzma may pack it otherwise.
    assert lzma.decompress(DEMO.read_bytes()) == script.demo()


def test_mnist_has_its_published_shape():
    digits = real("mnist")
    assert digits.train.x.shape == (60_000, 1, 28, 28)
    assert digits.test.y.bincount().tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert float(digits.train.x.mean()) == pytest.approx(0.1307, abs=1e-4)


def test_cifar10_has_its_published_shape_and_the_papers_clients():
    photographs = real("cifar10")
    assert photographs.train.x.shape == (50_000, 3, 32, 32)
    assert photographs.train.x.mean(dim=(0, 2, 3)).abs().max() < 1e-3
    assert photographs.test.y.bincount().tolist() == [1000] * 10
    corner = Dataset(
        "corner",
        10,
        *(type(part)(part.x[..., :4, :4], part.y) for part in (photographs.train, photographs.test)),
    )
    people = populate(corner, partition="pat-10", clients=10, seed=0, batch_size=200)
    assert {len(held.train.y) for held in people.pretraining.values()} == {5000}
    assert {len(held.evaluations["test"].y) for held in people.pretraining.values()} == {1000}


def test_the_test_split_of_cifar100_is_balanced():
    things = real("cifar100-test")
    assert things.train.x.shape == (8000, 3, 32, 32)
    assert things.train.y.bincount().tolist() == [80] * 100
    assert things.test.y.bincount().tolist() == [20] * 100


def test_cifar100_has_its_published_shape():
    things = real("cifar100")
    assert things.train.y.bincount().tolist() == [500] * 100


def test_the_demo_is_balanced_and_small():
    demo = load("fashion-demo")
    assert demo.train.y.bincount().tolist() == [400] * 10
    assert demo.test.y.bincount().tolist() == [100] * 10
    assert demo.train.x.dtype == torch.float32
    assert DEMO.stat().st_size < 2_000_000
    assert "Zalando SE" in DEMO.with_name("fashion-demo.LICENSE.txt").read_text(encoding="utf-8")
