"""The data of a client: tensors, a dataset or a data loader, in batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sized
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset, default_collate
from torch.utils.data.sampler import RandomSampler, SequentialSampler

from ..core import Batch, ClientId, FedUnlearnError, did_you_mean, hashes

SETS = ("test", "seen", "backdoor", "forget", "audit", "backdoor-unseen", "canary-in", "canary-out")
"""The evaluation sets that measures know."""

AUDITED = ("audit", "backdoor-unseen", "canary-in", "canary-out")
"""The sets that only audits use: a choice that rests on them would spoil the audit."""


class Examples(NamedTuple):
    """Inputs and labels of equal length."""

    x: Tensor
    y: Tensor

    def take(self, index: Tensor) -> Examples:
        return Examples(self.x[index], self.y[index])


Data: TypeAlias = Any
"""A pair of tensors or arrays, a tensor, a dict of tensors, a sized ``Dataset``, or a ``DataLoader``."""


@dataclass(frozen=True)
class ClientData:
    """The data of one client: the examples it trains on, and the named sets it is measured on.

    The sets are ``test`` (never trained on), ``seen`` (trained on), ``backdoor`` (triggered, with flipped
    labels), ``forget`` (what the request asks to forget), ``audit`` (never trained on, distributed like the
    training data) and ``backdoor-unseen`` (triggered like ``backdoor``, never trained on). Only an audit
    looks at the last two, so that nothing is tuned on them.

    Canaries are synthetic examples for an audit. A fair coin chose ``canary-in``, which are also the last
    examples of ``train``; ``canary-out`` are the others, which are never trained on.
    """

    train: Data
    evaluations: Mapping[str, Data] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "train", checked(self.train, "train"))
        if not isinstance(self.evaluations, Mapping):
            raise FedUnlearnError(
                f"evaluations are a {type(self.evaluations).__name__}: give a dict such as {{'test': (x, y)}}"
            )
        for name in self.evaluations:
            if name not in SETS:
                raise FedUnlearnError(
                    f"unknown evaluation set {name!r}{did_you_mean(str(name), SETS)}", code="unknown"
                )
        sets = {name: checked(data, name) for name, data in self.evaluations.items()}
        object.__setattr__(self, "evaluations", sets)
        if "canary-in" in sets and size(sets["canary-in"]) >= size(self.train):
            raise FedUnlearnError(
                f"set 'canary-in' has {size(sets['canary-in'])} examples and 'train' has {size(self.train)}: "
                "train on the canaries and on other examples, the canaries last"
            )


def as_clients(data: Mapping[ClientId, ClientData | Data]) -> dict[ClientId, ClientData]:
    """Return the clients by name, in their order; bare data is training data."""
    if not isinstance(data, Mapping) or not data:
        raise FedUnlearnError("a federation needs clients: give a dict from names to their data")
    clients: dict[ClientId, ClientData] = {}
    for name in data:
        if not isinstance(name, str):
            raise FedUnlearnError(f"client {name!r}: names are text, such as 'site-{name}'")
    for name in sorted(data):
        held = data[name]
        try:
            clients[name] = held if isinstance(held, ClientData) else ClientData(held)
        except FedUnlearnError as error:
            raise FedUnlearnError(f"client {name!r}: {error}", code="data") from None
    return clients


def checked(data: Data, name: str) -> Data:
    """Return the data with arrays as tensors; refuse it if it is empty, ragged or of an unknown kind."""
    where = f"set {name!r}"
    if isinstance(data, Dataset | DataLoader):
        if not isinstance(data.dataset if isinstance(data, DataLoader) else data, Sized):
            raise FedUnlearnError(
                f"{where} has no length, so its client cannot be weighted: "
                "use a dataset with __len__ and __getitem__"
            )
    elif isinstance(data, Mapping):
        data = {str(key): _tensor(value, f"{where}, entry {key!r}") for key, value in data.items()}
        _require_equal(data, where)
    elif isinstance(data, tuple | list):
        if len(data) != 2:
            raise FedUnlearnError(
                f"{where} is a {type(data).__name__} of {len(data)}: give a pair of inputs and labels"
            )
        x, y = _tensor(data[0], f"inputs of {where}"), _tensor(data[1], f"labels of {where}")
        _require_equal({"inputs": x, "labels": y}, where)
        data = data if isinstance(data, Examples) and data.x is x and data.y is y else Examples(x, y)
    elif isinstance(data, Tensor | np.ndarray):
        data = _tensor(data, where)
        _require_equal({"rows": data}, where)
    else:
        raise FedUnlearnError(
            f"{where} is a {type(data).__name__}: give a pair (inputs, labels) of tensors, "
            "a dict of tensors, a torch Dataset or a DataLoader"
        )
    if size(data) == 0:
        raise FedUnlearnError(f"{where} is empty: leave it out, or give it examples")
    return data


def _tensor(value: object, where: str) -> Tensor:
    if isinstance(value, np.ndarray):
        try:
            value = torch.from_numpy(value)
        except TypeError as error:
            raise FedUnlearnError(f"{where} cannot become a tensor: {error}") from None
    if not isinstance(value, Tensor):
        raise FedUnlearnError(f"{where} is a {type(value).__name__}: give a tensor or a numpy array")
    if value.ndim == 0:
        raise FedUnlearnError(f"{where} is a single number: give one row for each example")
    return value


def _require_equal(parts: Mapping[str, Tensor], where: str) -> None:
    lengths = {name: len(part) for name, part in parts.items()}
    if len(set(lengths.values())) > 1:
        lengths_text = " and ".join(f"{length:,} {name}" for name, length in lengths.items())
        raise FedUnlearnError(f"{where} has {lengths_text}: give one of each for every example")
    if not lengths:
        raise FedUnlearnError(f"{where} has no entries: give it tensors")


def size(data: Data) -> int:
    """Return the number of examples."""
    if isinstance(data, Examples):
        return len(data.y)
    if isinstance(data, DataLoader):
        return len(data.dataset)  # type: ignore[arg-type]
    if isinstance(data, Mapping):
        return len(next(iter(data.values())))
    return len(data)


def digest(data: Data) -> str:
    """Return a digest that changes with tensors; for other datasets and loaders, their kind and size."""
    if isinstance(data, TensorDataset):
        return hashes.digest({str(number): part for number, part in enumerate(data.tensors)})
    if isinstance(data, Examples):
        return hashes.digest(data._asdict())
    if isinstance(data, Mapping):
        return hashes.digest(data)
    if isinstance(data, Tensor):
        return hashes.digest({"rows": data})
    return f"{type(data).__name__} of {size(data)}"


def length(batch: Batch) -> int:
    """Return the number of examples in a batch."""
    if isinstance(batch, Tensor):
        return len(batch)
    parts = list(batch.values()) if isinstance(batch, Mapping) else list(batch)
    return length(parts[-1])


def part(data: Data, index: Tensor, *, shuffled: bool = False) -> Data:
    """Return the examples at these places, in their order; ``shuffled`` if a loader shuffles."""
    if isinstance(data, Examples):
        return Examples(*(each.index_select(0, index) for each in data))  # faster than brackets
    if isinstance(data, Tensor):
        return data.index_select(0, index)
    if isinstance(data, Mapping):
        return {name: each.index_select(0, index) for name, each in data.items()}
    if not isinstance(data, DataLoader):
        return Subset(data, index.tolist())
    if data.batch_size is None:
        raise FedUnlearnError("a DataLoader without a batch_size cannot be divided: give it one")
    chosen, sampler = Subset(data.dataset, index.tolist()), None
    if shuffled and not isinstance(data.sampler, SequentialSampler):
        if type(data.sampler) is not RandomSampler:
            raise FedUnlearnError(
                "a DataLoader with a sampler of its own cannot be divided: give its dataset"
            )
        sampler = RandomSampler(chosen, generator=data.generator)
    return DataLoader(chosen, batch_size=data.batch_size, sampler=sampler, collate_fn=data.collate_fn)


def own_examples(data: ClientData) -> Data:
    """Return the training examples of a client without its canaries."""
    if "canary-in" not in data.evaluations:
        return data.train
    return part(data.train, torch.arange(size(data.train) - size(data.evaluations["canary-in"])))


def batches(data: Data, most: int, order: Tensor | None = None) -> Iterator[Batch]:
    """Yield consecutive batches of examples, in their own order or another; a loader brings its own."""
    if isinstance(data, DataLoader):
        yield from data
    elif isinstance(data, Dataset):
        for index in torch.arange(size(data)).split(most) if order is None else divided(order, most):
            yield default_collate([data[number] for number in index.tolist()])
    elif order is not None:
        yield from (part(data, index) for index in divided(order, most))
    elif isinstance(data, Examples):
        yield from map(Examples, data.x.split(most), data.y.split(most))
    elif isinstance(data, Tensor):
        yield from data.split(most)
    else:
        for start in range(0, size(data), most):
            yield {name: part[start : start + most] for name, part in data.items()}


def divided(order: Tensor, most: int) -> list[Tensor]:
    """Return the batches of an order; a single last example joins the batch before: BatchNorm needs two."""
    parts = list(order.split(most))
    if len(parts[-1]) == 1 and most > 1 and len(parts) > 1:
        parts[-2:] = [torch.cat(parts[-2:])]
    return parts


def reseed(data: Data, seed: int) -> None:
    """Set a loader's own generators, which would otherwise continue from the job before."""
    if isinstance(data, DataLoader):
        samplers = (data, data.sampler, data.batch_sampler, getattr(data.batch_sampler, "sampler", None))
        for held in samplers:
            if isinstance(random := getattr(held, "generator", None), torch.Generator):
                random.manual_seed(seed)


def moved(batch: Batch, device: torch.device, dtype: torch.dtype) -> Batch:
    """Return the batch on a device, its floating-point numbers in the type of the model."""
    if isinstance(batch, Tensor):
        return batch.to(device, dtype if batch.is_floating_point() else batch.dtype)
    if isinstance(batch, Mapping):
        return {name: moved(part, device, dtype) for name, part in batch.items()}
    if isinstance(batch, tuple | list):
        return tuple(moved(part, device, dtype) for part in batch)
    raise FedUnlearnError(
        f"the data yields a {type(batch).__name__} as a batch: use tensors, tuples or dicts of tensors"
    )
