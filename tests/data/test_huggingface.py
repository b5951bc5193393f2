"""Hugging Face data sets and Flower's partitions, made from local data."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from support.children import script
from torch import nn

import fedunlearn as fu
from fedunlearn.data import load
from fedunlearn.data.huggingface import clients, examples

WHY = "not installed: pip install -c constraints.txt '.[hf]'"
datasets = pytest.importorskip("datasets", reason=f"datasets is {WHY}")
partitioners = pytest.importorskip("flwr_datasets.partitioner", reason=f"flwr-datasets is {WHY}")


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """200 images as PNG in a local parquet file, as data sets on the hub are stored."""
    held = load("fashion-demo").train
    pixels = (held.x[:200, 0] * 255).round().to(torch.uint8).numpy()
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(10), "note": datasets.Value("string")}
    )
    rows = {"image": list(pixels), "label": held.y[:200].tolist(), "note": ["x"] * 200}
    folder = tmp_path_factory.mktemp("hub")
    datasets.Dataset.from_dict(rows, features=features).to_parquet(folder / "train.parquet")
    read = datasets.load_dataset(
        "parquet", data_files=str(folder / "train.parquet"), split="train", cache_dir=str(folder / "cache")
    )
    return read.cast(features)


def test_images_are_those_of_the_data_set(table):
    held = examples(table)
    original = load("fashion-demo").train
    assert held.x.dtype == torch.float32
    assert torch.allclose(held.x, original.x[:200], atol=1 / 510)
    assert torch.equal(held.y, original.y[:200])
    assert examples(table, transform=lambda x: x.flatten(1) - 0.5).x.shape == (200, 784)


def test_every_example_has_one_place(table):
    partitioner = partitioners.DirichletPartitioner(3, "label", alpha=1.0, min_partition_size=20, seed=1)
    partitioner.dataset = table
    found = clients(partitioner, test=0.25, audit=0.25, seed=1)
    assert list(found) == ["client-0", "client-1", "client-2"]
    for number, held in enumerate(found.values()):
        whole = examples(partitioner.load_partition(number))
        parts = [held.train, held.evaluations["test"], held.evaluations["audit"]]
        assert len(parts[1].y) == len(parts[2].y) == len(whole.y) // 4
        pictures = np.sort(torch.cat([part.x.flatten(1).sum(1) for part in parts]).numpy())
        assert np.array_equal(pictures, np.sort(whole.x.flatten(1).sum(1).numpy()))
    again = clients(partitioner, test=0.25, audit=0.25, seed=1)
    other = clients(partitioner, test=0.25, audit=0.25, seed=2)
    assert torch.equal(found["client-0"].train.x, again["client-0"].train.x)
    assert not torch.equal(found["client-0"].train.x, other["client-0"].train.x)


def test_a_client_of_a_partitioner_is_forgotten(table, tmp_path):
    partitioner = partitioners.IidPartitioner(3)
    partitioner.dataset = table
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
    training = fu.LocalTraining(batch_size=20)
    server = fu.Server(model, clients(partitioner), folder=tmp_path, training=training, workers=1)
    trained = server.train(rounds=8, lr=0.1)
    assert trained.metrics[-1]["r_acc"] > 0.5
    assert server.forget("client-0", "fast-retrain", rounds=2).status == "done"


def test_columns_of_numbers(table):
    rows = datasets.Dataset.from_dict(
        {"features": [[0.5, 1.0], [2.0, 3.0], [4.0, 5.0]], "price": [1.5, 2.5, 3.5]}
    )
    found = clients({"site-a": rows, "site-b": rows}, ("features", "price"), test=0)
    assert sorted(found["site-a"].train.y.tolist()) == [1.5, 2.5, 3.5]
    assert found["site-b"].train.x.shape == (3, 2)
    assert found["site-b"].evaluations == {}


@pytest.mark.wording
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"columns": ("img", "label")}, "client 'a': there is no column 'img'; did you mean 'image'"),
        ({"columns": ("note", "label")}, "column 'note' does not hold numbers"),
        ({"partitions": {"a": [1, 2]}}, "client 'a': list is not a table of rows"),
        ({"partitions": [1, 2]}, "partitions are a list"),
        ({"partitions": partitioners.IidPartitioner(2)}, "set its dataset first"),
        ({"test": 0.6, "audit": 0.4}, "leave nothing to train on"),
        ({"test": 1.5}, "test = 1.5: it must be"),
        ({"columns": ("image", "note", "label")}, "name two, the inputs and the labels"),
        ({"transform": lambda x: x[:5]}, "transform must return a tensor"),
        ({"transform": lambda x: None}, "transform must return a tensor"),
    ],
)
def test_refusals(table, given, said):
    with pytest.raises(fu.FedUnlearnError, match=said):
        clients(**{"partitions": {"a": table}} | given)


@pytest.mark.wording
def test_an_empty_table_is_refused():
    with pytest.raises(fu.FedUnlearnError, match="there are no rows"):
        examples(datasets.Dataset.from_dict({"image": [], "label": []}))


@pytest.mark.wording
def test_a_stream_is_refused(table):
    with pytest.raises(fu.FedUnlearnError, match="IterableDataset is not a table of rows"):
        examples(table.to_iterable_dataset())


@pytest.mark.wording
def test_rows_of_different_lengths():
    rows = datasets.Dataset.from_dict({"image": [[1, 2], [3]], "label": [0, 1]})
    with pytest.raises(fu.FedUnlearnError, match="column 'image' have different shapes"):
        examples(rows)


def test_the_page_of_the_documentation_runs(tmp_path):
    page = Path(__file__).parents[2] / "docs" / "how-to" / "hugging-face.md"
    (shown,) = re.findall(
        r'^```python title="partitions.py"\n(.*?)^```$', page.read_text(), re.MULTILINE | re.DOTALL
    )
    (tmp_path / "partitions.py").write_text(shown)
    printed = script(tmp_path / "partitions.py", tmp_path)
    assert re.search(r"^client-3 \(\d+, 1, 28, 28\) \d+$", printed, re.MULTILINE)
    assert re.search(r"^<Outcome: done, 10 rounds, r_acc .* → 0\.[3-9]", printed, re.MULTILINE)
