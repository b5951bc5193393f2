"""Clients that cheat: a federation in which named clients send something else than what they computed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch

from fedunlearn import Federation, Job, Replies, Reply, Task, Terms
from fedunlearn.core import ClientId, Jobs, Mean, Vector
from fedunlearn.core.seeds import generator

NO_TERMS = Terms()


class Attacked:
    """Some clients answer jobs of training as their attacks say; everything else is the federation's.

    ``lie`` lets them also report a loss of zero whenever they measure a model.
    """

    def __init__(
        self, federation: Federation, attacks: Mapping[ClientId, Attack], *, lie: bool = False
    ) -> None:
        self.honest, self._attacks, self._lie = federation, attacks, lie
        self.trainings = 0
        """Exchanges of training so far."""
        self.cheats = 0
        """Replies that were not what a client had computed."""
        self.sent: dict[ClientId, list[Reply]] = {}
        """What each client sent in earlier exchanges of training."""

    @property
    def task(self) -> Task:
        return self.honest.task

    def present(self) -> frozenset[ClientId]:
        return self.honest.present()

    def exchange(self, jobs: Jobs, terms: Terms = NO_TERMS) -> Replies:
        replies = self.honest.exchange(jobs, terms)
        found = dict(replies)
        for client in self._attacks.keys() & found.keys():
            if jobs[client].work == "train":
                found[client] = self._attacks[client](Seen(self, client, jobs, terms, replies))
                self.cheats += found[client] is not replies[client]
            elif self._lie and jobs[client].work == "measure":
                found[client] = _flattered(found[client])
        if any(job.work == "train" for job in jobs.values()):
            self.trainings += 1
            for client, reply in replies.items():
                if reply.displacement is not None:
                    self.sent.setdefault(client, []).append(
                        replace(reply, displacement=reply.displacement.clone())
                    )
        return Replies(found, replies.missing)


class Seen:
    """What an attacker knows in one exchange: its own honest reply, and as much of the rest as it likes."""

    def __init__(
        self, federation: Attacked, client: ClientId, jobs: Jobs, terms: Terms, replies: Replies
    ) -> None:
        self.federation, self.client, self.jobs, self.terms, self.replies = (
            federation,
            client,
            jobs,
            terms,
            replies,
        )

    @property
    def job(self) -> Job:
        return self.jobs[self.client]

    @property
    def own(self) -> Reply:
        return self.replies[self.client]

    def sends(self, displacement: Vector) -> Reply:
        return replace(self.own, displacement=displacement)


Attack = Callable[[Seen], Reply]


def _flattered(reply: Reply) -> Reply:
    return replace(
        reply,
        statistics={
            name: {score: Mean(0.0, mean.count) if score == "loss" else mean for score, mean in means.items()}
            for name, means in reply.statistics.items()
        },
    )


def scaled(factor: float) -> Attack:
    """Sends its update multiplied; −1 negates it."""
    return lambda seen: seen.sends(seen.own.moved * factor)


def noise(seen: Seen) -> Reply:
    """Sends random numbers as long as its update."""
    names = "attack", seen.client, seen.federation.trainings
    random = torch.randn(seen.own.moved.shape, generator=generator(*names), dtype=seen.own.moved.dtype)
    return seen.sends(random * (seen.own.moved.norm() / random.norm()))


def aimed_at(victim: ClientId, factor: float = 1.0) -> Attack:
    """Sends what its job comes to on the data of another client."""

    def attack(seen: Seen) -> Reply:
        reply = seen.federation.honest.exchange({victim: seen.job}, seen.terms)[victim]
        return seen.sends(reply.moved * factor)

    return attack


def copied_from(other: ClientId, share: float = 0.0, factor: float = 1.0) -> Attack:
    """Sends another client's update plus that share of noise; its own where the other sends none."""

    def attack(seen: Seen) -> Reply:
        if other not in seen.replies or seen.replies[other].displacement is None:
            return seen.own
        moved = seen.replies[other].moved
        names = "attack", seen.client, seen.federation.trainings
        random = torch.randn(moved.shape, generator=generator(*names), dtype=moved.dtype)
        return seen.sends(factor * (moved + random * (share * moved.norm() / random.norm())))

    return attack


def mixed(other: ClientId, third: ClientId, share: float = 0.01) -> Attack:
    """Sends one client's update and another's in equal parts, so that theirs together leave no direction."""

    def attack(seen: Seen) -> Reply:
        if any(c not in seen.replies or seen.replies[c].displacement is None for c in (other, third)):
            return seen.own
        names = "attack", seen.client, seen.federation.trainings
        one, two = seen.replies[other].moved, seen.replies[third].moved
        random = torch.randn(one.shape, generator=generator(*names), dtype=one.dtype)
        sent = two / two.norm() - one / one.norm() + share * random / random.norm()
        return seen.sends(sent * two.norm())

    return attack


def idle(seen: Seen) -> Reply:
    """A free rider: sends zeros."""
    return seen.sends(torch.zeros_like(seen.own.moved))


def stale(seen: Seen) -> Reply:
    """A free rider: computes once and sends that for ever."""
    earlier = seen.federation.sent.get(seen.client)
    return seen.sends(earlier[0].moved) if earlier else seen.own


def only_after(trainings: int, attack: Attack) -> Attack:
    """Is honest for so many exchanges of training."""
    return lambda seen: attack(seen) if seen.federation.trainings >= trainings else seen.own
