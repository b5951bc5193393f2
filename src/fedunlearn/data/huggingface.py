"""Data sets of Hugging Face, and Flower's partitions of them, as the data of clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor

from ..client.data import ClientData, Examples
from ..core import ClientId, FedUnlearnError, did_you_mean
from ..core.seeds import generator

Rows: TypeAlias = Any
"""A ``datasets.Dataset``."""

Transform: TypeAlias = Callable[[Tensor], Tensor]


class Partitioner(Protocol):
    """What the partitioners of ``flwr_datasets`` have."""

    @property
    def num_partitions(self) -> int: ...

    def load_partition(self, partition_id: int) -> Rows: ...


def clients(
    partitions: Mapping[ClientId, Rows] | Partitioner,
    columns: tuple[str, str] = ("image", "label"),
    *,
    transform: Transform | None = None,
    test: float = 0.2,
    audit: float = 0.0,
    seed: int = 0,
) -> dict[ClientId, ClientData]:
    """The clients that partitions make, as ``Server`` and ``simulate`` take them.

    ``partitions`` are data sets by client, or a partitioner of ``flwr_datasets`` that has its data set; its
    partitions become ``client-0``, ``client-1`` and so on, or ``client-00``, ``client-01`` and so on from 11
    partitions on. ``test`` and ``audit`` are the shares of each client's examples that are not trained on,
    drawn by the seed: its evaluation sets of these names. ``columns`` and ``transform`` are those of
    ``examples``.
    """
    for name, share in {"test": test, "audit": audit}.items():
        if not 0 <= share < 1:
            raise FedUnlearnError(f"{name} = {share}: it must be at least 0 and below 1")
    if test + audit >= 1:
        raise FedUnlearnError(f"test = {test} and audit = {audit} leave nothing to train on: lower one")
    found = {}
    for client, rows in _by_client(partitions).items():
        try:
            held = examples(rows, columns, transform=transform)
            drawn = torch.randperm(len(held.y), generator=generator("split", seed, client))
            cut = int(test * len(drawn) + 1e-9)
            kept = cut + int(audit * len(drawn) + 1e-9)
            sets = {"test": drawn[:cut], "audit": drawn[cut:kept]}
            evaluations = {name: held.take(index) for name, index in sets.items() if len(index)}
            found[client] = ClientData(held.take(drawn[kept:]), evaluations)
        except FedUnlearnError as error:
            raise FedUnlearnError(f"client {client!r}: {error}", code=error.code) from None
    return found


def examples(
    rows: Rows, columns: tuple[str, str] = ("image", "label"), *, transform: Transform | None = None
) -> Examples:
    """A data set as tensors: ``columns`` name the inputs and the labels.

    Images become floats from 0 to 1 with their channels first; lists and arrays of numbers stay as they are.
    ``transform`` is applied to all inputs at once. It is the place for a normalisation.
    """
    if not hasattr(rows, "with_format") or not hasattr(rows, "__len__"):
        raise FedUnlearnError(f"{type(rows).__name__} is not a table of rows: give a datasets.Dataset")
    if len(columns) != 2:
        raise FedUnlearnError(f"columns = {columns!r}: name two, the inputs and the labels")
    if not len(rows):
        raise FedUnlearnError("there are no rows: give a data set with examples")
    for column in columns:
        if column not in rows.column_names:
            raise FedUnlearnError(
                f"there is no column {column!r}{did_you_mean(column, rows.column_names)}", code="unknown"
            )
    read = rows.with_format("torch", columns=list(columns))[:]
    x, y = (_stacked(read[column], column) for column in columns)
    x = x.float() / 255 if x.dtype == torch.uint8 else x
    if transform is not None:
        x = transform(x)
        if not isinstance(x, Tensor) or len(x) != len(y):
            raise FedUnlearnError(
                f"transform must return a tensor of {len(y)} inputs, as many as it was given"
            )
    return Examples(x, y)


def _by_client(partitions: Mapping[ClientId, Rows] | Partitioner) -> Mapping[ClientId, Rows]:
    if isinstance(partitions, Mapping):
        return partitions
    if not hasattr(partitions, "load_partition") or not hasattr(partitions, "num_partitions"):
        raise FedUnlearnError(
            f"partitions are a {type(partitions).__name__}: give data sets by client, or a partitioner; a "
            "FederatedDataset has one in federated.partitioners['train'], once it has loaded a partition"
        )
    if not getattr(partitions, "is_dataset_assigned", lambda: True)():
        raise FedUnlearnError("the partitioner has no data set: set its dataset first")
    count = partitions.num_partitions
    width = len(str(count - 1))
    return {f"client-{number:0{width}}": partitions.load_partition(number) for number in range(count)}


def _stacked(column: Any, name: str) -> Tensor:
    if isinstance(column, Tensor):
        return column
    if any(not isinstance(value, Tensor) for value in column):
        raise FedUnlearnError(
            f"column {name!r} does not hold numbers: convert it with map, for example tokenize text"
        )
    raise FedUnlearnError(f"the values of column {name!r} have different shapes: resize or pad them with map")
