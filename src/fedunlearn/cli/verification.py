"""The command ``verify``: whether an erasure certificate is genuine, and what it claims."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .console import out, print_text

if TYPE_CHECKING:
    from ..erasure.certificate import Verified


def verify(
    certificate: Annotated[Path, typer.Argument(help="File with the certificate.", show_default=False)],
    key: Annotated[
        Path, typer.Option(help="The controller's public key, in PEM or OpenSSH form.", show_default=False)
    ],
    model: Annotated[
        Path | None, typer.Option(help="The file of the model after unlearning.", show_default=False)
    ] = None,
    ledger: Annotated[
        Path | None, typer.Option(help="A copy of the controller's ledger.", show_default=False)
    ] = None,
    receipt: Annotated[
        Path | None, typer.Option(help="The receipt of the purge, purge.json.", show_default=False)
    ] = None,
) -> None:
    """Check an erasure certificate: signature, fields, model, ledger and purge. Needs no network.

    Exit code 0: it is genuine. What it claims may still be a failure: read the claim.
    """
    from ..erasure.certificate import read_certificate
    from ..erasure.certificate import verify as checked

    _print(checked(read_certificate(certificate), key, model=model, ledger=ledger, receipt=receipt))


def _print(verified: Verified) -> None:
    predicate, claimed = verified.predicate, verified.predicate.claim
    out.print(f"The certificate of request {predicate.request.id} is genuine.", style="bold")
    _print_list("Checked", verified.checked)
    _print_list("Not checked", verified.unchecked)
    out.print(f"\nClaim  {claimed.claim}", style="bold")
    print_text(f"{claimed.claim.headline}.\n{claimed.meaning}\n{predicate.exact}".rstrip())
    _print_list("What the claim does not say", claimed.limits)
    _print_list("What was not tested", [each.words for each in predicate.evidence.not_tested])


def _print_list(title: str, sentences: list[str] | tuple[str, ...]) -> None:
    if sentences:
        out.print(f"\n{title}")
    for sentence in sentences:
        print_text(f"- {sentence}")
