"""Answering a request: unlearning, recovery, verification, certificate. Every step can be repeated."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path

from torch import nn

from ..core import (
    Authorising,
    Event,
    Federation,
    FedUnlearnError,
    History,
    Listener,
    Stage,
    State,
    Status,
    vectors,
)
from ..runs import locked, read_tensors
from ..server import ForgettingFailed, forget, read_history, remove_rows
from ..signing import stated_client
from .admission import admit, check, original, recorded, require_ready, shown
from .certification import MODEL, install
from .conclusion import conclude, found, target_missing
from .desk import Case, Desk
from .request_state import RequestState
from .work import RUN, Auditor, Work


def erase(
    desk: Desk,
    request: str,
    federation: Federation,
    model: nn.Module,
    *,
    history: Path | History | None = None,
    auditor: Auditor | None = None,
    gone: bool = False,
    engine: str = "own",
    build: Callable[[], nn.Module] | None = None,
    listeners: Sequence[Listener] = (),
) -> Case:
    """Answer a request that ``receive`` has authenticated; the same call continues after a crash.

    ``model`` is the one in production and becomes the certified one; if the request fails, it stays.
    ``auditor`` compares both with retrained models; without it, the client measures the model itself and
    no verdict is possible.
    ``history`` is the file that ``flower.Recording`` wrote, or what it holds: the request keeps an encrypted
    copy, and the rows of the client are deleted from the file. ``gone`` says that the client has left: then
    only methods that do not ask it can run.
    """
    with locked(desk.folder / "work.lock"):
        desk.ledger.settle()
        case = desk.case(request)
        if not case.state.accepted or case.purging:
            code = "unfinished" if case.state.open else "finished"
            raise FedUnlearnError(f"request {request} is {case.state}: {case.next_step}", code=code)
        document = desk.document(request)
        client = stated_client(document)
        work = Work(desk, request, client, federation, model, gone, engine)
        if not case.last(RequestState.CERTIFIED):
            given = read_history(history) if isinstance(history, Path) else history
            plan = check(work, case, document, given, build)
            require_ready(plan)
            if isinstance(federation, Authorising) and not gone:
                federation.authorise(client, document, **shown(work, case))
            if case.state is RequestState.AUTHENTICATED or case.state.failed:
                admit(work, plan, given)
            if isinstance(history, Path) and recorded(work) is not None:
                remove_rows(history, [client])
            _unlearn(work, original(work), auditor, build, listeners)
        return _put_into_service(work)


def _put_into_service(work: Work) -> Case:
    """Put the certified model into production, and leave the client out of later requests."""
    case = work.case
    if (certified := case.last(RequestState.CERTIFIED)) is not None and case.last("installed") is None:
        work.desk.suppress(work.request, work.client)
        install(work.desk, certified)
        work.record("installed", model=certified.fields["model"])
    if certified is not None:
        work.model.load_state_dict(read_tensors(work.place / MODEL)[0])
    return work.case


def _unlearn(
    work: Work,
    before: State,
    auditor: Auditor | None,
    build: Callable[[], nn.Module] | None,
    listeners: Sequence[Listener],
) -> None:
    """Run the method, unless this attempt has ended, and conclude the request."""
    desk, policy = work.desk, work.desk.policy
    case = work.case
    if case.state is RequestState.ADMITTED:
        work.record(RequestState.UNLEARNING, attempt=case.attempts + 1)
    vectors.load(work.model, before)
    try:
        outcome = forget(
            work.federation,
            copy.deepcopy(work.model),
            work.client,
            work.place / RUN,
            method=work.attempt.method,
            history=recorded(work),
            build=build,
            seed=policy.seed,
            gone=work.gone,
            floor=policy.floor,
            without=desk.left_out(work.federation, work.client),
            cipher=work.key,
            listeners=listeners,
            witnesses=[lambda event: _follow(work, event)],
            **policy.conditions,
            **work.options,
        )
    except ForgettingFailed as failure:
        outcome = failure.outcome
        if outcome.status is Status.MISSING_REPLY and not target_missing(work, outcome):
            raise
    conclude(work, before, outcome, auditor)


def _follow(work: Work, event: Event) -> None:
    """Record the end of unlearning and the start of recovery, once in each attempt."""
    phase, state = event.phases[event.progress.phase], event.progress.state
    ended = state.round == phase.rounds or state.status is not Status.RUNNING
    recorded_events = {entry.event for entry in work.case.current}
    follows = any(each.stage is Stage.POSTTRAINING for each in event.phases[event.progress.phase :])
    if phase.stage is Stage.UNLEARNING and ended and not state.status.failed:
        if "verified" not in recorded_events:
            work.record(RequestState.VERIFIED, **found(event.metrics, state, "unlearning"))
        if follows and "recovering" not in recorded_events:
            work.record(RequestState.RECOVERING, attempt=work.case.attempts)
    elif phase.stage is Stage.POSTTRAINING and "recovering" not in recorded_events:
        work.record(RequestState.RECOVERING, attempt=work.case.attempts)
