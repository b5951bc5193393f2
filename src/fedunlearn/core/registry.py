"""Names for things: methods, losses, step rules, works, datasets, models, partitions."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from .errors import FedUnlearnError

if TYPE_CHECKING:
    from .phase import Phase

T = TypeVar("T")
M = TypeVar("M")


LISTED = 40
"""Names that a message lists at most."""


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """``; did you mean 'x'?`` where something close is known, else the list of what is.

    Another number is no misspelling: where numbers were given, the suggestion has the same ones.
    """
    names, given = sorted(known), str(name)
    close = get_close_matches(given, names, n=1, cutoff=0.5) or get_close_matches(given.lower(), names, n=1)
    if close and (_numbers(close[0]) == _numbers(given) or not _numbers(given)):
        return f"; did you mean {close[0]!r}?"
    more = f" and {len(names) - LISTED:,} more" if len(names) > LISTED else ""
    return f"; known: {', '.join(names[:LISTED])}{more}" if names else "; there are none yet"


def _numbers(name: str) -> list[str]:
    return re.findall(r"\d+", name)


@dataclass(frozen=True)
class Entry(Generic[T]):
    """A registered thing with what a listing says about it."""

    name: str
    make: T
    about: Mapping[str, str]


class Registry(Generic[T]):
    """A dictionary that registers by decorator and explains unknown names."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._entries: dict[str, Entry[T]] = {}

    def __call__(self, name: str, **about: str) -> Callable[[M], M]:
        def register(make: M) -> M:
            if name in self._entries:
                raise FedUnlearnError(f"{self._kind} {name!r} is registered twice: choose another name")
            self._entries[name] = Entry(name, cast(T, make), about)
            return make

        return register

    def __getitem__(self, name: str) -> T:
        return self.entry(name).make

    def entry(self, name: str) -> Entry[T]:
        if not isinstance(name, str) or name not in self._entries:
            raise FedUnlearnError(
                f"unknown {self._kind} {name!r}{did_you_mean(name, self._entries)}", code="unknown"
            )
        return self._entries[name]

    def __iter__(self) -> Iterator[Entry[T]]:
        return iter(sorted(self._entries.values(), key=lambda entry: entry.name))


method: Registry[Callable[..., tuple[Phase, ...]]] = Registry("method")
"""From a schedule and options to the phases of a method."""
loss: Registry[Callable[[Any, Any], Callable[[Any, Any], Any]]] = Registry("loss")
"""From the task and the job to a function of model and batch that local training minimises."""
step: Registry[Callable[[Any], Callable[[Any, Any, float], Any]]] = Registry("step rule")
"""From the job to a function of parameters, gradient and learning rate: what one local step subtracts."""
work: Registry[Callable[[Any, Any, Any], Mapping[str, Any]]] = Registry("work")
"""What clients compute beside training and measuring: from task, model and batches to named arrays."""
dataset: Registry[Callable[..., Any]] = Registry("dataset")
model: Registry[Callable[..., Any]] = Registry("model")
partition: Registry[Callable[..., Any]] = Registry("partition")
