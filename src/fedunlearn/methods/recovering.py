"""Retraining that ends once the retained clients are as well off as before (ours)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ..core import ClientId, Replies, Request, Round, State, Status, train
from .retrain import FreshAveraging

PACES = ((0.8, 1.0), (0.5, 1.0), (0.0, 1.0), (0.0, 0.5), (0.0, 0.25))
"""Momentum and share of the learning rate, from fast to slow."""
PLAIN = 2
"""The pace of ``train``."""
SHORT = 10
"""Rounds below which there is no time for momentum."""
FEW = 5
"""Rounds in which the loss of plain averaging may double, as among a few clients that differ much."""
RISE = 0.3
"""The share of the progress so far that may be lost again with momentum; without, all of it."""


class Course(NamedTuple):
    """How training has gone, as the numbers of one tensor. A gap is a loss minus that with ω⁰."""

    pace: float = 0
    counted: float = 0
    """Rounds, without those that were taken back."""
    kept: float = 0
    """Rounds that the best model has had."""
    tail: float = 0
    """Rounds at a falling rate; 0 until they begin."""
    left: float = 0
    """Of the tail."""
    first: float = math.nan
    """The gap of the new model."""
    best: float = math.inf
    slack: float = 0

    def gives_up(self, gap: float, longest: int) -> bool:
        """Whether the loss rises, or has not fallen in a fifth (without momentum: half) of the rounds."""
        fast = PACES[int(self.pace)][0] > 0
        allowed = max(self.slack, (RISE if fast else 1.0) * (self.first - self.best))
        sure = fast or self.counted >= FEW or not gap <= 10 * self.slack
        rises = sure and not gap <= self.best + allowed
        patience = max(FEW, longest // (5 if fast else 2))
        return rises or (self.counted >= patience and self.best > self.first - self.slack / 10)


@dataclass(frozen=True)
class RecoveringAveraging(FreshAveraging):
    """Train a new model until the retained clients' mean training loss is that with ω⁰; then lower the rate.

    Where the loss rises, or does not fall, return to the best model and go on at a slower pace. Train at
    least half of ``longest``, because the targets may have held ω⁰ back. Of ω⁰ only this loss is used, and
    only for these decisions. Clients that report no losses get plain averaging.
    """

    longest: int = 1
    """Rounds that may count; ``rounds`` includes those that are taken back."""

    def start(self, request: Request, state: State) -> State:
        unknown = torch.full((len(request.retained),), math.nan, dtype=torch.float64)
        course = Course(pace=PLAIN if self.longest < SHORT else 0)
        return _on(super().start(request, state), course).remember(wanted=unknown)

    def round(self, request: Request, state: State) -> Round:
        course, wanted = Course(*state.memory["course"].tolist()), state.memory["wanted"]
        new = {client for client, loss in zip(request.retained, wanted, strict=True) if loss.isnan()}
        if new := new.intersection(request.asked):
            before = yield {client: train(request.params, buffers=request.buffers) for client in new}
            wanted = wanted.where(~wanted.isnan(), _losses(before, request))
            state = state.remember(wanted=wanted)
        momentum, share = PACES[int(course.pace)]
        if course.tail:
            share *= (course.left - 0.5) / course.tail
        replies = yield {client: train(state.params, lr=share * self.lr) for client in request.asked}
        now = _losses(replies, request)
        known = now.isfinite() & wanted.isfinite()
        gap = float((now - wanted)[known].mean())
        if not wanted.isfinite().any():
            momentum = 0.0
        elif not course.tail:
            if math.isnan(course.first):
                course = course._replace(first=gap, slack=0.1 * float(now[known].mean()))
            if course.gives_up(gap, self.longest):
                return self._slower(state, course)
            if gap <= course.best:
                course, state = (
                    course._replace(best=gap, kept=course.counted),
                    state.remember(best=state.params),
                )
        mean = replies.some(request.asked).average()
        velocity = momentum * state.memory.get("velocity", torch.zeros_like(mean)) + mean
        moved = state.step(-mean - momentum * velocity, loss_gap=gap).remember(velocity=velocity)
        return self._counted(moved, course, gap)

    def _slower(self, state: State, course: Course) -> State:
        """The best model so far, at the next pace."""
        if course.pace + 1 == len(PACES):
            rates = f"from {self.lr:g} down to {PACES[-1][1] * self.lr:g}"
            return state.halt(
                Status.DIVERGED,
                f"the retained clients' training loss does not fall at any rate {rates}: scale the "
                "inputs, check the data, or state rounds and a learning rate",
            )
        best = state.memory.get("best", state.params)
        back = course._replace(pace=course.pace + 1, counted=course.kept)
        return _on(state.move_to(best), back).remember(velocity=torch.zeros_like(best))

    def _counted(self, state: State, course: Course, gap: float) -> State:
        """The state after one more round: the tail begins, or training ends."""
        course = course._replace(counted=course.counted + 1, left=max(0.0, course.left - 1))
        rest = self.longest - course.counted
        if rest <= 0 or (course.tail and not course.left):
            status = Status.CONVERGED if gap <= 0 else Status.DONE
            return _on(state, course).halt(status, self._said(state, course, gap))
        shortest = math.ceil(self.longest / (5 if PACES[int(course.pace)][0] else 10))
        if not (course.tail or math.isnan(gap)) and (gap <= 0 or rest <= shortest):
            wanted = max(3, course.counted // 2, self.longest // 2 - course.counted)
            tail = min(rest, wanted if gap <= 0 else shortest)
            course = course._replace(tail=tail, left=tail)
        return _on(state, course)

    def _said(self, state: State, course: Course, gap: float) -> str:
        """What was done, and what it cost."""
        back = state.round + 1 - int(course.counted)
        momentum, share = PACES[int(course.pace)]
        slower = (
            f", and {back} that were taken back because losses rose: momentum is {momentum:g} and the rate "
            f"{share * self.lr:g} since"
            if back
            else ""
        )
        loss = (
            "the retained clients report no losses, which could have ended it earlier"
            if math.isnan(gap)
            else f"the retained clients' loss is {abs(gap):.2g} {'above' if gap > 0 else 'below'} that before"
        )
        return f"a new model in {course.counted:g} rounds (at most {self.longest}){slower}; {loss}"


def _on(state: State, course: Course) -> State:
    return state.remember(course=torch.tensor(course, dtype=torch.float64))


def _losses(replies: Replies, request: Request) -> Tensor:
    """The training loss of each retained client; infinite if it reported none, NaN if it was not asked."""

    def loss(client: ClientId) -> float:
        if client not in replies:
            return math.inf if client in replies.missing else math.nan
        mean = replies[client].statistics.get("train", {}).get("loss")
        return math.inf if mean is None else mean.value

    return torch.tensor([loss(client) for client in request.retained], dtype=torch.float64)
