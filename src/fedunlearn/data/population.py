"""Create clients from a dataset: their training data, the targets, and their evaluation sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ..client.data import ClientData, Examples
from ..core import ClientId, FedUnlearnError
from ..core.registry import did_you_mean
from ..core.seeds import generator
from .backdoor import VALUE, Trigger, poison, trigger, triggered
from .datasets import Dataset
from .partitions import pools

SEEN = 200
"""Number of training examples in the evaluation set ``seen`` of each retained client."""

LEVELS = ("client", "sample", "class")


@dataclass(frozen=True)
class Population:
    """The clients during pre-training and during the unlearning request.

    Only the targets differ: for the request, a target may hold more poisoned data, or be split into a
    retained client (``client-3``) and a virtual client with the data to forget (``client-3#forget``).
    """

    pretraining: Mapping[ClientId, ClientData]
    unlearning: Mapping[ClientId, ClientData]
    targets: tuple[ClientId, ...]
    public: ClientData | None = None
    """Examples that no client holds, for methods that use distillation."""
    stand_ins: Mapping[ClientId, ClientData] = field(default_factory=dict)
    """In place of the targets in a twin: as much data of the same distribution, which ω⁰ never saw."""
    unseen: Mapping[ClientId, Mapping[str, Examples]] = field(default_factory=dict)
    """Sets that targets hold during an audit only: their test examples with the trigger, where no examples
    are kept for audits."""

    @property
    def twin(self) -> dict[ClientId, ClientData]:
        """The clients of a twin: those of pre-training, with stand-ins in place of the targets."""
        return {**self.pretraining, **self.stand_ins}

    @property
    def auditing(self) -> dict[ClientId, ClientData]:
        """The clients during an audit: the targets hold their data as ω⁰ was trained on it."""
        trained = {client: self.pretraining[client] for client in self.targets if client in self.pretraining}
        clients = {**self.unlearning, **trained}
        return clients | {
            client: ClientData(clients[client].train, {**clients[client].evaluations, **sets})
            for client, sets in self.unseen.items()
        }


PUBLIC = "public"
"""The federation member that holds the public data."""


def reserve(dataset: Dataset, count: int, seed: int) -> tuple[ClientData, Dataset]:
    """Draw ``count`` training examples for distillation; return them and the dataset without them."""
    size = len(dataset.train.y)
    if not 0 < count < size:
        raise FedUnlearnError(
            f"public = {count}: the training set has {size} examples, and the clients need some of them"
        )
    drawn = torch.randperm(size, generator=generator("public", seed))
    chosen, left = drawn[:count], drawn[count:].sort().values
    return ClientData(dataset.train.take(chosen)), replace(dataset, train=dataset.train.take(left))


def populate(
    dataset: Dataset,
    *,
    partition: str,
    clients: int,
    seed: int,
    batch_size: int,
    level: str = "client",
    targets: int | Sequence[ClientId] = 1,
    share: float = 0.1,
    label: int = 0,
    backdoor: bool = True,
    pretrain_share: float = 0.8,
    unlearn_share: float = 1.0,
    value: float = VALUE,
    audit: float = 0.0,
    twins: float = 0.0,
    options: Mapping[str, Any] | None = None,
) -> Population:
    """Distribute a dataset among clients and prepare the data to forget.

    Level ``client`` forgets whole clients, ``sample`` a ``share`` of the targets' training examples, and
    ``class`` one ``label`` at all clients that hold it (which become the targets). The backdoor marks the
    data to forget. At client level it covers ``pretrain_share`` of each batch of a target in pre-training and
    ``unlearn_share`` in the request.

    ``audit`` is the share of each client's examples that nobody trains on, its evaluation set ``audit``. It
    has the distribution of what the client trained on in pre-training, including the backdoor. ``twins`` is
    the share that only twins train on: of it the targets' stand-ins get as much as the targets train on.
    """
    if level not in LEVELS:
        raise FedUnlearnError(f"unknown level {level!r}{did_you_mean(level, LEVELS)}", code="unknown")
    shares = {"share": share, "pretrain_share": pretrain_share, "unlearn_share": unlearn_share}
    for what, number in shares.items():
        if not 0 < number <= 1:
            raise FedUnlearnError(f"{what} must be in (0, 1], not {number}")
    if batch_size < 1:
        raise FedUnlearnError(f"batch_size must be at least 1, not {batch_size}")
    check_reserved(audit, twins, level)
    holdings, reserved = _holdings(dataset, partition, clients, seed, options, audit, twins)
    _check_batch_size(holdings, batch_size)

    if level == "class":
        return _with_seen(_forget_class(holdings, label, dataset.classes, targets, backdoor))
    chosen = _targets(targets, tuple(holdings), seed, all_allowed=level == "sample")
    mark = trigger(seed, dataset.train.x.shape[1:], value) if backdoor else None
    if level == "sample":
        return _with_seen(_forget_samples(holdings, chosen, share, mark, dataset.classes, seed))
    if twins:
        _check_stand_ins({client: reserved[client] for client in chosen}, batch_size, twins)
    return _with_seen(
        _forget_clients(
            holdings, reserved, chosen, mark, dataset.classes, pretrain_share, unlearn_share, batch_size
        )
    )


def check_reserved(audit: float, twins: float, level: str) -> None:
    """Refuse shares of examples that cannot be kept from training."""
    for what, share in {"audit": audit, "twins": twins}.items():
        if not 0 <= share <= 0.5:
            raise FedUnlearnError(f"{what} must be in [0, 0.5], not {share}")
    if audit + twins >= 1:
        raise FedUnlearnError(
            f"audit = {audit:g} and twins = {twins:g} leave nothing to train on: lower one of them"
        )
    if twins and level != "client":
        raise FedUnlearnError(
            f"twins = {twins:g} with level = {level!r}: twins replace whole clients, so use level = 'client' "
            "or no twins"
        )


def _with_seen(population: Population) -> Population:
    """Add an evaluation set of training examples to each retained client."""
    return replace(
        population,
        unlearning={
            client: data
            if client in population.targets
            else ClientData(
                data.train,
                {**data.evaluations, "seen": Examples(data.train.x[:SEEN], data.train.y[:SEEN])},
            )
            for client, data in population.unlearning.items()
        },
    )


def _holdings(
    dataset: Dataset,
    partition: str,
    clients: int,
    seed: int,
    options: Mapping[str, Any] | None,
    audit: float,
    twins: float,
) -> tuple[dict[ClientId, ClientData], dict[ClientId, Examples]]:
    """Create clean clients: join the official train and test parts, distribute them, split each pool again.

    The audit set and the examples of a stand-in, which are returned beside the clients, are taken from each
    pool before it is split. A stand-in gets no more examples than the client trains on.

    Deviation: the steps are those of the authors' code, but not the random numbers. Theirs come from global
    generators, and the split of the first run is cached on disk for all seeds.
    """
    train, test = len(dataset.train.y), len(dataset.test.y)
    labels = torch.cat([dataset.train.y, dataset.test.y])
    shared = pools(partition, labels, dataset.classes, clients, seed, options)
    owner = torch.randperm(clients, generator=generator("owners", seed)).tolist()
    width = len(str(clients - 1))
    holdings, reserved = {}, {}
    for number, pool in enumerate(shared):
        shuffled = pool[torch.randperm(len(pool), generator=generator("split", seed, number))]
        trained = len(pool) - int(audit * len(pool) + 1e-9)
        used = trained - int(twins * len(pool) + 1e-9)
        # Deviation: integer arithmetic; the authors' int(train_prob * n) may lose an example to rounding.
        cut = used * train // (train + test)
        client = f"client-{owner[number]:0{width}}"
        if cut == 0:
            raise FedUnlearnError(
                f"partition {partition!r} leaves {client} without a training example: "
                "use fewer clients or a larger fraction of the data"
            )
        holdings[client] = ClientData(
            _gather(dataset, shuffled[:cut]),
            _sets(test=_gather(dataset, shuffled[cut:used]), audit=_gather(dataset, shuffled[trained:])),
        )
        reserved[client] = _gather(dataset, shuffled[used:trained][:cut])
    return {client: holdings[client] for client in sorted(holdings)}, reserved


def _gather(dataset: Dataset, index: Tensor) -> Examples:
    """Index into train followed by test, without concatenating the two in memory."""
    train = len(dataset.train.y)
    early = index < train
    x = dataset.train.x.new_empty((len(index), *dataset.train.x.shape[1:]))
    y = dataset.train.y.new_empty(len(index))
    x[early], y[early] = dataset.train.take(index[early])
    x[~early], y[~early] = dataset.test.take(index[~early] - train)
    return Examples(x, y)


def _sets(**sets: Examples) -> dict[str, Examples]:
    """Leave out empty sets, which have no accuracy."""
    return {name: examples for name, examples in sets.items() if len(examples.y)}


def _check_batch_size(holdings: Mapping[ClientId, ClientData], batch_size: int) -> None:
    # The remainder of a client after a later split is not checked: its size cannot be configured.
    smallest = min(holdings, key=lambda client: len(holdings[client].train.y))
    size = len(holdings[smallest].train.y)
    if batch_size > size:
        raise FedUnlearnError(
            f"batch_size {batch_size} is larger than the training set of {smallest} ({size} examples): "
            f"use a batch_size of at most {size}, or fewer clients"
        )


def _check_stand_ins(reserved: Mapping[ClientId, Examples], batch_size: int, twins: float) -> None:
    for client, examples in reserved.items():
        if len(examples.y) < batch_size:
            raise FedUnlearnError(
                f"twins = {twins:g} leaves {len(examples.y)} examples for the stand-in of {client}, fewer "
                f"than a batch of {batch_size}: use a larger share or a smaller batch_size"
            )


def _targets(
    targets: int | Sequence[ClientId], clients: tuple[ClientId, ...], seed: int, all_allowed: bool
) -> tuple[ClientId, ...]:
    if isinstance(targets, int):
        count = targets
        drawn = torch.randperm(len(clients), generator=generator("targets", seed))[: max(count, 0)].tolist()
        chosen = tuple(sorted(clients[number] for number in drawn))
    else:
        chosen = tuple(sorted({targets} if isinstance(targets, str) else set(targets)))
        count = len(chosen)
    for client in chosen:
        if client not in clients:
            raise FedUnlearnError(
                f"target {client!r} is not a client{did_you_mean(client, clients)}", code="unknown"
            )
    if count < 1:
        raise FedUnlearnError(f"targets = {targets!r}: name at least one client")
    most = len(clients) if all_allowed else len(clients) - 1
    if count > most:
        why = "" if all_allowed else ", and one must stay"
        hint = f"name at most {most}" if most else "use at least 2 clients"
        raise FedUnlearnError(f"{count} of {len(clients)} clients are targets{why}: {hint}")
    return chosen


def _forget_clients(
    holdings: Mapping[ClientId, ClientData],
    reserved: Mapping[ClientId, Examples],
    targets: tuple[ClientId, ...],
    mark: Trigger | None,
    classes: int,
    pretrain_share: float,
    unlearn_share: float,
    batch_size: int,
) -> Population:
    def stages(train: Examples, held: ClientData) -> tuple[ClientData, ClientData]:
        """A target that trains on these examples, in pre-training and in the request."""
        if mark is None:
            clean = ClientData(train, {**held.evaluations, "forget": train})
            return clean, clean
        before = poison(train, mark, classes, pretrain_share, batch_size)
        after = poison(train, mark, classes, unlearn_share, batch_size)
        marked = triggered(len(after.y), unlearn_share, batch_size)
        if not marked.any() or not triggered(len(before.y), pretrain_share, batch_size).any():
            raise FedUnlearnError(
                f"a poisoned share of {min(pretrain_share, unlearn_share)} poisons no example in batches of "
                f"{batch_size}: use a larger share or a larger batch_size"
            )
        # Deviation: in the authors' pre-training this set also contains the clean examples of each batch.
        # Here both stages measure the same triggered images.
        evaluations = {
            **held.evaluations,
            **_triggered(held.evaluations.get("audit"), mark, classes, pretrain_share, batch_size),
            "backdoor": after if marked.all() else after.take(marked),
        }
        return ClientData(before, evaluations), ClientData(after, evaluations)

    pretraining, unlearning, stand_ins, unseen = dict(holdings), dict(holdings), {}, {}
    for client in targets:
        held = holdings[client]
        pretraining[client], unlearning[client] = stages(held.train, held)
        if len(reserved[client].y):
            stand_ins[client], _ = stages(reserved[client], held)
        if mark is not None and "audit" not in held.evaluations:
            unseen[client] = _triggered(
                held.evaluations.get("test"), mark, classes, pretrain_share, batch_size
            )
    return Population(pretraining, unlearning, targets, stand_ins=stand_ins, unseen=unseen)


def _forget_samples(
    holdings: Mapping[ClientId, ClientData],
    targets: tuple[ClientId, ...],
    share: float,
    mark: Trigger | None,
    classes: int,
    seed: int,
) -> Population:
    pretraining, unlearning, unseen = dict(holdings), dict(holdings), {}
    for client in targets:
        held = holdings[client]
        size = len(held.train.y)
        count = max(1, int(share * size + 1e-9))
        chosen = torch.zeros(size, dtype=torch.bool)
        chosen[torch.randperm(size, generator=generator("forget", seed, client))[:count]] = True
        forget, rest = held.train.take(chosen), held.train.take(~chosen)
        if mark is not None:
            forget = poison(forget, mark, classes, share=1.0, batch_size=count)
        measured: Mapping[str, Examples] = {**held.evaluations, "forget": forget}
        if mark is not None:
            marked = _triggered(held.evaluations.get("audit"), mark, classes)
            measured = {**held.evaluations, **marked, "backdoor": forget}
            if not marked:
                unseen[f"{client}#forget"] = _triggered(held.evaluations.get("test"), mark, classes)
        train = held.train if mark is None else _put(held.train, chosen, forget)
        pretraining[client] = ClientData(train, measured)
        _split(unlearning, client, rest, held.evaluations, "forget", ClientData(forget, measured))
    population = _with_retained(pretraining, unlearning, "the share to forget covers all data of all clients")
    return replace(population, unseen=unseen)


def _forget_class(
    holdings: Mapping[ClientId, ClientData],
    label: int,
    classes: int,
    targets: int | Sequence[ClientId],
    backdoor: bool,
) -> Population:
    if backdoor:
        raise FedUnlearnError("level 'class' forgets clean examples of one class: disable the backdoor")
    if not 0 <= label < classes:
        raise FedUnlearnError(f"label {label} is not one of the {classes} classes: use 0..{classes - 1}")
    if not isinstance(targets, int):
        raise FedUnlearnError(
            "level 'class' targets all clients that hold the class: set a label, not targets"
        )
    pretraining, unlearning = dict(holdings), dict(holdings)
    for client, held in holdings.items():
        trained = held.train.y == label
        of_label, others = _divided(held.evaluations, label)
        if not trained.any():
            if of_label:
                unlearning[client] = ClientData(held.train, others)
            continue
        forget, rest = held.train.take(trained), held.train.take(~trained)
        pretraining[client] = ClientData(held.train, {**held.evaluations, "forget": forget})
        virtual = ClientData(forget, {**of_label, "forget": forget})
        _split(unlearning, client, rest, others, f"class-{label}", virtual)
    if unlearning.keys() == holdings.keys():
        raise FedUnlearnError(f"no client trains on label {label}: choose a label that is in the data")
    return _with_retained(pretraining, unlearning, f"all clients hold only label {label}")


def _triggered(
    clean: Examples | None, mark: Trigger, classes: int, share: float = 1.0, batch_size: int | None = None
) -> dict[str, Examples]:
    """Unseen examples of a target, poisoned like those that it trains on.

    ``backdoor-unseen`` has the trigger on all of them: the label that the attack wants is never the true one.
    """
    if clean is None:
        return {}
    size = len(clean.y)
    return {
        "audit": poison(clean, mark, classes, share, batch_size or size),
        "backdoor-unseen": poison(clean, mark, classes, share=1.0, batch_size=size),
    }


def _divided(sets: Mapping[str, Examples], label: int) -> tuple[dict[str, Examples], dict[str, Examples]]:
    """The examples of one label in each set, and the others."""
    return (
        _sets(**{name: examples.take(examples.y == label) for name, examples in sets.items()}),
        _sets(**{name: examples.take(examples.y != label) for name, examples in sets.items()}),
    )


def _put(examples: Examples, chosen: Tensor, replacement: Examples) -> Examples:
    x, y = examples.x.clone(), examples.y.clone()
    x[chosen], y[chosen] = replacement
    return Examples(x, y)


def _split(
    clients: dict[ClientId, ClientData],
    client: ClientId,
    rest: Examples,
    evaluations: Mapping[str, Examples],
    what: str,
    part: ClientData,
) -> None:
    """Replace a client by its remaining data, if any, and a virtual client with the data to forget."""
    if len(rest.y):
        clients[client] = ClientData(rest, evaluations)
    else:
        del clients[client]
    clients[f"{client}#{what}"] = part


def _with_retained(
    pretraining: dict[ClientId, ClientData], unlearning: dict[ClientId, ClientData], because: str
) -> Population:
    ordered = {client: unlearning[client] for client in sorted(unlearning)}
    targets = tuple(client for client in ordered if client not in pretraining)
    if len(targets) == len(ordered):
        raise FedUnlearnError(f"no retained client is left, because {because}: forget less")
    return Population(pretraining, ordered, targets)
