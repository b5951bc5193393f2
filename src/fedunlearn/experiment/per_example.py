"""The per-example test of an experiment: many federations that differ in training randomness only."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ..client.data import ClientData, Examples
from ..core import ClientId, FedUnlearnError, Outcome, State
from ..core.errors import require_count
from ..core.seeds import derive
from ..core.threads import one_thread
from ..data import PUBLIC
from ..driver import course, in_lockstep
from ..engines import Stacked, spread
from ..evidence import Confidences, Separation, separation
from ..evidence.per_example import FEWEST
from ..record import environment
from .reading import check
from .run import stop_rules
from .settings import Experiment
from .setup import Setting, prepare

BLOCK = 8
"""Federations that train as one computation. It affects the last digits of a result, so it is fixed."""

FEWEST_EXAMPLES = 50
"""Forgotten ones, and unseen ones."""

ORIGINAL, AGAIN, REFERENCE = "ω⁰", "retrain again", "reference"
"""Rows that every test has. All are compared with the reference, a retraining like ``retrain again``."""


@dataclass(frozen=True)
class PerExample:
    """The results of a per-example test by row: ``retrain again``, ``ω⁰``, and the methods."""

    experiment: Experiment
    federations: int
    rows: Mapping[str, Separation]
    failed: Mapping[str, str]
    """Methods that failed in some federation, and why."""
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        return {
            "experiment": self.experiment.model_dump(mode="json"),
            "environment": environment(),
            "federations": self.federations,
            "rows": {name: found.as_dict() for name, found in self.rows.items()},
            "failed": dict(self.failed),
            "seconds": self.seconds,
        }


def per_example(
    experiment: Experiment,
    methods: Sequence[str] = (),
    *,
    federations: int = 64,
    workers: int | None = None,
    progress: Callable[[float], None] = lambda share: None,
) -> PerExample:
    """Trains, unlearns and retrains many federations, and tests each forgotten example.

    All ``methods`` (by default that of the experiment) start from the same models ω⁰. ``workers`` does not
    affect the result. ``progress`` hears the share of the rounds that is done.
    """
    began = time.monotonic()
    require_count("federations", federations, FEWEST)
    _require_testable(experiment)
    chosen = {name: _with_method(experiment, name) for name in methods or (experiment.method,)}
    work = _Work(experiment, chosen)
    tasks: list[dict[str, Any]] = [
        {"row": row, "first": first, "count": min(BLOCK, federations - first)}
        for row in (ORIGINAL, AGAIN, REFERENCE)
        for first in range(0, federations, BLOCK)
    ]
    rounds = [work.rounds(task["row"]) * task["count"] for task in tasks]
    failed: dict[str, str] = {}
    parts: defaultdict[str, list[Tensor]] = defaultdict(list)
    done = 0
    for results in spread(work, tasks, workers):
        for result in results:
            failed = {**result["failed"], **failed}
            for name, odds in result["arrays"].items():
                parts[name].append(odds)
        done += len(results)
        progress(sum(rounds[:done]) / sum(rounds))
    found = {name: work.confidences(torch.cat(parts[name])) for name in parts if name not in failed}
    rows = {
        name: separation(found[name], found[REFERENCE])
        for name in (AGAIN, ORIGINAL, *chosen)
        if name in found
    }
    return PerExample(experiment, federations, rows, failed, time.monotonic() - began)


def _require_testable(experiment: Experiment) -> None:
    if experiment.backdoor.enabled:
        raise FedUnlearnError(
            "the per-example test is about clean targets, and these have a backdoor: set "
            "backdoor.enabled=false"
        )
    if experiment.request.successive:
        raise FedUnlearnError(
            "the per-example test forgets all targets at once: set request.successive=false"
        )
    if experiment.checkpoint is not None:
        raise FedUnlearnError("the per-example test trains every ω⁰ itself: remove the checkpoint")
    if not experiment.data.audit:
        raise FedUnlearnError("the per-example test needs unseen examples: set data.audit=0.4")
    if (experiment.device, experiment.precision) != ("cpu", "fp32"):
        raise FedUnlearnError("the per-example test computes on the CPU: set device=cpu precision=fp32")


def _with_method(experiment: Experiment, name: str, options: Mapping[str, Any] | None = None) -> Experiment:
    """The experiment with another method, checked; the options of the file belong to its own method."""
    if options is None:
        options = experiment.options if name == experiment.method else {}
    values = {**experiment.model_dump(mode="json"), "method": name, "options": dict(options)}
    return check(values, experiment.name)


class _Work:
    """What worker processes do: blocks of federations, each as one computation."""

    def __init__(self, experiment: Experiment, methods: Mapping[str, Experiment]) -> None:
        self._setting, self._methods = prepare(experiment), methods
        self._retrainings = {
            row: _with_method(
                experiment, "retrain", {"rounds": experiment.pretraining.rounds, "number": number}
            )
            for number, row in enumerate((REFERENCE, AGAIN), 1)
        }
        population = self._setting.population
        leaving = [population.unlearning[target] for target in population.targets]
        self._forgotten, self._unseen = _gathered("forget", leaving), _gathered("audit", leaving)
        self._stack(ORIGINAL, range(1))  # refuses at once what cannot be stacked

    def rounds(self, row: str) -> int:
        """Of one federation; the methods come with ω⁰, from which they start."""
        after = sum(phase.rounds for each in self._methods.values() for phase in each.phases())
        return self._setting.experiment.pretraining.rounds + (after if row == ORIGINAL else 0)

    def confidences(self, odds: Tensor) -> Confidences:
        forgotten = len(self._forgotten.y)
        return Confidences(odds[:, :forgotten].numpy(), odds[:, forgotten:].numpy())

    def __call__(self, task: Mapping[str, Any]) -> dict[str, Any]:
        row, block = task["row"], range(task["first"], task["first"] + task["count"])
        failed: dict[str, str] = {}
        models: dict[str, list[State]] = {}
        stack = self._stack(row, block)
        originals = self._pretrained(block) if row == ORIGINAL else self._fresh(block)
        if row == ORIGINAL:
            models[row] = originals
        for name, experiment in (self._methods if row == ORIGINAL else {row: self._retrainings[row]}).items():
            outcomes = self._forget(stack, block, experiment, originals)
            models[name] = [outcome.state for outcome in outcomes]
            if reasons := [outcome.reason for outcome in outcomes if outcome.status.failed]:
                failed[name] = reasons[0]
        if row in failed:
            raise FedUnlearnError(f"{row}: {failed[row]}")
        with one_thread():
            arrays = {
                name: torch.cat([stack.log_odds(each, held) for held in (self._forgotten, self._unseen)], 1)
                for name, each in models.items()
            }
        return {"arrays": arrays, "failed": failed}

    def _pretrained(self, block: range) -> list[State]:
        clients, plan = self._setting.population.pretraining, self._setting.experiment.pretraining
        stack = self._stack(ORIGINAL, block, clients)
        outcomes = in_lockstep(
            [
                course(
                    [self._setting.experiment.pretraining_phase()],
                    setting.request(state, clients, ()),
                    stack.member(place),
                    training=setting.training,
                    seed=derive("pre-training", setting.seed, number),
                    evaluate_every=plan.rounds + 1,
                    participation=setting.participation,
                    probes=(),
                )
                for place, (number, setting, state) in enumerate(
                    zip(block, self._settings(block), self._fresh(block), strict=True)
                )
            ],
            stack.exchange,
        )
        if reasons := [outcome.reason for outcome in outcomes if outcome.status.failed]:
            raise FedUnlearnError(reasons[0])
        return [outcome.state for outcome in outcomes]

    def _forget(
        self, stack: Stacked, block: range, experiment: Experiment, states: Sequence[State]
    ) -> list[Outcome]:
        population, phases = self._setting.population, experiment.phases()
        courses = []
        for place, (number, setting) in enumerate(zip(block, self._settings(block), strict=True)):
            request = setting.request(states[place], population.unlearning, population.targets)
            courses.append(
                course(
                    phases,
                    replace(request, seed=derive("method", setting.seed, number)),
                    stack.member(place),
                    training=setting.training,
                    seed=derive("unlearning", setting.seed, number),
                    evaluate_every=sum(phase.rounds for phase in phases) + 1,
                    participation=setting.participation,
                    stop=stop_rules(experiment),
                    probes=(),
                )
            )
        return in_lockstep(courses, stack.exchange)

    def _stack(self, row: str, block: range, clients: Mapping[ClientId, ClientData] | None = None) -> Stacked:
        """The clients of the request, or others, in orders that belong to a row of the table."""
        setting, population = self._setting, self._setting.population
        members = {**(clients or population.unlearning)}
        if population.public is not None:
            members[PUBLIC] = population.public
        return Stacked(setting.build(0), members, block, seed=derive(row, setting.seed))

    def _settings(self, block: range) -> list[Setting]:
        """Of each federation: models are drawn by its number, too."""
        return [replace(self._setting, build=_numbered(self._setting.build, number)) for number in block]

    def _fresh(self, block: range) -> list[State]:
        return [setting.fresh("pre-training") for setting in self._settings(block)]


def _numbered(build: Callable[[object], nn.Module], number: int) -> Callable[[object], nn.Module]:
    return lambda seed: build((seed, number))


def _gathered(name: str, leaving: Sequence[ClientData]) -> Examples:
    """A set of all targets."""
    sets = [held.evaluations[name] for held in leaving if name in held.evaluations]
    found = sum(len(each.y) for each in sets)
    if found < FEWEST_EXAMPLES:
        advice = "raise data.audit" if name == "audit" else "raise request.share"
        what = "unseen examples" if name == "audit" else "examples to forget"
        raise FedUnlearnError(
            f"the targets have {found} {what}, and the test needs {FEWEST_EXAMPLES}: "
            f"use more data, or {advice}"
        )
    return Examples(torch.cat([each.x for each in sets]), torch.cat([each.y for each in sets]))
