"""Admitting a request: whether it can be answered now, and from which model."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from ..authority import stated_model
from ..core import ClientId, Federation, FedUnlearnError, History, Request, State, vectors
from ..core.hashes import model_hash
from ..record import fingerprint, json_bytes, read_state, read_tensors, write
from ..record.files import explained, tensor_bytes
from ..record.states import state_bytes
from ..server import fresh_model
from .desk import Case, Desk
from .plan import Plan, make_plan
from .sealing import Key

HISTORY = "history.sealed"


@dataclass(frozen=True)
class Work:
    """A request with what is needed to answer it."""

    desk: Desk
    request: str
    client: ClientId
    federation: Federation
    model: nn.Module
    method: str
    gone: bool
    engine: str

    @property
    def place(self) -> Path:
        return self.desk.place(self.request)

    @property
    def key(self) -> Key:
        return self.desk.key(self.request)

    @property
    def case(self) -> Case:
        return self.desk.case(self.request)

    def tell(self, event: str, **fields: Any) -> None:
        self.desk.ledger.append(self.request, event, **fields)


def plan_erasure(
    desk: Desk,
    client: ClientId,
    federation: Federation,
    model: nn.Module,
    *,
    history: History | None = None,
    gone: bool = False,
    retrainings: int = 0,
    build: Callable[[], nn.Module] | None = None,
) -> Plan:
    """What answering a request of a client would take; it changes nothing."""
    policy = desk.policy
    present = federation.present()
    clients = tuple(sorted({*present, client}.difference(desk.forgotten(present))))
    request = Request(
        vectors.flatten(model),
        clients,
        (client,),
        lambda purpose: fresh_model(model, build, policy.seed, purpose),
        buffers=vectors.buffers(model),
        shapes=vectors.shapes(model),
        history=history or History(),
        seed=policy.seed,
    )
    return make_plan(
        federation,
        request,
        policy.method or None,
        policy.stages,
        options=policy.options,
        participation=policy.taking_part,
        guards=policy.guards.guards(),
        training=policy.local_training,
        gone=gone,
        smallest=policy.smallest,
        retrainings=retrainings,
    )


def admit(work: Work, history: History | None, build: Callable[[], nn.Module] | None) -> None:
    """Checks that the request can be answered; keeps the model before it, encrypted, while it is needed."""
    before = State(vectors.flatten(work.model), buffers=vectors.buffers(work.model))
    _check_turn(work, model_hash(before))
    plan = plan_erasure(
        work.desk, work.client, work.federation, work.model, history=history, gone=work.gone, build=build
    )
    if plan.problems:
        more = f" (and {len(plan.problems) - 1} more: fedunlearn plan)" if len(plan.problems) > 1 else ""
        raise FedUnlearnError(f"the request cannot be answered yet: {plan.problems[0]}{more}")
    if work.case.standing.failed:
        with explained(work.place / "run"):
            shutil.rmtree(work.place / "run")
    write(work.place / "plan.json", json_bytes(plan.as_dict()), private=True)
    write(work.place / "omega0.sealed", work.key.seal(state_bytes(before)), private=True)
    recorded: dict[str, str] = {}
    if history is not None:
        sealed = work.key.seal(tensor_bytes(history.tensors()))
        write(work.place / HISTORY, sealed, private=True)
        recorded["history"] = hashlib.sha256(sealed).hexdigest()
    work.tell(
        "admitted",
        model=model_hash(before),
        method=plan.method,
        retained=plan.online.retained,
        rounds=sum(phase.rounds for phase in plan.phases),
        plan=_fingerprint(plan),
        **recorded,
    )


def _check_turn(work: Work, model: str) -> None:
    """Requests are answered one after the other, each from the model that the one before it left behind."""
    for other in work.desk.cases():
        if other.id != work.request and other.under_way:
            raise FedUnlearnError(f"request {other.id} is {other.standing}: finish or purge it first")
    installed = [entry for entry in work.desk.ledger.entries if entry.event == "installed"]
    if installed and installed[-1].fields["model"] == model:
        return
    replaced = [work.desk.case(entry.request).last("admitted") for entry in installed]
    if model in [admitted.fields["model"] for admitted in replaced if admitted]:
        raise FedUnlearnError(
            "the model still knows a client that this desk has forgotten: put the one that was installed "
            "last back into production"
        )
    if model != stated_model(work.desk.document(work.request)):
        raise FedUnlearnError(
            "the model is neither the one that the request names nor the one that was installed last: put "
            "one of them back into production, or let the client sign a new request"
        )


def overtaken(work: Work) -> bool:
    """Whether another request has replaced the model since this one, which failed, began with it."""
    case, admitted = work.case, work.case.last("admitted")
    later = [entry.number for entry in work.desk.ledger.entries if entry.event == "installed"]
    return case.standing.failed and admitted is not None and max(later, default=0) > admitted.number


def admitted_model(work: Work) -> State:
    """The model before the request."""
    path, admitted = work.place / "omega0.sealed", work.case.last("admitted")
    state = read_state(path, work.key)[0]
    if admitted is None or model_hash(state) != admitted.fields["model"]:
        raise FedUnlearnError(f"{path} is not the model that was admitted: restore it from a copy")
    return state


def admitted_history(work: Work) -> History | None:
    """What training recorded, if it was given."""
    path, admitted = work.place / HISTORY, work.case.last("admitted")
    expected = admitted.fields.get("history") if admitted else None
    content = path.read_bytes() if path.exists() else b""
    if expected is None:
        return None
    if hashlib.sha256(content).hexdigest() != expected:
        raise FedUnlearnError(f"{path} is not the history that was admitted: restore it from a copy")
    return History.from_tensors(read_tensors(path, work.key)[0])


def _fingerprint(plan: Plan) -> str:
    """Of what a plan says, without the time that it estimates."""
    told = plan.as_dict()
    return fingerprint({name: told[name] for name in told.keys() - {"seconds", "timing", "sentences"}})


def chosen_method(work: Work) -> str:
    """The method of the desk's settings, or the one that the plan chose."""
    admitted = work.case.last("admitted")
    return work.desk.policy.method or str(admitted.fields["method"] if admitted else "")
