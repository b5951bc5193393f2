"""The audit of the last request of a server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from shlex import quote

from .. import runs as record
from ..auditing import Model, as_state, audit
from ..client import data as holdings
from ..client.parts import divided
from ..core import FedUnlearnError, Outcome
from ..core.errors import warn
from ..evidence import Evidence
from ..methods import Schedule
from .answering import ForgettingFailed, compare
from .steps import Answered, Step


def audit_last(
    step: Step,
    retrained: Model | None,
    again: Model | None,
    references: Sequence[Model],
    *,
    keep: bool,
) -> Evidence:
    """Compare the present model with retraining, which starts from before the request."""
    last, surroundings, known = step.knowledge.last, step.surroundings, step.knowledge
    if last is None:
        raise FedUnlearnError(
            "there is no request to audit: nothing has been forgotten, or who was has joined anew",
            code="not-forgotten",
        )
    targets = last.targets
    if record.read_outcome(last.place)["model_sha256"] != record.model_hash(known.state):
        raise FedUnlearnError(
            f"the model has been trained further since {', '.join(targets)} left it: audit right after "
            "the request, or run the script up to it again, which repeats its steps",
            code="other-model",
        )
    holders = {target.partition("#")[0] if target in known.examples else target for target in targets}
    if absent := sorted(holders.difference(surroundings.present)):
        back = "give its data" if surroundings.federation is None else "start its SuperNode"
        raise FedUnlearnError(
            f"{absent[0]!r} is not present, and nobody else can tell whether its data is forgotten: "
            f"{back} to audit",
            code="absent",
        )
    if retrained is None:
        _require_enough(step, last)
        parts = {part: rows for part, rows in known.examples.items() if part in targets}
        before = replace(step, knowledge=last.before, targets=targets, parts=parts)
        retrained, again = _retrained(before, last.place)
    asked = (*step.clients, *targets)
    with surroundings.engine(asked, known.examples) as federation:
        found = audit(
            federation,
            known.state,
            targets=targets,
            retrained=retrained,
            original=last.before.state,
            again=again,
            references=references,
            clients=asked,
            method=last.method,
        )
    if not keep:
        return found
    models = {"model": known.state, "retrained": retrained, "original": last.before.state, "again": again}
    models |= {f"reference {number}": each for number, each in enumerate(references, 1)}
    used = {name: {"sha256": record.model_hash(as_state(each))} for name, each in models.items() if each}
    used["model"] |= {"made": "run", "method": last.method}
    return replace(found, files=_written(last.place, record.json_bytes({**found.to_json(), "models": used})))


def _require_enough(step: Step, last: Answered) -> None:
    """Refuse targets with too few examples before anything is trained."""
    held = divided(step.surroundings.data, step.knowledge.examples)
    for target in held.keys() & {*last.targets}:
        unseen = held[target].evaluations
        sets = held[target].train, unseen.get("audit", unseen.get("test", held[target].train))
        if least := [count for count in map(holdings.size, sets) if count < 2]:
            raise FedUnlearnError(
                f"{target} holds {least[0]} forgotten or unseen examples, and an audit needs two of "
                "each at least, and 600 for a verdict"
            )


def _retrained(step: Step, place: Path) -> list[Outcome]:
    """Two models trained without the targets, as long as the present one or as the request stated."""
    begun, trained = record.read_json(place / "experiment.json"), step.knowledge.rounds
    rounds = trained or begun["options"].get("rounds", 0)
    if not rounds:
        raise FedUnlearnError(
            "this server has not trained the model, so nobody knows how long a retraining takes: compare "
            "two rows of retrain, {'a': {'method': 'retrain', 'rounds': …, 'number': 2}, 'b': {…, "
            "'number': 3}}, and call server.audit(outcomes['a'], again=outcomes['b'])"
        )
    rows = {f"retrain {n}": {"method": "retrain", "rounds": rounds, "number": n} for n in (2, 3)}
    schedule = None if trained else Schedule(pretrain_lr=begun["pretraining"]["lr"])
    made = [*compare(step, rows, schedule).values()]
    if failed := [outcome for outcome in made if outcome.status.failed]:
        raise ForgettingFailed(failed[0])
    return made


def _written(place: Path, content: bytes) -> tuple[str, ...]:
    """The files in which evidence is kept, and shown if it can be."""
    from ..report import collect, write_report

    with record.locked(place / "lock"):
        record.claim(place).write({"evidence.json": content})
    files = [str(place / "evidence.json")]
    try:
        files.append(str(write_report(collect([place]), place / "report.html")))
    except FedUnlearnError as error:
        warn(f"no page is written ({error}); then: fedunlearn report {quote(str(place))}", "no-page")
    return tuple(files)
