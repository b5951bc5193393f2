"""Whether a request can be answered now, and what is kept, encrypted, while it is."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from dataclasses import replace

from torch import nn

from ..authority import stated_model
from ..core import ClientId, Federation, FedUnlearnError, History, Request, State, vectors
from ..core.hashes import model_hash
from ..record import fingerprint, json_bytes, read_state, read_tensors, write
from ..record.files import explained, tensor_bytes
from ..record.states import state_bytes
from ..server import fresh_model
from .certifying import NOTICEABLE, RETRAINED, check_words
from .desk import Desk
from .plan import Plan, make_plan
from .work import RUN, Work

ORIGINAL, HISTORY = "omega0.sealed", "history.sealed"


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
    trained: int | None = None,
) -> Plan:
    """What answering a request of a client would take; it changes nothing; ``trained``: see ``make_plan``."""
    policy = desk.policy
    present = federation.present()
    clients = tuple(sorted({*present, client}.difference(desk.forgotten(present - {client}))))
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
    plan = make_plan(
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
        trained=trained,
    )
    points = f"{100 * policy.floor:g} points of accuracy is not installed; above {100 * NOTICEABLE:g}, the"
    floor = f"a model that costs the retained clients more than {points} certificate says so"
    return replace(plan, cautions=(*plan.cautions, floor))


def admit(work: Work, given: History | None, build: Callable[[], nn.Module] | None) -> None:
    """Refuses a request while something stands in its way; keeps the model and the history before it.

    After a failure the run begins anew, unless neither the model nor the settings have changed. A history
    that was kept is used again: the client's rows are nowhere else.
    """
    model = State(vectors.flatten(work.model), buffers=vectors.buffers(work.model))
    _check_turn(work, model_hash(model))
    last = work.case.last("admitted")
    history = recorded(work) or given
    plan = plan_erasure(
        work.desk, work.client, work.federation, work.model, history=history, gone=work.gone, build=build
    )
    if plan.problems:
        more = f" (and {len(plan.problems) - 1} more: look at the plan)" if len(plan.problems) > 1 else ""
        raise FedUnlearnError(f"the request cannot be answered yet: {plan.problems[0]}{more}")
    check_words(plan.method, work.engine, work.desk.policy.options)
    same = {"model": model_hash(model), "settings": settings(work.desk, plan.method)}
    if last is None or not same.items() <= last.fields.items():
        for folder in (work.place / RUN, work.place / RETRAINED):
            if folder.exists():
                with explained(folder):
                    shutil.rmtree(folder)
    write(work.place / "plan.json", json_bytes(plan.as_dict()), private=True)
    write(work.place / ORIGINAL, work.key.seal(state_bytes(model)), private=True)
    kept = {"history": last.fields["history"]} if last and "history" in last.fields else {}
    if history is not None and not kept:
        sealed = work.key.seal(tensor_bytes(history.tensors()))
        write(work.place / HISTORY, sealed, private=True)
        kept["history"] = hashlib.sha256(sealed).hexdigest()
    work.tell(
        "admitted",
        method=plan.method,
        retained=plan.online.retained,
        rounds=sum(phase.rounds for phase in plan.phases),
        asks=any(phase.targets for phase in plan.phases),
        plan=_fingerprint(plan),
        **same,
        **kept,
    )


def settings(desk: Desk, method: str) -> str:
    """A digest of what decides the result of a request, beside the model and the clients."""
    policy = desk.policy
    decisive = {"options", "floor", "schedule", "training", "participation", "guards", "seed"}
    return fingerprint({"method": method, **policy.model_dump(mode="json", include=decisive)})


def original(work: Work) -> State:
    """The model before the request."""
    path, admitted = work.place / ORIGINAL, work.case.last("admitted")
    state = read_state(path, work.key)[0]
    if admitted is None or model_hash(state) != admitted.fields["model"]:
        raise FedUnlearnError(f"{path} is not the model that was admitted: restore it from a copy")
    return state


def recorded(work: Work) -> History | None:
    """The history that was admitted, if one was given."""
    path, admitted = work.place / HISTORY, work.case.last("admitted")
    if admitted is None or "history" not in admitted.fields:
        return None
    content = path.read_bytes() if path.exists() else b""
    if hashlib.sha256(content).hexdigest() != admitted.fields["history"]:
        raise FedUnlearnError(f"{path} is not the history that was admitted: restore it from a copy")
    return History.from_tensors(read_tensors(path, work.key)[0])


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


def _fingerprint(plan: Plan) -> str:
    """Of what a plan says, without the time that it estimates."""
    told = plan.as_dict()
    return fingerprint({name: told[name] for name in told.keys() - {"seconds", "timing", "sentences"}})
