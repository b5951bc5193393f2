"""Many federations of the same clients as one computation: they take every step of training together.

Each federation holds a client's examples in an order of its own. Results agree with those of the sequential
engine up to rounding. They depend on which federations are in the stack, not on the machine's load.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..client.data import ClientData, Data, Examples, as_clients, divided
from ..client.learner import Learner
from ..client.stack import Stack
from ..core import ClientId, Failure, FedUnlearnError, Job, Mean, Replies, Reply, State, Task, Terms
from ..core.seeds import generator
from ..driver import Question
from ..tasks import Classification
from .sequential import attempt, sorted_out, split_known, training_order


class Stacked:
    """Federations by number, in this process; ``exchange`` takes the questions of all of them at once."""

    def __init__(
        self,
        model: nn.Module,
        data: Mapping[ClientId, ClientData | Data],
        numbers: Sequence[int],
        *,
        seed: int = 0,
        task: Task = Classification(),
    ) -> None:
        self._data = as_clients(data)
        self._stack, self._learner = Stack(model), Learner(model, task)
        self._learner.check(self._data)
        self._examples = {client: _placed(client, held.train) for client, held in self._data.items()}
        self._orders = {
            client: torch.stack([order(seed, number, client, len(examples.y)) for number in numbers])
            for client, examples in self._examples.items()
        }

    @property
    def task(self) -> Task:
        return self._learner.task

    def present(self) -> frozenset[ClientId]:
        return frozenset(self._data)

    def member(self, place: int) -> Member:
        """The federation at a place of the stack, as a federation of its own."""
        return Member(self, place)

    def exchange(self, questions: Mapping[int, Question]) -> dict[int, Replies]:
        """The replies to each federation's jobs, by its place in the stack."""
        found: dict[int, dict[ClientId, Reply | Failure]] = {place: {} for place in questions}
        missing, rows = {}, {}
        groups: defaultdict[_Group, list[int]] = defaultdict(list)
        for place, (jobs, terms) in questions.items():
            known, missing[place] = split_known(jobs, self._data)
            trained = training_order(known)
            rows[place] = dict(zip(trained, self._learner.empty(len(trained)), strict=True))
            for client, job in known.items():
                if (group := self._group(client, job, terms)) is not None:
                    groups[group].append(place)
                else:
                    found[place][client] = attempt(
                        self._learner,
                        client,
                        self._held(place, client, job),
                        job,
                        terms,
                        rows[place].get(client),
                    )
        for group, places in groups.items():
            starts = torch.stack([questions[place][0][group.client].params for place in places])
            moved, losses = self._trained(group, {place: questions[place][1] for place in places}, starts)
            for place, displacement, loss in zip(places, moved, losses.tolist(), strict=True):
                row, examples = rows[place][group.client], len(self._examples[group.client].y)
                statistics = {"train": {"loss": Mean(loss, examples * group.passes)}} if group.passes else {}
                found[place][group.client] = Reply(row.copy_(displacement), examples, statistics)
        return {place: sorted_out(found[place], missing[place]) for place in questions}

    def log_odds(self, states: Sequence[State], examples: Examples) -> Tensor:
        """log p/(1 − p) of the right label: one row for each model, one column for each example."""
        return self._stack.log_odds(torch.stack([state.params for state in states]), examples)

    def _group(self, client: ClientId, job: Job, terms: Terms) -> _Group | None:
        """What jobs of several federations must share to be done together; None for a job to do alone."""
        loss, step = str(job.config.get("loss", "task")), job.config.get("step", "plain")
        plain = job.work == "train" and step == "plain" and "lesson" not in job.config
        if not plain or self.task.criterion(loss) is None:
            return None
        return _Group(client, loss, terms.rate(job), terms.passes(job), terms.batch_size, terms.shuffle)

    def _trained(self, group: _Group, terms: Mapping[int, Terms], starts: Tensor) -> tuple[Tensor, Tensor]:
        criterion = self.task.criterion(group.loss)
        assert criterion is not None
        return self._stack.train(starts, self._batches(group, terms), criterion, group.lr)

    def _batches(self, group: _Group, terms: Mapping[int, Terms]) -> Iterator[Examples]:
        x, y = self._examples[group.client]
        own = self._orders[group.client][list(terms)]
        fixed = own.split(group.batch_size, 1)
        for epoch in range(group.passes):
            drawn = [each.order(group.client, epoch, len(y)) for each in terms.values()]
            rows = [row if order is None else row[order] for row, order in zip(own, drawn, strict=True)]
            for part in divided(torch.stack(rows), group.batch_size) if group.shuffle else fixed:
                yield Examples(x.index_select(0, part.flatten()).view(*part.shape, -1), y[part])

    def _held(self, place: int, client: ClientId, job: Job) -> ClientData:
        held = self._data[client]
        if job.work in ("measure", "audit", "relearn") or "lesson" in job.config:
            return held  # they choose examples themselves, canaries by their place
        return replace(held, train=held.train.take(self._orders[client][place]))


class _Group(NamedTuple):
    client: ClientId
    loss: str
    lr: float
    passes: int
    batch_size: int
    shuffle: bool


@dataclass(frozen=True)
class Member:
    """One federation of a stack."""

    stack: Stacked
    place: int

    @property
    def task(self) -> Task:
        return self.stack.task

    def present(self) -> frozenset[ClientId]:
        return self.stack.present()

    def exchange(self, jobs: Mapping[ClientId, Job], terms: Terms = Terms()) -> Replies:
        return self.stack.exchange({self.place: (jobs, terms)})[self.place]


def order(seed: int, number: int, client: ClientId, examples: int) -> Tensor:
    """In which federation ``number`` holds the examples of a client."""
    return torch.randperm(examples, generator=generator("order of examples", seed, number, client))


def _placed(client: ClientId, data: Data) -> Examples:
    if not isinstance(data, Examples):
        raise FedUnlearnError(
            f"{client} trains on a {type(data).__name__}, and federations that train together need a pair of "
            "tensors, inputs and labels"
        )
    return Examples(data.x.flatten(1).float(), data.y.long())
