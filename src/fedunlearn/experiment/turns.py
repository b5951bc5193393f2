"""The requests of an experiment: one for all targets, or one for each, in turn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ..client.data import ClientData
from ..core import ClientId, Event, History, Listener, Request, State, Vector
from ..core.seeds import derive
from .setup import Setting


@dataclass(frozen=True)
class Turn:
    """One request: who takes part in it, with which data."""

    number: int
    """From 1."""
    of: int
    targets: tuple[ClientId, ...]
    clients: Mapping[ClientId, ClientData]

    @property
    def last(self) -> bool:
        return self.number == self.of

    def seed(self, purpose: str, seed: int) -> int:
        """The last request has the random numbers of a run in which it is the only one."""
        return derive(purpose, seed) if self.last else derive(purpose, seed, "earlier request", self.number)

    def request(self, setting: Setting, start: State, anchors: tuple[Vector, ...]) -> Request:
        """To forget the targets of this turn; the anchors are the models before earlier ones."""
        request = setting.request(start, self.clients, self.targets)
        return replace(request, anchors=anchors, seed=self.seed("method", setting.seed))

    def next_start(self, start: State, end: State) -> State:
        """What the next request starts from: the model, and the history without this turn's targets."""
        history = History.from_tensors(start.memory).without(self.targets)
        return State(end.params, buffers=end.buffers, memory=history.tensors())

    def relayed(self, listener: Listener) -> Listener:
        """A listener that hears all requests as one run; rounds of earlier ones name their request."""

        def hear(event: Event) -> None:
            done = (self.number - 1) * len(event.phases)
            progress = replace(event.progress, phase=event.progress.phase + done)
            named = {} if self.last else {"request": self.number}
            listener(Event(progress, event.phases * self.of, {**event.metrics, **named}))

        return hear


def turns(setting: Setting) -> list[Turn]:
    """All requests, in the order in which the experiment names the targets, or else of their names.

    Until its own request, a target is a client like the others, with the data that it was trained on.
    """
    population, erasure = setting.population, setting.experiment.request
    if not erasure.successive:
        return [Turn(1, 1, population.targets, population.unlearning)]
    named = erasure.targets
    order = tuple(dict.fromkeys(named)) if isinstance(named, list) else population.targets
    return [
        Turn(
            number,
            len(order),
            (target,),
            {
                client: population.pretraining[client] if client in order[number:] else data
                for client, data in population.unlearning.items()
                if client not in order[: number - 1]
            },
        )
        for number, target in enumerate(order, 1)
    ]
