"""Partitions: functions that map labels to one pool of example indices for each client."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core import FedUnlearnError
from ..core.registry import did_you_mean, partition
from ..core.seeds import derive, generator


def pools(
    name: str,
    labels: Tensor,
    classes: int,
    clients: int,
    seed: int,
    options: Mapping[str, Any] | None = None,
) -> list[Tensor]:
    """Return the pools of the named partition; they are non-empty, disjoint and cover all examples."""
    distribute = partition[name]
    options = dict(options or {})
    _check_options(name, distribute, options)
    if clients < 1:
        raise FedUnlearnError(f"partition {name!r} needs at least one client, not {clients}")
    if len(labels) < clients:
        raise FedUnlearnError(
            f"partition {name!r} cannot distribute {len(labels)} examples among {clients} clients: "
            f"use at most {len(labels)} clients or more data"
        )
    lowest, highest = int(labels.min()), int(labels.max())
    if lowest < 0 or highest >= classes:
        raise FedUnlearnError(
            f"partition {name!r} was given labels {lowest}..{highest} for {classes} classes: "
            f"labels must be 0..{classes - 1}"
        )
    result: list[Tensor] = distribute(labels, classes, clients, seed, **options)
    _check_pools(name, result, len(labels), clients)
    return result


def _check_options(name: str, distribute: Callable[..., Any], options: Mapping[str, Any]) -> None:
    parameters = list(inspect.signature(distribute).parameters.values())[4:]
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return
    known = [parameter.name for parameter in parameters]
    for option in options:
        if option not in known:
            hint = did_you_mean(option, known) if known else "; it has no options"
            raise FedUnlearnError(f"partition {name!r} has no option {option!r}{hint}", code="unknown")


def _check_pools(name: str, result: Sequence[Any], examples: int, clients: int) -> None:
    if len(result) != clients:
        raise FedUnlearnError(
            f"partition {name!r} made {len(result)} pools for {clients} clients: it must make one for each"
        )
    for number, pool in enumerate(result):
        if not isinstance(pool, Tensor) or pool.ndim != 1 or pool.dtype != torch.int64:
            raise FedUnlearnError(
                f"partition {name!r} made an invalid pool {number} of {clients}: "
                "a pool must be a one-dimensional tensor of int64 indices"
            )
        if len(pool) == 0:
            raise FedUnlearnError(
                f"partition {name!r} left pool {number} of {clients} without examples: "
                "use fewer clients or a larger fraction of the data"
            )
    taken = torch.cat(list(result))
    lowest, highest = int(taken.min()), int(taken.max())
    if lowest < 0 or highest >= examples:
        raise FedUnlearnError(
            f"partition {name!r} made indices {lowest}..{highest} for {examples} examples: "
            f"indices must be 0..{examples - 1}"
        )
    times = torch.bincount(taken, minlength=examples)
    if int(times.max()) > 1:
        raise FedUnlearnError(
            f"partition {name!r} assigned example {int(times.argmax())} {int(times.max())} times: "
            "pools must be disjoint"
        )
    if int(times.min()) == 0:
        raise FedUnlearnError(
            f"partition {name!r} left example {int(times.argmin())} out: pools must cover every example"
        )


@partition("pat-10", summary="each client holds 10 % of the classes, in fixed blocks")
def pat_10(
    labels: Tensor, classes: int, clients: int, seed: int, random_classes: bool = False
) -> list[Tensor]:
    """Each client holds 10 % of the classes."""
    return _pathological(10, labels, classes, clients, seed, random_classes)


@partition("pat-20", summary="each client holds 20 % of the classes, in fixed blocks")
def pat_20(
    labels: Tensor, classes: int, clients: int, seed: int, random_classes: bool = False
) -> list[Tensor]:
    """Each client holds 20 % of the classes."""
    return _pathological(20, labels, classes, clients, seed, random_classes)


@partition("pat-50", summary="each client holds 50 % of the classes, in fixed blocks")
def pat_50(
    labels: Tensor, classes: int, clients: int, seed: int, random_classes: bool = False
) -> list[Tensor]:
    """Each client holds 50 % of the classes."""
    return _pathological(50, labels, classes, clients, seed, random_classes)


@partition("iid", summary="each client holds an equal part of every class")
def iid(labels: Tensor, classes: int, clients: int, seed: int) -> list[Tensor]:
    """Each client holds an equal part of every class, stratified as in the authors' code."""
    return _deal(labels, {label: range(clients) for label in range(classes)}, clients)


@partition(
    "dirichlet", summary="each class is distributed in proportions drawn from a Dirichlet distribution"
)
def dirichlet(
    labels: Tensor, classes: int, clients: int, seed: int, alpha: float = 0.5, minimum: int = 1
) -> list[Tensor]:
    """Each class is distributed in Dirichlet(alpha) proportions (Hsu et al., arXiv 2019).

    Clients with fewer than ``minimum`` examples receive some from the largest client.
    """
    if not alpha > 0:
        raise FedUnlearnError(f"partition 'dirichlet' needs an alpha above 0 (small is skewed), not {alpha}")
    if minimum < 1 or minimum * clients > len(labels):
        raise FedUnlearnError(
            f"partition 'dirichlet' cannot give {clients} clients {minimum} of {len(labels)} examples each: "
            f"use a minimum of 1..{len(labels) // clients}"
        )
    # Use numpy, because torch's Dirichlet sampler draws from the global generator.
    random = np.random.Generator(np.random.PCG64(derive("partition", "dirichlet", seed)))
    pieces: list[list[Tensor]] = [[] for _ in range(clients)]
    for label in range(classes):
        members = random.permutation(torch.nonzero(labels == label).flatten().numpy())
        shares = np.cumsum(random.dirichlet(np.full(clients, alpha)))
        cuts = (shares[:-1] * len(members)).astype(np.int64)
        for pool, piece in zip(pieces, np.split(members, cuts), strict=True):
            pool.append(torch.from_numpy(piece))
    return _filled([torch.cat(pool) for pool in pieces], minimum)


def _filled(result: list[Tensor], minimum: int) -> list[Tensor]:
    """Move examples from the end of the largest pool to the smallest until all have ``minimum``."""
    while True:
        sizes = [len(pool) for pool in result]
        smallest, largest = sizes.index(min(sizes)), sizes.index(max(sizes))
        if sizes[smallest] >= minimum:
            return result
        kept = max(minimum, sizes[largest] - (minimum - sizes[smallest]))
        result[smallest] = torch.cat([result[smallest], result[largest][kept:]])
        result[largest] = result[largest][:kept]


def _pathological(
    percent: int, labels: Tensor, classes: int, clients: int, seed: int, random_classes: bool
) -> list[Tensor]:
    """Divide classes and clients into 100 / percent blocks each and match the blocks.

    The authors' loop (each class goes to the first clients that have room for another class) gives the same
    result whenever it loses no class and leaves no client empty.
    """
    blocks = 100 // percent
    if classes % blocks:
        raise FedUnlearnError(
            f"partition 'pat-{percent}' cannot give each client {percent} % of {classes} classes: "
            f"the number of classes must be a multiple of {blocks}"
        )
    if clients % blocks:
        below = clients - clients % blocks
        fitting = f"{below} or {below + blocks}" if below else f"{blocks}"
        raise FedUnlearnError(
            f"partition 'pat-{percent}' cannot divide {classes} classes among {clients} clients without "
            f"losing a class or leaving a client empty: use a multiple of {blocks}, such as {fitting}"
        )
    # Deviation: the paper assigns classes at random, the authors' code in order. We follow the code, because
    # the published numbers come from it; an option follows the paper.
    order = torch.randperm(classes, generator=generator("partition", "classes", seed)).tolist()
    takers, budget = clients // blocks, classes // blocks
    holders = {}
    for place, label in enumerate(order if random_classes else range(classes)):
        block = place // budget
        holders[label] = range(block * takers, (block + 1) * takers)
    return _deal(labels, holders, clients)


def _deal(labels: Tensor, holders: Mapping[int, range], clients: int) -> list[Tensor]:
    """Cut each class into contiguous equal pieces, one per holder; the last gets the remainder."""
    pieces: list[list[Tensor]] = [[] for _ in range(clients)]
    for label, chosen in holders.items():
        members = torch.nonzero(labels == label).flatten()
        size = len(members) // len(chosen)
        cuts = [place * size for place in range(1, len(chosen))]
        for pool, piece in zip(chosen, torch.tensor_split(members, cuts), strict=True):
            pieces[pool].append(piece)
    return [torch.cat(pool) for pool in pieces]
