"""Answers to requests: the method and its settings, one answer, and several to compare."""

from __future__ import annotations

import hashlib
import logging
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ..client import data as holdings
from ..client.parts import divided
from ..config.options import check_options, phases_of
from ..core import FedUnlearnError, Outcome, Phase, require_type, requirements
from ..core.errors import warn
from ..core.history import KINDS
from ..core.registry import method as methods
from ..driver import Guards, StopRule
from ..driver.stopping import require_rules
from ..methods import Schedule, recommend, recommended_options
from .steps import Step

LOG = logging.getLogger("fedunlearn")
ASKS_THE_GONE = (
    "{} asks the targets to help, and they are gone: use a method that does not, such as fast-retrain, "
    "retrain or federaser"
)
NEVER_TRAINED = "client {!r} never took part in training here, so there is nothing to forget"
NOT_SINCE = (
    "client {!r} has joined anew, but has not trained since, so there is nothing to forget: call "
    "server.train(…) first"
)
LACKING = {
    **requirements.REMEDIES,
    **{kind: f'train with server.train(…, history=["{kind}"]), on Flower flower.Recording' for kind in KINDS},
    "cluster": "train with server.train(…, clusters=2)",
    "slice": "train with server.train(…, slices=2)",
    "public": "give it by public=…",
}
"""What helps where a method needs something that is not there."""


class ForgettingFailed(FedUnlearnError):
    """A request that could not be completed; the model is as it was.

    The same call tries again. After ``guard_stop`` and ``harmed`` it fails again: change the settings.
    """

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.reason, code=outcome.status)
        self.outcome = outcome


@dataclass(frozen=True)
class Way:
    """How a request is answered."""

    method: str
    schedule: Schedule
    options: Mapping[str, Any]
    stop: Sequence[StopRule]
    evaluate_every: int
    guards: Guards | None
    floor: float | None
    reason: str
    """Why the method was chosen, if it was not named."""
    unknown: str
    """What to warn of before a new run."""

    @property
    def phases(self) -> tuple[Phase, ...]:
        return phases_of(self.method, self.schedule, self.options)

    @property
    def conditions(self) -> dict[str, Any]:
        """The settings that the driver takes."""
        return {name: getattr(self, name) for name in ("stop", "evaluate_every", "guards", "floor")}

    def plan(self, step: Step) -> dict[str, Any]:
        """The settings as they are recorded."""
        schedule = self.schedule
        named = {"level": "sample", "examples": step.parts} if step.parts else {}
        return {
            "method": self.method,
            "options": dict(self.options),
            "request": {"level": "client", "targets": list(step.targets), **named},
            "pretraining": {"lr": schedule.pretrain_lr},
            "unlearning": {"rounds": schedule.unlearn_rounds, "lr": schedule.unlearn_lr},
            "recovery": {"rounds": schedule.recover_rounds, "lr": schedule.recover_lr},
            "stop": [repr(rule) for rule in self.stop],
            "evaluate_every": None if self.evaluate_every == sys.maxsize else self.evaluate_every,
            **({} if self.guards is None else {"guards": asdict(self.guards)}),
            **({} if self.floor is None else {"floor": self.floor}),
        }


def choose(
    step: Step,
    method: str | None,
    schedule: Schedule | None,
    options: Mapping[str, Any],
    *,
    poisoned: bool = False,
    stop: Sequence[StopRule] = (),
    evaluate_every: int = 1,
    guards: Guards | None = None,
    floor: float | None = None,
) -> Way:
    """The way to answer a request: what is not stated follows from what is known of the training."""
    knowledge = step.knowledge
    require_type(isinstance(schedule, Schedule | None), "schedule", schedule, "give Schedule(…)")
    require_type(guards is None or isinstance(guards, Guards), "guards", guards, "give Guards() or None")
    require_rules(stop)
    options, stated, reason, unknown = dict(options), schedule is not None, "", ""
    if method is None:
        held = (step.surroundings.data.get(target) for target in step.targets)
        poisoned = poisoned or any(each and "backdoor" in each.evaluations for each in held)
        found = recommend(poisoned=poisoned, gone=step.gone, recorded=knowledge.history.kinds)
        method, options = found.method, {**({} if "momentum" in options else found.options), **options}
        reason = found.reason
    elif not stated and not options.keys() & {"rounds", "momentum"}:
        options = {**recommended_options(method), **options}
    check_options(f"method {method!r}", methods[method], options)
    if schedule is None:
        schedule = Schedule.after(knowledge.rounds, knowledge.lr) if knowledge.lr else Schedule()
    if not stated and "rounds" not in options and method in ("retrain", "fast-retrain"):
        options["rounds"] = knowledge.rounds or schedule.rounds
        if not knowledge.rounds:
            unknown = (
                "nobody knows here how long and at which rate this model was trained, so a new one gets "
                f"at most {schedule.rounds} rounds at rate {schedule.pretrain_lr:g}: state rounds and "
                "schedule=Schedule(pretrain_lr=…)"
            )
    if knowledge.lr is not None and schedule.pretrain_lr == Schedule.pretrain_lr:
        schedule = replace(schedule, pretrain_lr=knowledge.lr)
    return Way(method, schedule, options, stop, evaluate_every, guards, floor, reason, unknown)


def answer(step: Step, way: Way, *, known: bool = False, **options: Any) -> tuple[Outcome, Path]:
    """Answer the request of a step; return the outcome and its folder.

    Of a ``known`` request, the answer is there, and so it is where the step ``repeats`` a folder.
    """
    # A step that was begun may be continued, whoever is still there.
    if not known and options.get("repeats") is None and {*step.targets} <= {*step.clients}:
        require_able(step, way)
        retained = [client for client in step.clients if client not in step.targets]
        if way.reason:
            LOG.info("method %s: %s", way.method, way.reason)
        if way.unknown:
            warn(way.unknown, "effort-unknown")
        if step.gone and not step.knowledge.took_part:
            names, there = ", ".join(step.targets), ", ".join(retained[:20])
            LOG.warning("nobody knows whether %s took part: present are %s", names, there)
        LOG.info("targets: %s; retained: %d clients", ", ".join(step.targets), len(retained))
    name = f"forget-{slug('-'.join(step.targets))}-{slug(way.method)}"
    outcome, place = step.run(name, way.phases, way.plan(step), "request", **options, **way.conditions)
    if outcome.status.failed:
        raise ForgettingFailed(outcome)
    warn_of(outcome)
    return outcome, place


def require_able(step: Step, way: Way) -> None:
    """Refuse a request that has nothing to forget, or whose method lacks what it needs."""
    phases, known = way.phases, step.knowledge
    request = step.request(step.clients)
    if unknown := sorted({*step.holders} - known.took_part) if known.took_part else ():
        never = NOT_SINCE if unknown[0] in known.rejoined else NEVER_TRAINED
        raise FedUnlearnError(never.format(unknown[0]), code="not-forgotten")
    for problem in requirements.missing(phases, request, step.surroundings.task, way.method, LACKING):
        unrecorded = requirements.recorded(phases) - request.history.kinds
        raise FedUnlearnError(problem, code="history" if unrecorded else "unsuitable")
    if step.gone and "targets" in requirements.asks(phases):
        raise FedUnlearnError(ASKS_THE_GONE.format(way.method), code="absent")


def check_data(step: Step) -> None:
    """Warn of whole targets with other data than they trained with; refuse positions in such data."""
    data, known = step.surroundings.data, step.knowledge
    held = data, divided(data, known.examples)
    positions = {part.partition("#")[0] for part in step.parts}
    for client in sorted({*step.holders} & data.keys() & known.trained_with.keys()):
        trained, digest = known.trained_with[client]
        if digest in [holdings.digest(each[client].train) for each in held]:
            continue
        if client in positions:
            raise FedUnlearnError(
                f"the training data of {client!r} is not that of {trained}, so positions would name other "
                "examples: give it as it was then, in the same order, or train on it first",
                code="changed",
            )
        warn(
            f"the training data of {client} is not that of {trained}: forgetting is measured and "
            "audited on examples that the model may not have seen",
            "changed",
        )


def compare(
    step: Step,
    rows: Mapping[str, Mapping[str, Any]] | Sequence[str],
    schedule: Schedule | None,
    *,
    evaluate_every: int = 1,
    guards: Guards | None = Guards(),
) -> dict[str, Outcome]:
    """Run every row, unless one of them cannot be run."""
    fine = isinstance(rows, Mapping | Sequence) and not isinstance(rows, str)
    require_type(fine, "rows", rows, "give several methods, such as ['fedosd', 'retrain']")
    if not rows:
        raise FedUnlearnError("rows names no method: give several, such as ['fedosd', 'retrain']")
    given = rows if isinstance(rows, Mapping) else {row: {} for row in rows}
    for row, settings in given.items():
        remedy = "give the options of the row, such as {'method': 'fedosd'}"
        require_type(isinstance(settings, Mapping), f"row {row!r}", settings, remedy)
    check_data(step)
    ways = dict[str, Way]()
    for row, settings in given.items():
        options = dict(settings)
        method = str(options.pop("method", row))
        if method == "retrain" and step.knowledge.rounds:
            options.setdefault("rounds", step.knowledge.rounds)
        ways[row] = choose(step, method, schedule, options, guards=guards, evaluate_every=evaluate_every)
        require_able(step, ways[row])
    folder = f"compare-{slug('-'.join(step.targets))}/seed-{step.surroundings.seed}"
    for unknown in sorted({way.unknown for way in ways.values()} - {""}):
        warn(unknown, "effort-unknown")
    outcomes = dict[str, Outcome]()
    for row, way in ways.items():
        name = f"{folder}/{slug(row)}"
        outcome, _ = step.run(name, way.phases, way.plan(step), "request", **way.conditions)
        outcomes[row] = outcome
        step = replace(step, left_out=frozenset())
        if outcome.status.failed:
            warn(f"row {row!r} failed ({outcome.status}): {outcome.reason}", "row-failed")
        warn_of(outcome, row)
    return outcomes


def warn_of(outcome: Outcome, row: str = "") -> None:
    """Make Python warnings of what an outcome, or a row of a comparison, notes."""
    of_row = row and f" (row {row!r})"
    for warning in outcome.warnings:
        warn(warning + of_row, "outcome")
    if outcome.unheard and not outcome.status.failed:
        names = ", ".join(outcome.unheard)
        warn(
            f"these clients were never heard in this step, so nothing in it reflects them: {names}{of_row}",
            "unheard",
        )


def slug(name: str) -> str:
    """A name as a part of a folder's: short, and of letters that every system takes."""
    plain = re.sub(r"[^A-Za-z0-9.=_-]", "_", name).lstrip(".")
    if plain == name and len(plain) <= 60:
        return plain
    return f"{plain[:40]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
