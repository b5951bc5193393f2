"""Messages on their way to nodes and back, each with a deadline."""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

from flwr.app import Error, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

Key = TypeVar("Key", bound=Hashable)

FIRST_PAUSE, LONGEST_PAUSE = 0.02, 0.5
"""Seconds between two looks for replies; the pause grows while nothing arrives."""


class Mail(Generic[Key]):
    """Messages of one exchange: sent once each, collected until all are back or the time is up."""

    def __init__(self, grid: Grid, seconds: float) -> None:
        self._grid = grid
        self._until = time.monotonic() + seconds
        self._pause = FIRST_PAUSE
        self.pending: dict[str, Key] = {}

    @property
    def seconds_left(self) -> float:
        return self._until - time.monotonic()

    def send(self, key: Key, node: int, kind: str, content: RecordDict) -> bool:
        """Whether the message was accepted: it is not where the node is gone.

        Messages go one by one. In a list, Flower does not tell which one was refused.
        """
        message = Message(content, node, kind, ttl=max(1.0, self.seconds_left))
        accepted = [each for each in self._grid.push_messages([message]) if each]
        for identifier in accepted:
            self.pending[identifier] = key
        return bool(accepted)

    def arrived(self) -> Iterator[tuple[Key, Message]]:
        """The replies that have come since the last look, after a pause where there are none."""
        replies = list(self._grid.pull_messages(list(self.pending))) if self.pending else []
        for reply in replies:
            key = self.pending.pop(reply.metadata.reply_to_message_id, None)
            if key is not None:
                yield key, reply
        if replies:
            self._pause = FIRST_PAUSE
        elif self.seconds_left > 0:
            time.sleep(min(self._pause, self.seconds_left))
            self._pause = min(1.5 * self._pause, LONGEST_PAUSE)


def lost(reply: Message) -> bool:
    """Whether the node was gone before it could answer, as Flower sees it."""
    return reply.has_error() and reply.error.code == ErrorCode.NODE_UNAVAILABLE


def last_line(error: Error) -> str:
    """What an error says: of a traceback, its last line."""
    return ((error.reason or "").strip().splitlines() or ["no reason given"])[-1]
