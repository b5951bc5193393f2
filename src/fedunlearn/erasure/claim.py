"""The claims of an erasure certificate: their wording, and the rule by which one of them follows.

Certificates contain the wording. A sentence that changes goes into ``OLDER``, so that earlier certificates
still verify.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from ..evidence import Verdict
from .vocabulary import EndState, Grade

GENERAL_LIMITS = (
    "The evidence consists of numbers that the clients and the server computed. It is not proof for a party "
    "that does not trust them.",
    "Copies of the earlier model outside the controller's systems, and models derived from it, are not "
    "covered.",
    "The certificate does not make the model anonymous in the sense of data protection law.",
)
"""The limits of every claim."""


class Claim(StrEnum):
    """The claim of a certificate: exactly one of these."""

    headline: str
    meaning: str
    limits: tuple[str, ...]
    """Statements that do not follow from the claim."""

    def __new__(cls, value: str, headline: str, meaning: str, *limits: str) -> Claim:
        member = str.__new__(cls, value)
        member._value_ = value
        member.headline, member.meaning = headline, meaning
        member.limits = (*limits, *GENERAL_LIMITS)
        return member

    PROCESS_ONLY = (
        "PROCESS_ONLY",
        "Unlearning was carried out; its effect was not tested",
        "The procedure ran to its end on the model before and gave the model after. The result was not "
        "compared with a model that was retrained without the data.",
        "It does not say what the model still knows about the data. Only where a method trains a new model "
        "without the data is the procedure itself enough.",
    )
    BEHAVIOURALLY_EQUIVALENT = (
        "BEHAVIOURALLY_EQUIVALENT",
        "On the tested data, the model behaves as if retrained without it",
        "The procedure ran to its end. On the tested examples, the losses of the model give away no more and "
        "no less than those of a retrained model, within the stated margin; the same test finds the data "
        "in the model before.",
        "The test is about averages: single examples may still be remembered.",
        "The test uses losses: another attack may see more.",
        "It is about this model and the retrained models of this audit, not about the method in general.",
    )
    OVER_FORGOTTEN = (
        "OVER_FORGOTTEN",
        "The model is worse on the data than a retrained model",
        "The procedure ran to its end. A test found that the model treats the data as unusually foreign: its "
        "losses on the data are higher than those of a retrained model.",
        "It does not say that the data are forgotten particularly well: an unusual loss gives them away.",
        "The test is wrong in about 1 of 20 cases in which the model is like a retrained one.",
    )
    UNDER_FORGOTTEN = (
        "UNDER_FORGOTTEN",
        "The model still knows more about the data than a retrained model",
        "The procedure ran to its end. A test found that the model knows more about the data than a model "
        "that was retrained without it.",
        "It does not say that nothing was forgotten.",
        "The test is wrong in about 1 of 20 cases in which the model is like a retrained one.",
    )
    INCONCLUSIVE = (
        "INCONCLUSIVE",
        "Unlearning was carried out; the tests could not tell its effect",
        "The procedure ran to its end and was tested. There were too few examples, too much chance, or the "
        "test did not find the data in the model before either. This is not a pass.",
        "It does not say that there is no difference to a retrained model.",
    )
    PARTIAL = (
        "PARTIAL",
        "Unlearning stopped before its end",
        "The procedure began and stopped early: a participant left, or a guard stopped it to protect the "
        "retained clients. The model after is the last one that was accepted.",
        "It does not say that the data are forgotten, whatever the tests show.",
    )
    ESCALATED = (
        "ESCALATED",
        "Unlearning did not succeed; the request was passed to a person",
        "The procedure found no step that forgets the data and spares the retained clients, or the "
        "controller took the request out of it. Another way must be found, such as retraining without "
        "the data.",
        "It does not say that the data are forgotten, whatever the tests show.",
    )


OLDER: Mapping[str, str] = {
    "The evidence is made of numbers that the clients and the server computed. It is no proof to somebody "
    "who does not trust them.": GENERAL_LIMITS[0],
    "The procedure ran to its end on the model before and gave the model after. Nobody compared the "
    "result with a model that was retrained without the data.": Claim.PROCESS_ONLY.meaning,
}
"""Sentences of earlier certificates, with the present ones."""


def claim_of(end_state: EndState, verdict: Verdict | None, grade: Grade = Grade.G1) -> Claim:
    """Return the one claim that an end state, a verdict and a grade support.

    A pass needs a run to its end, and a client that evaluated until then.
    """
    match end_state:
        case EndState.ESCALATED if verdict is Verdict.UNDER:
            return Claim.UNDER_FORGOTTEN
        case EndState.ESCALATED | EndState.NO_DIRECTION:
            return Claim.ESCALATED
        case EndState.PARTIAL | EndState.GUARD_STOP:
            return Claim.PARTIAL
    match verdict:
        case None:
            return Claim.PROCESS_ONLY
        case Verdict.UNDER:
            return Claim.UNDER_FORGOTTEN
        case Verdict.OVER:
            return Claim.OVER_FORGOTTEN
        case Verdict.EQUIVALENT if grade is Grade.G1:
            return Claim.BEHAVIOURALLY_EQUIVALENT
    return Claim.INCONCLUSIVE
