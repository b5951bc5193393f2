"""Commands of an erasure desk: ``desk``, ``sign``, ``plan``, ``erase``, ``requests`` and ``purge``."""

from __future__ import annotations

import time
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from .console import out, print_list, print_text
from .ending import Interrupted, fail
from .options import Workers

if TYPE_CHECKING:
    from ..erasure import Case, Desk
    from ..erasure.ledger import Entry

DeskFolder = Annotated[
    Path, typer.Argument(metavar="DESK", help="Folder with a desk.toml.", show_default=False)
]


def desk(
    folder: Annotated[
        Path, typer.Argument(help="Folder of the new desk; it must be new or empty.", show_default=False)
    ],
    experiment: Annotated[
        Path | None,
        typer.Argument(
            help="File with an experiment, in TOML; three clients with Fashion-MNIST by default.",
            show_default=False,
        ),
    ] = None,
    workers: Workers = None,
) -> None:
    """Set up an erasure desk for a simulated federation, to practise: keys, a trained model, settings."""
    from ..experiment import read
    from ..experiment.practice import make_desk
    from .progress import Display

    chosen = experiment or Path(__file__).parents[1] / "experiments" / "audit.toml"
    try:
        with Display(out, {"": (read(chosen).pretraining.rounds, 0)}) as display, display.run() as listener:
            model = make_desk(folder, chosen, [listener], workers=workers)
    except Interrupted as stop:
        fail(f"{stop}; start again with the same command", stop.code)
    federation = read(folder / "experiment.toml").name
    out.print(f"desk      {folder / 'desk.toml'}", soft_wrap=True)
    out.print(f"model     {folder / 'model.safetensors'}", soft_wrap=True)
    print_text("\nA client asks to be forgotten, and the desk answers:")
    out.print(
        f"  fedunlearn sign client-1 --federation {quote(federation)} --model {model} "
        f"--key {quote(str(folder / 'clients' / 'client-1.key'))} --out request.json\n"
        f"  fedunlearn plan {quote(str(folder))} request.json\n"
        f"  fedunlearn erase {quote(str(folder))} request.json",
        soft_wrap=True,
    )


def sign(
    client: Annotated[str, typer.Argument(help="Name of the client.", show_default=False)],
    federation: Annotated[str, typer.Option(help="Name of the federation.", show_default=False)],
    model: Annotated[
        str,
        typer.Option(
            help="Hash of the model, as the desk announces it (not of its file).", show_default=False
        ),
    ],
    key: Annotated[Path, typer.Option(help="Private key of the client.", show_default=False)],
    file: Annotated[Path, typer.Option("--out", help="Where to write the request.")] = Path("request.json"),
    days: Annotated[
        float, typer.Option(min=0.001, max=31, help="Days for which the request is valid.")
    ] = 1.0,
) -> None:
    """Sign a client's request to be forgotten. The desk accepts it once."""
    from ..runs import write
    from ..signing import request_erasure

    write(file, request_erasure(client, federation, model, key, valid_hours=24 * days).encode())
    until = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(time.time() + 86400 * days))
    out.print(f"request   {file}, valid until {until}", soft_wrap=True)


def plan(
    folder: DeskFolder,
    request: Annotated[
        str,
        typer.Argument(
            help="File with a signed request, which is not registered, or the ID of an open request.",
            show_default=False,
        ),
    ],
    gone: Annotated[bool, typer.Option("--gone", help="The client has left and does not answer.")] = False,
    workers: Workers = None,
) -> None:
    """Show what answering a request would take, and what stands in its way. It changes nothing."""
    from ..core.hashes import module_hash
    from ..erasure import examine, open_desk, plan_erasure
    from ..erasure.reception import identify
    from ..experiment.practice import PracticeDesk
    from ..signing import stated_client
    from .plans import print_plan

    opened = open_desk(folder)
    known = _known(opened, request)
    document = opened.document(known.id) if known else _text(Path(request))
    world = PracticeDesk(opened, gone)
    model = world.model()
    if not any(case.id == identify(document) and case.waiting for case in opened.cases()):
        examine(opened, document, module_hash(model))
    client = stated_client(document)
    with world.federation(client, workers=workers) as federation:
        found = plan_erasure(
            opened,
            client,
            federation,
            model,
            document=document,
            gone=gone,
            engine="simulated",
            retrainings=world.retrainings,
            trained=world.training_rounds,
        )
    print_plan(found)
    if world.retrainings:
        print_text(f"The audit also retrains {world.retrainings} models; cost and time are without it.")
    if found.problems:
        fail("the request cannot be answered yet: see the problems above", 3, found.codes[0])


def erase(
    folder: DeskFolder,
    request: Annotated[
        str,
        typer.Argument(help="File with a signed request, or the ID of an open request.", show_default=False),
    ],
    gone: Annotated[bool, typer.Option("--gone", help="The client has left and does not answer.")] = False,
    workers: Workers = None,
) -> None:
    """Answer an erasure request: authenticate, unlearn, verify, recover, audit, certify, purge.

    The same command continues after a crash, and tries again after a failure.
    """
    from ..core.hashes import module_hash
    from ..erasure import due, open_desk, purge, receive
    from ..erasure import erase as answer
    from ..experiment.practice import PracticeDesk
    from ..signing import stated_client
    from .progress import Display

    opened = open_desk(folder)
    world = PracticeDesk(opened, gone)
    case = _known(opened, request)
    if case is None:
        case = receive(opened, _text(Path(request)), module_hash(world.model()))
    before = case.entries
    if not case.purging:
        client, model = stated_client(opened.document(case.id)), world.model()
        try:
            with (
                world.federation(client, workers=workers) as federation,
                Display(out, world.rounds) as display,
                display.run("request") as listener,
            ):
                case = answer(
                    opened,
                    case.id,
                    federation,
                    model,
                    auditor=world.auditor(case.id, federation, model, display.run),
                    gone=gone,
                    engine="simulated",
                    listeners=[listener],
                )
        except Interrupted as stop:
            fail(f"{stop}; continue with: fedunlearn erase {quote(str(folder))} {case.id}", stop.code)
    if case.purging or due(opened, case):
        case = purge(opened, case.id)
    _print_case(opened, case, before)
    if case.state.failed:
        print_text(_why(opened, case))
        fail(f"request {case.id} is {case.state}: {case.next_step}", 3, case.state)


def requests(folder: DeskFolder) -> None:
    """List all requests of a desk: state, deadline and next step."""
    from ..erasure import open_desk

    opened = open_desk(folder)
    rows = [
        [case.id, _state(case), _deadline(case, opened.clock()), case.next_step] for case in opened.cases()
    ]
    if rows:
        print_list(["request", "state", "deadline", "next step"], rows)
    else:
        print_text("no requests yet")
    if opened.policy.simulation is not None:
        from ..core.hashes import module_hash
        from ..experiment.practice import PracticeDesk

        out.print(f"\nmodel     {module_hash(PracticeDesk(opened).model())}", soft_wrap=True)
    elif installed := [entry for entry in opened.ledger.entries if entry.event == "installed"]:
        out.print(f"\nmodel     {installed[-1].fields['model']}", soft_wrap=True)


def purge(
    folder: DeskFolder,
    request: Annotated[str, typer.Argument(help="ID of the request.", show_default=False)],
    withdrawn: Annotated[
        bool, typer.Option("--withdrawn", help="The client has withdrawn a request that is not answered.")
    ] = False,
) -> None:
    """Delete what a request needed, destroy its key, and sign a receipt."""
    from ..erasure import open_desk
    from ..erasure import purge as delete

    opened = open_desk(folder)
    before = opened.case(request).entries
    _print_case(opened, delete(opened, request, withdrawn=withdrawn), before)


def _known(opened: Desk, request: str) -> Case | None:
    """The request of this id; None if it is the path of a file."""
    from ..core import FedUnlearnError, did_you_mean

    if Path(request).exists():
        return None
    cases = {case.id: case for case in opened.cases()}
    if request not in cases:
        raise FedUnlearnError(
            f"there is neither a file nor a request named {request}{did_you_mean(request, cases)}",
            code="unknown",
        )
    case = cases[request]
    if not case.state.accepted:
        raise FedUnlearnError(f"request {request} is {case.state}: {case.next_step}")
    return case


def _text(path: Path) -> str:
    from ..core import FedUnlearnError

    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError as error:
        raise FedUnlearnError(
            f"cannot read the request {path}: {error.strerror or error}", code="file"
        ) from None


def _state(case: Case) -> str:
    """The state with claim and reason, what the retained clients lost, or that the client has withdrawn."""
    from ..erasure import RequestState
    from ..erasure.certification import NOTICEABLE

    if case.withdrawn:
        return f"{case.state} (withdrawn)"
    told = [entry.fields for entry in case.entries if entry.fields.keys() & {"claim", "reason"}] or [{}]
    words = [told[-1][key] for key in ("claim", "reason") if told[-1].get(key, case.state) != case.state]
    found = verified.fields["measures"] if (verified := case.last(RequestState.VERIFIED)) else {}
    if found.get("r_acc_before", 0) - found.get("r_acc", 0) > NOTICEABLE:
        words.append(f"R-Acc {found['r_acc_before']:.1%} → {found['r_acc']:.1%}")
    return f"{case.state} ({', '.join(words)})" if words else str(case.state)


def _why(opened: Desk, case: Case) -> str:
    """Return why the run of a failed request ended."""
    from ..runs import read_outcome

    ends = sorted(opened.place(case.id).glob("run/*/outcome.json"), key=lambda path: path.stat().st_mtime)
    reason = read_outcome(ends[-1].parent)["reason"] if ends else ""
    return f"\nThe model in production stays as it is: {reason or case.entries[-1].fields['reason']}"


def _deadline(case: Case, now: float) -> str:
    from ..erasure import RequestState

    if case.deadline is None or case.state is RequestState.REFUSED:
        return "-"
    day = time.strftime("%Y-%m-%d", time.gmtime(case.deadline))
    if not case.state.open:
        return day
    left = int((case.deadline - now) // 86400)
    return f"{day} ({left} days left)" if left >= 0 else f"{day} (missed)"


def _print_case(opened: Desk, case: Case, before: tuple[Entry, ...]) -> None:
    """Print the request, and a note if nothing was done since these entries."""
    place = opened.place(case.id)
    out.print()
    out.print(f"request      {case.id}", soft_wrap=True)
    out.print(f"state        {case.state}{' (withdrawn)' if case.withdrawn else ''}", soft_wrap=True)
    end = next((e for e in reversed(case.entries) if "claim" in e.fields), None)
    if end is not None:
        from ..erasure.claim import Claim

        claim = Claim[end.fields["claim"]]
        out.print(f"claim        {claim}", soft_wrap=True)
        print_text(f"             {claim.meaning}")
    for title, name in (
        ("certificate", "certificate.json"),
        ("page", "certificate.html"),
        ("model", "model.safetensors"),
        ("receipt", "purge.json"),
    ):
        if (place / name).exists():
            out.print(f"{title:<12} {place / name}", soft_wrap=True)
    if case.entries == before:
        then = "" if case.next_step == "none" else f" Next: {case.next_step}."
        print_text(f"\nNothing was done: the request was already {case.state}.{then}")
