"""Names for things: methods, objectives, datasets, models, partitions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Generic, TypeVar

from .types import FedUnlearnError, Objective, Phase

T = TypeVar("T")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """``; did you mean 'x'?`` where something close is known, else the list of what is."""
    names = sorted(known)
    close = get_close_matches(name, names, n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(names)}"


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

    def __call__(self, name: str, **about: str) -> Callable[[T], T]:
        def register(make: T) -> T:
            if name in self._entries:
                raise FedUnlearnError(f"{self._kind} {name!r} is registered twice: choose another name")
            self._entries[name] = Entry(name, make, about)
            return make

        return register

    def __getitem__(self, name: str) -> T:
        return self.entry(name).make

    def entry(self, name: str) -> Entry[T]:
        if name not in self._entries:
            raise FedUnlearnError(f"unknown {self._kind} {name!r}{did_you_mean(name, self._entries)}")
        return self._entries[name]

    def __iter__(self) -> Iterator[Entry[T]]:
        return iter(sorted(self._entries.values(), key=lambda entry: entry.name))


method: Registry[Callable[..., tuple[Phase, ...]]] = Registry("method")
objective: Registry[Callable[[Mapping[str, Any]], Objective]] = Registry("objective")
dataset: Registry[Callable[..., Any]] = Registry("dataset")
model: Registry[Callable[..., Any]] = Registry("model")
partition: Registry[Callable[..., Any]] = Registry("partition")
