"""Two federations as one: clients elsewhere, and a member that the server keeps itself."""

from __future__ import annotations

from collections.abc import Mapping

from ..core import ClientId, Federation, Job, Replies, Selective, Task, Terms


class Joined:
    """Asks the local members here and everybody else through the other federation."""

    def __init__(self, federation: Federation, local: Federation) -> None:
        self._federation = federation
        self._local = local

    @property
    def task(self) -> Task:
        return self._federation.task

    def present(self) -> frozenset[ClientId]:
        return self._federation.present() | self._local.present()

    def refusal(self, job: Job) -> str | None:
        """Why the other federation cannot carry out a job, if so; local members carry out all."""
        return self._federation.refusal(job) if isinstance(self._federation, Selective) else None

    def exchange(self, jobs: Mapping[ClientId, Job], terms: Terms = Terms()) -> Replies:
        here = self._local.present()
        near = {client: job for client, job in jobs.items() if client in here}
        far = {client: job for client, job in jobs.items() if client not in here}
        replies = self._federation.exchange(far, terms) if far else Replies({})
        return replies.with_later(self._local.exchange(near, terms)) if near else replies
