"""The per-example test of an experiment: many federations that differ in training randomness only."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ..client.data import ClientData, Examples, batches
from ..core import ClientId, Federation, FedUnlearnError, Outcome, Phase, Request, Stage, State
from ..core.errors import require_count
from ..core.seeds import derive, generator
from ..core.threads import one_thread
from ..core.vectors import load
from ..data import PUBLIC
from ..driver import StopRule, unlearn
from ..experiment import Experiment, Setting, check, prepare
from ..experiment.run import stop_rules
from ..runs import environment
from ..tasks import Classification
from .separation import FEWEST, Confidences, Separation, separation

FEWEST_EXAMPLES = 50
"""Forgotten ones, and unseen ones."""

BATCH = 200
"""Examples that a model looks at together when it is tested."""

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
    """Train, unlearn and retrain many federations one after the other, and test each forgotten example.

    All ``methods`` (by default that of the experiment) start from the same models ω⁰. ``workers`` share the
    clients of a federation and do not affect the result. ``progress`` hears the share of the federations that
    is done.
    """
    began = time.monotonic()
    require_count("federations", federations, FEWEST)
    _require_testable(experiment)
    chosen = {name: _with_method(experiment, name) for name in methods or (experiment.method,)}
    retrainings = {
        row: _with_method(experiment, "retrain", {"rounds": experiment.pretraining.rounds, "number": number})
        for number, row in enumerate((REFERENCE, AGAIN), 1)
    }
    setting = prepare(experiment)
    model, population = setting.build(0), setting.population
    leaving = [population.unlearning[target] for target in population.targets]
    forgotten, unseen = _gathered("forget", leaving), _gathered("audit", leaving)
    odds: defaultdict[str, list[tuple[Tensor, Tensor]]] = defaultdict(list)
    failed: dict[str, str] = {}
    for number in range(federations):
        left = {name: each for name, each in chosen.items() if name not in failed}
        for row, outcome in _outcomes(setting, number, left, retrainings, workers).items():
            if not outcome.status.failed:
                odds[row].append(
                    (_log_odds(model, outcome.state, forgotten), _log_odds(model, outcome.state, unseen))
                )
            elif row in chosen:
                failed[row] = outcome.reason
            else:
                raise FedUnlearnError(f"{row}: {outcome.reason}", code=outcome.status)
        progress((number + 1) / federations)
    found = {
        row: Confidences(*(torch.stack(side).numpy() for side in zip(*odds[row], strict=True)))
        for row in (AGAIN, ORIGINAL, *chosen, REFERENCE)
        if row not in failed
    }
    reference = found.pop(REFERENCE)
    rows = {row: separation(confidences, reference) for row, confidences in found.items()}
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


def _with_method(experiment: Experiment, name: str, options: Mapping[str, Any] | None = None) -> Experiment:
    """The experiment with another method, checked; the options of the file belong to its own method."""
    if options is None:
        options = experiment.options if name == experiment.method else {}
    values = {**experiment.model_dump(mode="json"), "method": name, "options": dict(options)}
    return check(values, experiment.name)


def _outcomes(
    setting: Setting,
    number: int,
    methods: Mapping[str, Experiment],
    retrainings: Mapping[str, Experiment],
    workers: int | None,
) -> dict[str, Outcome]:
    """The outcome of every row in one federation; ω⁰ alone where its training fails."""
    own = _numbered(setting, ORIGINAL, number)
    clients, phase = own.population.pretraining, own.experiment.pretraining_phase()
    with own.federation(clients, workers, phase.stage) as federation:
        request = own.request(own.fresh("pre-training"), clients, ())
        original = _run(own, number, federation, [phase], request, "pre-training")
    outcomes = {ORIGINAL: original}
    if original.status.failed:
        return outcomes
    outcomes |= _forget(own, number, methods, original.state, workers)
    for row, experiment in retrainings.items():
        anew = _numbered(setting, row, number)
        outcomes |= _forget(anew, number, {row: experiment}, anew.fresh("pre-training"), workers)
    return outcomes


def _forget(
    setting: Setting, number: int, methods: Mapping[str, Experiment], start: State, workers: int | None
) -> dict[str, Outcome]:
    """What each method makes of the same model."""
    clients, targets = setting.population.unlearning, setting.population.targets
    request = setting.request(start, clients, targets)
    request = replace(request, seed=derive("method", setting.seed, number))
    with setting.federation(clients, workers, Stage.UNLEARNING) as federation:
        return {
            row: _run(
                setting,
                number,
                federation,
                experiment.phases(),
                request,
                "unlearning",
                stop_rules(experiment),
            )
            for row, experiment in methods.items()
        }


def _run(
    setting: Setting,
    number: int,
    federation: Federation,
    phases: Sequence[Phase],
    request: Request,
    purpose: str,
    stop: Sequence[StopRule] = (),
) -> Outcome:
    return unlearn(
        phases,
        request,
        federation,
        training=setting.training,
        seed=derive(purpose, setting.seed, number),
        evaluate_every=sum(phase.rounds for phase in phases) + 1,
        participation=setting.participation,
        stop=stop,
        probes=(),
    )


def _numbered(setting: Setting, row: str, number: int) -> Setting:
    """The setting of one federation, with first models and orders of examples of its own."""
    population, seed = setting.population, derive(row, setting.seed)

    def shuffled(client: ClientId, held: ClientData) -> ClientData:
        # Canaries no longer lie last: only an audit minds, and the test runs none.
        random = generator("order of examples", seed, number, client)
        return replace(held, train=held.train.take(torch.randperm(len(held.train.y), generator=random)))

    own = replace(
        population,
        pretraining={client: shuffled(client, held) for client, held in population.pretraining.items()},
        unlearning={client: shuffled(client, held) for client, held in population.unlearning.items()},
        public=None if population.public is None else shuffled(PUBLIC, population.public),
    )
    return replace(setting, population=own, build=lambda purpose: setting.build((purpose, number)))


def _log_odds(model: nn.Module, state: State, examples: Examples) -> Tensor:
    """log p/(1 − p) of the right label of each example."""
    load(model.eval(), state)
    labels, task = examples.y.unsqueeze(1), Classification()
    with one_thread(), torch.inference_mode():
        logits = torch.cat([task.logits(model, batch) for batch in batches(examples, BATCH)]).double()
        others = logits.scatter(1, labels, -torch.inf).logsumexp(1, keepdim=True)
        return (logits.gather(1, labels) - others).squeeze(1)


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
