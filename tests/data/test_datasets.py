from __future__ import annotations

import os
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support.codes import refused

from fedunlearn import Examples
from fedunlearn.core.registry import dataset
from fedunlearn.data import Dataset, data_directory, load, where
from fedunlearn.data.sources import SETTING, SOURCES


@pytest.mark.parametrize("packed", [False, True], ids=["raw", "gz"])
@pytest.mark.parametrize("below", ["MNIST/raw", "MNIST", "mnist", "."])
def test_idx_files_are_found_in_every_layout(home, digits, put, below, packed):
    folder = put(home / below, digits, packed)
    assert where("mnist") == folder
    assert len(load("mnist").train.y) == 20
    assert len(load("mnist", directory=home).train.y) == 20


def test_the_folder_itself_may_be_named(tmp_path, digits, put):
    folder = put(tmp_path / "elsewhere" / "MNIST" / "raw", digits)
    assert len(load("mnist", directory=folder).test.y) == 10


def test_digits_are_scaled_and_no_more(home, digits, put):
    put(home / "MNIST/raw", digits)
    data = load("mnist")
    raw = np.frombuffer(digits["train-images-idx3-ubyte"], np.uint8, offset=16).reshape(20, 1, 5, 4)
    assert torch.equal(data.train.x, torch.from_numpy(raw.copy()).float().div(255))
    assert data.train.x.dtype == torch.float32
    assert data.train.x.is_contiguous()
    assert data.train.y.dtype == torch.int64
    assert data.train.y.tolist() == [*range(10), *range(10)]
    assert (data.name, data.classes, len(data.test.y)) == ("mnist", 10, 10)
    assert data.train.x[0, 0, 0, :3].tolist() == pytest.approx([0, 1 / 255, 1])


def test_photographs_are_normalised(home, photographs, put):
    put(home / "cifar-10-batches-py", photographs)
    data = load("cifar10")
    assert data.train.x.shape == (50, 3, 32, 32)
    assert data.test.x.shape == (10, 3, 32, 32)
    raw = np.random.default_rng(1).integers(0, 256, (60, 3072), dtype=np.uint8).reshape(60, 3, 32, 32)
    mean, std = np.array([0.4914, 0.4822, 0.4465]), np.array([0.2023, 0.1994, 0.2010])
    expected = (raw / 255 - mean[:, None, None]) / std[:, None, None]
    np.testing.assert_allclose(torch.cat([data.train.x, data.test.x]), expected, rtol=0, atol=1e-6)
    assert data.train.y.tolist() == list(range(10)) * 5


def test_the_test_split_of_cifar100_serves_as_a_small_one(home, things, put):
    put(home / "cifar-100-python", {"test": things["test"]})
    data = load("cifar100-test")
    assert data.train.y.bincount().tolist() == [8] * 100
    assert data.test.y.bincount().tolist() == [2] * 100
    with refused("missing", says=r"'cifar100' .* lacks train in .*use dataset 'cifar100-test'"):
        load("cifar100")
    put(home / "cifar-100-python", things)
    whole = load("cifar100")
    assert len(whole.train.y) == 100
    assert torch.equal(whole.test.x[:800], data.train.x)
    assert torch.equal(whole.test.x[800:], data.test.x)


def test_a_fraction_keeps_the_first_of_each_class_in_order():
    whole, part = load("fashion-demo"), load("fashion-demo", fraction=0.07)
    assert part.train.y.bincount().tolist() == [28] * 10
    assert part.test.y.bincount().tolist() == [7] * 10
    seen, kept = [0] * 10, []
    for place, label in enumerate(whole.train.y.tolist()):
        seen[label] += 1
        kept += [place] if seen[label] <= 28 else []
    assert torch.equal(part.train.x, whole.train.x[kept])
    assert load("fashion-demo", fraction=1e-6).train.y.bincount().tolist() == [1] * 10


@pytest.mark.parametrize("fraction", [0, -0.1, 1.01, float("nan")])
def test_a_fraction_out_of_range_is_refused(fraction):
    with refused("invalid", says=r"fraction of dataset 'fashion-demo' must be in \(0, 1\]"):
        load("fashion-demo", fraction=fraction)


def test_an_unknown_name_gets_a_suggestion():
    for function in (load, where):
        with refused("unknown", says="did you mean 'cifar10'"):
            function("cifar-10")


def test_one_may_add_a_data_set_of_ones_own(monkeypatch):
    monkeypatch.setattr(dataset, "_entries", dict(dataset._entries))  # other tests shall not see it

    @dataset("own")
    def own(directory: Path | None = None) -> Dataset:
        examples = Examples(torch.zeros(4, 1, 2, 2), torch.tensor([0, 0, 1, 1]))
        return Dataset("own", 2, examples, examples)

    assert load("own", fraction=0.5).train.y.tolist() == [0, 1]
    assert where("own") is None


@pytest.mark.wording
def test_missing_files_are_named_with_the_places_and_the_remedy(home, digits, put):
    with refused("missing") as caught:
        load("mnist")
    sentence = str(caught.value)
    assert "train-images-idx3-ubyte" in sentence
    assert str(home) in sentence
    assert "`fedunlearn data get mnist`" in sentence
    assert SETTING in sentence
    assert where("mnist") is None

    files = dict(digits)
    del files["t10k-labels-idx1-ubyte"]
    folder = put(home / "MNIST/raw", files)
    with refused("missing", says=f"lacks t10k-labels-idx1-ubyte in {folder}: run"):
        load("mnist")


def test_a_named_folder_is_the_only_one_searched(home, tmp_path, digits, put):
    put(home / "MNIST/raw", digits)
    with refused("missing", says=f"not found in {tmp_path / 'empty'}: name another folder"):
        load("mnist", directory=tmp_path / "empty")


def test_the_system_is_searched_after_the_data_directory(home, tmp_path, digits, put, monkeypatch):
    system = put(tmp_path / "system", digits, packed=True)
    monkeypatch.setitem(SOURCES, "mnist", replace(SOURCES["mnist"], system=system))
    assert where("mnist") == system
    assert len(load("mnist").train.y) == 20
    own = put(home / "MNIST/raw", digits)
    assert where("mnist") == own


@pytest.mark.wording
@pytest.mark.parametrize("packed", [False, True], ids=["raw", "gz"])
@pytest.mark.parametrize("damage", ["changed", "cut off"])
def test_damage_is_found(home, digits, put, packed, damage):
    folder = put(home / "MNIST/raw", digits, packed)
    path = folder / f"train-images-idx3-ubyte{'.gz' if packed else ''}"
    content = bytearray(path.read_bytes())
    if damage == "changed":
        content[len(content) // 2] ^= 1
    else:
        del content[-9:]
    path.write_bytes(content)
    with refused("damaged", "file") as caught:
        load("mnist")
    sentence = str(caught.value)
    assert str(path) in sentence
    assert "delete it and run `fedunlearn data get mnist`" in sentence
    if not packed:
        assert SOURCES["mnist"].files["train-images-idx3-ubyte"] in sentence
        assert "is damaged" in sentence


def test_files_of_another_data_set_are_recognised(home, digits, put, publish):
    put(home, digits)
    publish("fmnist", digits)
    publish("mnist", {name: content + b"!" for name, content in digits.items()})
    with refused("damaged", says="belongs to dataset 'fmnist'"):
        load("mnist")


class Malice:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (str(self.marker),)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_cannot_run_code(home, tmp_path, photographs, put, publish, protocol):
    marker = tmp_path / "marker"
    files = {**photographs, "data_batch_1": pickle.dumps(Malice(marker), protocol)}
    publish("cifar10", files)
    put(home / "cifar-10-batches-py", files)
    with refused("damaged", says=r"data_batch_1 is not a CIFAR file \(it refers to .*mkdir"):
        load("cifar10")
    assert not marker.exists()


def test_the_data_directory_is_the_setting_or_the_cache(monkeypatch, tmp_path):
    monkeypatch.setenv(SETTING, str(tmp_path))
    assert data_directory() == tmp_path
    (tmp_path / "datasets").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv(SETTING, "~/datasets")
    assert data_directory() == tmp_path / "datasets"
    monkeypatch.delenv(SETTING)
    assert data_directory().name == "data"
    assert "fedunlearn" in data_directory().parts
