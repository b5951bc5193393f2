"""The admission of a request: its plan, and the encrypted model and history from before the answer."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from torch import nn

from ..core import Authorising, ClientId, Federation, FedUnlearnError, History, Request, State, vectors
from ..core.hashes import content_hash, model_hash, module_hash
from ..runs import fingerprint, json_bytes, read_metrics, read_state, read_tensors, write
from ..runs.files import explained, tensor_bytes
from ..runs.states import state_bytes
from ..server import fresh_model, read_history
from ..signing import stated_model
from .certification import NOTICEABLE, RETRAINED, check_words
from .desk import NONCES, Case, Desk
from .plan import Plan, make_plan
from .reception import identify
from .request_state import RequestState
from .settings import SETTINGS
from .work import RUN, Work

ORIGINAL, HISTORY = "omega0.sealed", "history.sealed"


def plan_erasure(
    desk: Desk,
    client: ClientId,
    federation: Federation,
    model: nn.Module,
    *,
    document: str | None = None,
    history: Path | History | None = None,
    gone: bool = False,
    engine: str = "own",
    retrainings: int = 0,
    build: Callable[[], nn.Module] | None = None,
    trained: int | None = None,
) -> Plan:
    """Return what answering a request of a client would take; it changes nothing.

    The problems of the plan are those for which ``erase`` with the same arguments refuses the request.
    ``document`` is a signed request that the desk has not received yet. ``retrainings`` and ``trained``: see
    ``make_plan``.
    """
    case = desk.waiting_case(client)
    document = desk.document(case.id) if case else document
    request = case.id if case else identify(document) if document else ""
    work = Work(desk, request, client, federation, model, gone, engine)
    given = read_history(history) if isinstance(history, Path) else history
    planned = check(work, case, document, given, build, retrainings=retrainings, trained=trained)
    pace = seconds_a_round(desk)
    return planned if pace is None else replace(planned, seconds=pace * planned.total("rounds"))


def check(
    work: Work,
    case: Case | None,
    document: str | None,
    given: History | None,
    build: Callable[[], nn.Module] | None,
    *,
    retrainings: int = 0,
    trained: int | None = None,
) -> Plan:
    """Return the plan of a request; ``erase`` refuses it while the plan has problems."""
    desk, client, policy = work.desk, work.client, work.desk.policy
    under_way = case is not None and case.under_way
    history = (recorded(work) if case else None) or given
    present = work.federation.present()
    request = Request(
        vectors.flatten(work.model),
        tuple(sorted({*present, client}.difference(desk.left_out(work.federation, client)))),
        (client,),
        lambda purpose: fresh_model(work.model, build, policy.seed, purpose),
        buffers=vectors.buffers(work.model),
        shapes=vectors.shapes(work.model),
        history=history or History(),
        seed=policy.seed,
    )
    plan = make_plan(
        work.federation,
        request,
        work.attempt.method if under_way else policy.method or None,
        options=work.options if under_way else policy.options,
        gone=work.gone,
        begun=under_way and any((work.place / RUN).glob("*/checkpoints/*.safetensors")),
        smallest=policy.smallest,
        retrainings=retrainings,
        trained=trained,
        **policy.conditions,
    )
    floor = (
        f"a model that costs the retained clients more than {100 * policy.floor:g} points of accuracy is not "
        f"installed; above {100 * NOTICEABLE:g}, the certificate says so"
    )
    plan = replace(plan, cautions=(*plan.cautions, floor))
    return plan.refused(_desk_problems(work, case, document, plan.method))


def require_ready(plan: Plan) -> None:
    """Refuse a request whose plan has problems."""
    if plan.problems:
        more = f" (and {len(plan.problems) - 1} more: look at the plan)" if len(plan.problems) > 1 else ""
        problem = f"the request cannot be answered yet: {plan.problems[0]}{more}"
        raise FedUnlearnError(problem, code=plan.codes[0])


def admit(work: Work, plan: Plan, given: History | None) -> None:
    """Admit a request, and keep the model and the history before it.

    After a failure the run starts again, unless neither the model nor the settings have changed. A history
    that was kept is used again: the client's rows are nowhere else.
    """
    model = State(vectors.flatten(work.model), buffers=vectors.buffers(work.model))
    last = work.case.attempt
    history = recorded(work) or given
    same = {"model": model_hash(model), "settings": settings(work.desk, plan.method)}
    if last is None or (last.model, last.settings) != (same["model"], same["settings"]):
        for folder in (work.place / RUN, work.place / RETRAINED):
            if folder.exists():
                with explained(folder):
                    shutil.rmtree(folder)
    write(work.place / "plan.json", json_bytes(plan.as_dict()), private=True)
    write(work.place / ORIGINAL, work.key.seal(state_bytes(model)), private=True)
    kept = {"history": last.history} if last and last.history else {}
    if history is not None and not kept:
        sealed = work.key.seal(tensor_bytes(history.tensors()))
        write(work.place / HISTORY, sealed, private=True)
        kept["history"] = content_hash(sealed)
    work.record(
        RequestState.ADMITTED,
        method=plan.method,
        retained=plan.retained,
        rounds=plan.total("rounds"),
        asks=plan.asks_targets,
        plan=_fingerprint(plan),
        **same,
        **kept,
    )


def settings(desk: Desk, method: str, *, of_0_2: bool = False) -> str:
    """Return a digest of what decides the result of a request, except for the model and the clients.

    Version 0.2 had no ``floor``, and no ``shuffle``; what it has begun goes on as it began.
    """
    decisive = {"options", "floor", "schedule", "training", "participation", "guards", "seed"}
    told = desk.policy.model_dump(mode="json", include=decisive)
    if of_0_2:
        told.pop("floor")
        told["training"].pop("shuffle", None)  # absent where it has its default
    return fingerprint({"method": method, **told})


def original(work: Work) -> State:
    """Return the model before the request."""
    path = work.place / ORIGINAL
    state = read_state(path, work.key)[0]
    if model_hash(state) != work.attempt.model:
        raise FedUnlearnError(
            f"{path} is not the model that was admitted: restore it from a copy", code="damaged"
        )
    return state


def recorded(work: Work) -> History | None:
    """Return the history that was admitted, if one was given."""
    path, attempt = work.place / HISTORY, work.case.attempt
    if attempt is None or attempt.history is None:
        return None
    content = path.read_bytes() if path.exists() else b""
    if content_hash(content) != attempt.history:
        raise FedUnlearnError(
            f"{path} is not the history that was admitted: restore it from a copy", code="damaged"
        )
    return History.from_tensors(read_tensors(path, work.key)[0])


def seconds_a_round(desk: Desk) -> float | None:
    """Return the seconds of a round in the last run that the desk has kept; None without one."""
    runs = (desk.folder / "requests").glob(f"*/{RUN}/*/metrics.jsonl")
    for path in sorted(runs, key=lambda path: path.stat().st_mtime, reverse=True):
        try:
            rows = read_metrics(path.parent)
        except FedUnlearnError:
            continue  # whatever continues a damaged run refuses it
        if seconds := [float(row["seconds"]) for row in rows if "seconds" in row]:
            return fmean(seconds)
    return None


def _desk_problems(
    work: Work, case: Case | None, document: str | None, method: str
) -> Iterator[FedUnlearnError]:
    """Yield what keeps the desk from answering a request now, whatever the method needs."""
    checks: list[Callable[[], object]] = [lambda: check_words(method, work.engine, work.desk.policy.options)]
    if document is not None and isinstance(work.federation, Authorising) and not work.gone:
        checks.insert(0, partial(work.federation.examine, work.client, document, **shown(work, case)))
    for check in checks:
        try:
            check()
        except FedUnlearnError as error:
            yield error
    if case is None or not case.under_way:
        yield from _turn_problems(work, document)
        return
    method = work.desk.policy.method or work.attempt.method
    same = [settings(work.desk, method, of_0_2=earlier) for earlier in (False, True)]
    if work.attempt.settings not in same:
        yield FedUnlearnError(
            f"the settings in {work.desk.folder / SETTINGS} have changed since request {work.request} was "
            "begun: restore them until it has ended",
            code="changed",
        )


def shown(work: Work, case: Case | None) -> dict[str, Any]:
    """Return the settings with which a signed request is shown to the federation.

    The request must have been valid, and about a model that the desk served, when the desk authenticated it:
    a run that takes longer is not cut off.
    """
    authenticated = case.last(RequestState.AUTHENTICATED) if case else None
    return {
        "name": work.desk.policy.federation,
        "model": None,
        "folder": work.place / RUN,
        "ledger": work.desk.folder / NONCES / "federation",
        "now": authenticated.time if authenticated else work.desk.clock(),
    }


def _turn_problems(work: Work, document: str | None) -> Iterator[FedUnlearnError]:
    """Yield why it is not this request's turn: each starts from the model that the last one left behind."""
    model = module_hash(work.model)
    for other in work.desk.cases():
        if other.id != work.request and other.under_way:
            yield FedUnlearnError(
                f"request {other.id} is {other.state}: finish or purge it first", code="unfinished"
            )
    installed = [entry for entry in work.desk.ledger.entries if entry.event == "installed"]
    if installed and installed[-1].fields["model"] == model:
        return
    replaced = [work.desk.case(entry.request).attempt for entry in installed]
    if model in [attempt.model for attempt in replaced if attempt]:
        yield FedUnlearnError(
            "the model still knows a client that this desk has forgotten: put the one that was installed "
            "last back into production",
            code="other-model",
        )
    elif document is not None and model != stated_model(document):
        yield FedUnlearnError(
            "the model is neither the one that the request names nor the one that was installed last: put "
            "one of them back into production, or let the client sign a new request",
            code="other-model",
        )


def _fingerprint(plan: Plan) -> str:
    """Return the digest of what a plan says, without the time that it estimates."""
    told = plan.as_dict()
    return fingerprint({name: told[name] for name in told.keys() - {"seconds", "sentences", "codes"}})
