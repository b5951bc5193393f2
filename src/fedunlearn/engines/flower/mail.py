"""Messages on their way to nodes and back, each with its own deadline."""

from __future__ import annotations

import re
import time
from collections.abc import Hashable
from typing import Generic, TypeVar

from flwr.app import Error, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

Key = TypeVar("Key", bound=Hashable)

FIRST_PAUSE, LONGEST_PAUSE = 0.02, 0.5
"""Seconds between two looks for replies; the pause grows while nothing arrives."""


class Mail(Generic[Key]):
    """Messages under way, each known by a key."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._pending: dict[str, tuple[Key, float]] = {}
        self._pause = FIRST_PAUSE

    @property
    def pending(self) -> set[Key]:
        return {key for key, _ in self._pending.values()}

    def send(self, key: Key, node: int, kind: str, content: RecordDict, seconds: float) -> bool:
        """Whether the message was accepted: it is not where the node is gone.

        Messages go one by one. In a list, Flower does not tell which one was refused.
        """
        message = Message(content, node, kind, ttl=seconds)
        accepted = [each for each in self._grid.push_messages([message]) if each]
        for identifier in accepted:
            self._pending[identifier] = key, time.monotonic() + seconds
        return bool(accepted)

    def arrived(self) -> list[tuple[Key, Message]]:
        """The replies that have come since the last look."""
        replies = self._grid.pull_messages(list(self._pending)) if self._pending else []
        found = [(reply, self._pending.pop(reply.metadata.reply_to_message_id, None)) for reply in replies]
        if found:
            self._pause = FIRST_PAUSE
        return [(sent[0], reply) for reply, sent in found if sent is not None]

    def overdue(self) -> list[Key]:
        """Whose time is up; their replies are no longer awaited."""
        now = time.monotonic()
        late = [identifier for identifier, (_, until) in self._pending.items() if now >= until]
        return [self._pending.pop(identifier)[0] for identifier in late]

    def pause(self) -> None:
        """Waits a little, longer each time until something arrives."""
        time.sleep(self._pause)
        self._pause = min(1.5 * self._pause, LONGEST_PAUSE)


def lost(reply: Message) -> bool:
    """Whether the node was gone before it could answer, as Flower sees it."""
    return reply.has_error() and reply.error.code == ErrorCode.NODE_UNAVAILABLE


REPORTED = re.compile(r"(?s)<class '(?:\w+\.)*(\w+)'>:<'(.*)'>")
"""How Flower reports an exception of a ClientApp."""
EXCEPTION = re.compile(r"[A-Za-z_][\w.]*: ")


def said(error: Error) -> str:
    """What an error says in one line; of a traceback, the exception at its end."""
    reason = (error.reason or "no reason given").strip()
    if found := REPORTED.fullmatch(reason):
        reason = ": ".join(found.groups())
    if "Traceback (most recent call last)" in reason:
        lines = reason.splitlines()
        last = max((n for n, line in enumerate(lines) if EXCEPTION.match(line)), default=0)
        reason = "\n".join(lines[last:])
    return " ".join(reason.split())
