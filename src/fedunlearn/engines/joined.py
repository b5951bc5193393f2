"""Two federations as one: clients elsewhere, and a member that the server keeps itself."""

from __future__ import annotations

from collections.abc import Mapping

from ..core import Accountable, Authorising, ClientId, Federation, Job, Replies, Selective, Task, Terms


class Joined:
    """Asks the local members here and everybody else through the other federation."""

    def __init__(self, federation: Federation, local: Federation) -> None:
        self._federation = federation
        self._local = local
        if isinstance(federation, Authorising):
            self.authorise = federation.authorise
            self.examine = federation.examine

    @property
    def task(self) -> Task:
        return self._federation.task

    def present(self) -> frozenset[ClientId]:
        return self._federation.present() | self._local.present()

    @property
    def authorised(self) -> ClientId | None:
        return self._federation.authorised if isinstance(self._federation, Accountable) else None

    def exchange(self, jobs: Mapping[ClientId, Job], terms: Terms = Terms()) -> Replies:
        here = self._local.present()
        near = {client: job for client, job in jobs.items() if client in here}
        far = {client: job for client, job in jobs.items() if client not in here}
        replies = self._federation.exchange(far, terms) if far else Replies({})
        return replies.with_later(self._local.exchange(near, terms)) if near else replies


class SelectiveJoined(Joined):
    """The same, where the clients elsewhere cannot carry out every job; local members carry out all."""

    def __init__(self, federation: Federation, local: Federation) -> None:
        super().__init__(federation, local)
        assert isinstance(federation, Selective)
        self.refusal = federation.refusal


def join(federation: Federation, local: Federation) -> Joined:
    """A federation and the members that the server keeps itself, as one."""
    kind = SelectiveJoined if isinstance(federation, Selective) else Joined
    return kind(federation, local)
