"""The states of a request: the words by which the ledger records them never change."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class RequestState(StrEnum):
    """The state of a request."""

    advice: str
    """The step that a person takes next; ``{erase}`` stands for what answers a request."""

    def __new__(cls, word: str, advice: str) -> RequestState:
        member = str.__new__(cls, word)
        member._value_, member.advice = word, advice
        return member

    RECEIVED = "received", "hand the request in again: {erase}"
    REFUSED = "refused", "none; the client may sign a new request"
    AUTHENTICATED = "authenticated", "look at the plan, then {erase}"
    ADMITTED = "admitted", "continue with {erase}"
    UNLEARNING = "unlearning", "continue with {erase}"
    VERIFIED = "verified", "continue with {erase}"
    RECOVERING = "recovering", "continue with {erase}"
    CERTIFIED = "certified", "send the certificate; fedunlearn purge"
    PARTIAL = "partial", "the client disconnected: wait for it and erase again, or retrain without it"
    NO_DIRECTION = (
        "no_direction",
        "no step forgets without harm to others: erase again with another method",
    )
    GUARD_STOP = "guard_stop", "look at the warnings, then erase again with another method"
    ESCALATED = (
        "escalated",
        "decide: erase again with another method or more rounds, or withdraw the model",
    )
    PURGED = "purged", "none"

    @property
    def next(self) -> tuple[RequestState, ...]:
        """The states that may follow."""
        return _NEXT[self]

    @property
    def accepted(self) -> bool:
        """Whether the desk has authenticated the request."""
        return self not in FIRST

    @property
    def under_way(self) -> bool:
        """Whether the request is being answered."""
        return self in (
            RequestState.ADMITTED,
            RequestState.UNLEARNING,
            RequestState.VERIFIED,
            RequestState.RECOVERING,
        )

    @property
    def failed(self) -> bool:
        """Whether the request waits for a decision."""
        return self in FAILURES

    @property
    def open(self) -> bool:
        """Whether the client still waits for its erasure."""
        return self not in (RequestState.REFUSED, RequestState.CERTIFIED, RequestState.PURGED)


FAILURES = (
    RequestState.PARTIAL,
    RequestState.NO_DIRECTION,
    RequestState.GUARD_STOP,
    RequestState.ESCALATED,
)
"""The states in which a request waits for a decision."""
FIRST = (RequestState.RECEIVED, RequestState.REFUSED)
"""The states in which a request can begin."""
_NEXT: Mapping[RequestState, tuple[RequestState, ...]] = {
    RequestState.RECEIVED: (RequestState.RECEIVED, RequestState.AUTHENTICATED, RequestState.REFUSED),
    RequestState.REFUSED: FIRST,
    RequestState.AUTHENTICATED: (RequestState.ADMITTED, RequestState.PURGED),
    RequestState.ADMITTED: (RequestState.UNLEARNING, RequestState.PURGED),
    RequestState.UNLEARNING: (RequestState.VERIFIED, RequestState.RECOVERING, *FAILURES, RequestState.PURGED),
    RequestState.RECOVERING: (RequestState.VERIFIED, *FAILURES, RequestState.PURGED),
    RequestState.VERIFIED: (
        RequestState.VERIFIED,
        RequestState.RECOVERING,
        RequestState.CERTIFIED,
        *FAILURES,
        RequestState.PURGED,
    ),
    **dict.fromkeys(FAILURES, (RequestState.ADMITTED, RequestState.PURGED)),
    RequestState.CERTIFIED: (RequestState.PURGED,),
    RequestState.PURGED: (),
}
