"""Requests about a model that a federation has trained elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch import nn

from .. import runs as record
from ..client.data import Data
from ..core import (
    ClientId,
    Federation,
    FedUnlearnError,
    History,
    Listener,
    LocalTraining,
    Outcome,
    Request,
    State,
    did_you_mean,
    names_of,
    require_federation,
    vectors,
)
from ..core.errors import warn
from ..core.hashes import module_hash
from ..core.history import sorted_kinds
from ..driver import Guards, Participation, StopRule, unlearn
from ..driver.guards import FLOOR
from ..methods import Pretraining, Schedule
from ..runs.running import finished
from .answering import answer, choose
from .memory import ANSWERED, JOURNAL
from .steps import Knowledge, Step
from .surroundings import Surroundings

THEIR_OWN = (
    "examples are named where Server holds the data, and here the clients do: let the node serve them as a "
    "part of its own, flower.Site(…, parts={'#forget': …}), and forget 'site-3#forget'"
)


def pretrain(
    request: Request,
    federation: Federation,
    rounds: int,
    lr: float,
    *,
    history: Iterable[str] = (),
    **options: Any,
) -> Request:
    """Train all clients of a request by federated averaging; return the request for the trained model.

    The named kinds of ``history`` are recorded for methods that need them; ``options`` go to ``unlearn``.
    """
    outcome = unlearn([Pretraining(rounds, lr, sorted_kinds(history))], request, federation, **options)
    if outcome.status.failed:
        raise FedUnlearnError(outcome.reason, code=outcome.status)
    recorded = History.from_tensors(outcome.state.memory)
    return replace(request.starting_from(outcome.state), history=recorded)


def forget(
    federation: Federation,
    model: nn.Module,
    targets: ClientId | Sequence[ClientId],
    folder: Path | str | None = None,
    *,
    method: str | None = None,
    schedule: Schedule | None = None,
    poisoned: bool = False,
    history: Path | str | History | None = None,
    training: LocalTraining = LocalTraining(),
    participation: Participation = Participation(redo=2),
    public: Data | None = None,
    build: Callable[[], nn.Module] | None = None,
    seed: int = 0,
    stop: Sequence[StopRule] = (),
    evaluate_every: int | None = None,
    gone: bool = False,
    guards: Guards | None = Guards(),
    floor: float | None = FLOOR,
    without: Iterable[ClientId] = (),
    cipher: record.Cipher | None = None,
    listeners: Sequence[Listener] = (),
    witnesses: Sequence[Listener] = (),
    **options: Any,
) -> Outcome:
    """Remove the targets from a model that a federation has trained; the module becomes the new model.

    ``folder`` is where the run is recorded: the same call continues a run that was stopped, to the same bits,
    and repeats the outcome of one that has ended, whether the module is the model before or after it.
    Other settings start a new run from the model before it. Without ``folder``, the run is not kept.
    A later request in the same folder starts from the model that the last one left behind; clients that have
    been forgotten take no part in it. A request that fails raises ``ForgettingFailed`` and leaves the module
    as it is.

    Without a ``method``, ``recommend`` chooses one, by ``poisoned`` and ``gone``. The server of a federation
    does not know how long its clients trained, nor at which rate: state ``rounds`` and
    ``schedule=Schedule(pretrain_lr=…)`` for methods that train a new model.

    ``history`` is the file that ``flower.Recording`` wrote; the rows of the targets are deleted from it; or
    it is what such a file holds. ``without`` names clients that take no part, such as those that another
    folder has forgotten. ``cipher`` encrypts the models that the folder keeps.
    Listeners hear of rounds that are recorded; ``witnesses`` hear of them before that, perhaps twice.
    ``gone`` says that the targets have left already: only methods that do not ask them can run then. Their
    names are checked against the history; without one, nobody knows who took part, and they are taken as
    given. Clients measure the model at the ends of phases unless ``evaluate_every`` says otherwise. Rounds
    are logged under ``fedunlearn``; on Flower, that is Flower's log. ``Server`` answers requests in one
    process and keeps the anchors of earlier ones.

    ``guards`` limit what a single client can do to the model: what they note becomes warnings, and None
    switches them off. ``floor`` is how much R-Acc may fall, as for ``Server.forget``.
    """
    require_federation(federation)
    if "examples" in options:
        raise FedUnlearnError(THEIR_OWN)
    named, left_out = names_of(targets, least=1), names_of(without, "without")
    for client in sorted({*left_out} - federation.present()):
        known = did_you_mean(client, federation.present())
        warn(f"client {client!r}, to be left out, is not present{known}", "absent")
    answered = [] if folder is None else _answered(Path(folder))
    requests = [request["targets"] for request in answered]
    place = requests.index(list(named)) if list(named) in requests else len(requests)
    before = module_hash(model)
    start = answered[place]["model_sha256"] if place < len(answered) else before
    if folder is not None and before != start and before not in _results(Path(folder), place):
        raise FedUnlearnError(
            f"{folder} has already forgotten {', '.join(named)}, starting from another model: give that "
            "model or the one that the request left behind, or choose another folder",
            code="forgotten",
        )
    for request in answered[:place] if gone or federation.present().issuperset(named) else ():
        if request["model_sha256"] == before:
            raise FedUnlearnError(
                f"this model still knows {', '.join(request['targets'])}, which {folder} has forgotten: "
                "start from the model that the last request left behind",
                code="forgotten",
            )
    surroundings = Surroundings(
        module=model,
        clients=federation,
        task=federation.task,
        training=training,
        participation=participation,
        public=public,
        build=build,
        seed=seed,
        listeners=listeners,
        witnesses=witnesses,
        cipher=cipher,
    )
    earlier = (client for request in answered[:place] for client in request["targets"])
    recorded = read_history(Path(history)) if isinstance(history, Path | str) else history or History()
    knowledge = Knowledge(
        State(vectors.flatten(model), buffers=vectors.buffers(model)),
        recorded,
        forgotten=(*left_out, *earlier),
        steps=place,
    )
    with TemporaryDirectory(prefix="fedunlearn-") if folder is None else nullcontext(folder) as memory:
        step = Step(surroundings, knowledge, Path(memory), named, gone=gone, start=start)
        way = choose(
            step,
            method,
            schedule,
            options,
            poisoned=poisoned,
            stop=stop,
            evaluate_every=sys.maxsize if evaluate_every is None else evaluate_every,
            guards=guards,
            floor=floor,
        )
        outcome, _ = answer(step, way, known=place < len(answered), answered=before != start)
    if folder is not None and place == len(answered):
        told = {"targets": list(named), "model_sha256": before}
        with record.locked(Path(folder) / "lock"):
            record.claim(Path(folder)).write({ANSWERED: record.json_bytes([*answered, told])})
    if isinstance(history, Path | str):
        remove_rows(Path(history), named)
    vectors.load(model, outcome.state)
    return outcome


def _answered(folder: Path) -> list[dict[str, Any]]:
    if (folder / JOURNAL).exists():
        raise FedUnlearnError(
            f"{folder} is the memory of a Server: use that, or choose another folder", code="occupied"
        )
    if record.verify(folder) is None and (folder / ANSWERED).exists():
        record.tell_unverified([folder])
    read = record.read_json(folder / ANSWERED) if (folder / ANSWERED).exists() else []
    if not isinstance(read, list) or not all(
        isinstance(each, dict) and each.keys() == {"targets", "model_sha256"} for each in read
    ):
        raise FedUnlearnError(f"{folder / ANSWERED} is damaged: {record.RECOVERY_HINT}", code="damaged")
    return read


def _results(folder: Path, place: int) -> list[str]:
    """The hashes of the models that the request at a place ended with."""
    return [
        record.read_outcome(step)["model_sha256"]
        for step in folder.glob(f"{place}-forget-*")
        if finished(step)
    ]


def read_history(path: Path) -> History:
    """What ``flower.Recording`` wrote."""
    if not path.exists():
        raise FedUnlearnError(
            f"there is no history at {path}: train with flower.Recording first", code="missing"
        )
    return History.from_tensors(record.read_tensors(path)[0])


def remove_rows(path: Path, clients: Sequence[ClientId]) -> None:
    """Delete what the file holds about clients; another request may have changed it meanwhile."""
    with record.locked(Path(f"{path}.lock"), wait=True):
        record.write_tensors(path, read_history(path).without(clients).tensors())
