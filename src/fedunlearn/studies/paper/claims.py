"""The claims of the FedOSD paper about its experiments, as conditions on results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from .conditions import Check, above, anywhere, at_most, cost, course, every, score, some


@dataclass(frozen=True)
class Claim:
    """A sentence with its tolerance, its place in the paper, the columns it concerns, and its check."""

    id: str
    says: str
    where: str
    columns: Sequence[str]
    check: Check
    kind: str
    """The group in which it is counted."""


OSD = "fedosd"
ASCENT = ("ewcsga", "fupga")
REVERTING = ("fedrecovery", *ASCENT)
OTHERS = ("mode", *REVERTING)
RETRAINING = ("retrain", "federaser")

FMNIST, CIFAR10, MNIST, CIFAR100 = (
    tuple(f"{data}-{partition}" for partition in ("pat-20", "pat-50", "iid"))
    for data in ("fmnist", "cifar10", "mnist", "cifar100")
)
MAIN = FMNIST + CIFAR10 + MNIST + CIFAR100
ELSEWHERE = "the same claims in columns that are not in the paper"
LACKING = ("fmnist-pat-50-m20", "fmnist-pat-50-m50")
CLIENTS = ("cifar10-pat-50-m20", "cifar10-pat-50-m50", *LACKING)
EPOCHS = tuple(f"{column}-e5" for column in FMNIST)
ALL = MAIN + CLIENTS + EPOCHS
SKEWED = tuple(column for column in ALL if "iid" not in column)
ABLATED = ("fmnist-pat-50", "cifar10-pat-50", "cifar100-pat-50")
COUNTED = ("mnist-pat-20", "cifar100-pat-20")
ISLANDS = ("cifar10-pat-10", "cifar100-pat-10")

asr, acc, distance = (partial(score, key) for key in ("asr", "r_acc", "distance"))
worst, std = partial(score, "r_acc_worst"), partial(score, "r_acc_std")
nc, seconds, server = (partial(cost, key) for key in ("conflicts", "seconds", "seconds_server"))

Sentences = Mapping[str, tuple[str, Check]]
"""Sentences and checks by id."""


def _each(rows: Iterable[str], what: str, says: str, check: Callable[[str], Check]) -> Sentences:
    """The same claim about several methods, one for each."""
    return {f"{row}-{what}": (says.format(row), check(row)) for row in rows}


def _below(row: str, margin: float, stage: int = 1) -> Check:
    return above(acc(stage, OSD), acc(stage, row), plus=margin)


def _best(stage: int, rows: Iterable[str]) -> Check:
    """FedOSD has forgotten, and no other method that has is better."""
    led = {row: at_most(acc(stage, row), acc(stage, OSD), plus=0.01) for row in rows}
    forgot = at_most(asr(stage, OSD), 0.1)
    return every((forgot, *(some((above(asr(stage, row), 0.1), check)) for row, check in led.items())))


def _reverts(row: str) -> Check:
    return above(asr(2, row), asr(1, row), plus=0.06)


def _kept(row: str, stage: int = 2) -> Check:
    return at_most(acc(0, row), acc(stage, row), plus=0.02)


def _halved(row: str) -> Check:
    return at_most(acc(1, row), acc(0, row), times=0.5)


def _nearer(row: str) -> Check:
    return above(distance(1, row), distance(2, row))


SAID: Mapping[tuple[str, Sequence[str]], Sentences] = {
    ("Evaluation, Appendix B; Tables 1, 4, 8 to 10", ALL): {
        "fedosd-forgets": ("After unlearning, FedOSD's ASR is at most .01.", at_most(asr(1, OSD), 0.01)),
        "fedosd-leads": (
            "After unlearning, no other method's R-Acc is more than .01 above FedOSD's.",
            every(at_most(acc(1, row), acc(1, OSD), plus=0.01) for row in OTHERS),
        ),
        "fedosd-keeps": (
            "FedOSD's ASR rises by at most .06 in post-training.",
            at_most(asr(2, OSD), asr(1, OSD), plus=0.06),
        ),
        "fedosd-recovers": (
            "After post-training, FedOSD's R-Acc is at most .02 below that of ω⁰.",
            _kept(OSD),
        ),
        **_each(REVERTING, "reverts", "The ASR of {} rises by more than .06 in post-training.", _reverts),
        **_each(
            ASCENT,
            "harms",
            "After unlearning, the R-Acc of {} is more than .1 below FedOSD's.",
            lambda row: _below(row, 0.1),
        ),
    },
    ("Evaluation; Tables 1, 4, 8 to 10", SKEWED): _each(
        ASCENT,
        "forgets",
        "If clients hold different classes, the ASR of {} is at most .01 after unlearning.",
        lambda row: at_most(asr(1, row), 0.01),
    ),
    ("Evaluation; Table 1", FMNIST): _each(
        ASCENT,
        "random",
        "After unlearning, {} is close to chance (.1): its R-Acc is at most .3.",
        lambda row: at_most(acc(1, row), 0.3),
    ),
    ("Evaluation; Tables 1, 8, 9", ("any",)): {
        "fedrecovery-unsure": (
            "In at least one column, the ASR of FedRecovery is above .1 after unlearning.",
            anywhere(MAIN, above(asr(1, "fedrecovery"), 0.1)),
        ),
    },
    ("Evaluation; Tables 1, 8, 9", MAIN): _each(
        REVERTING, "recovers", "After post-training, the R-Acc of {} is at most .02 below that of ω⁰.", _kept
    ),
    ("Gradient Projection, Appendix B; Figures 5, 8, 9", MAIN + EPOCHS): {
        **_each(REVERTING, "returns", "Post-training brings {} closer to ω⁰.", _nearer),
        "fedosd-stays-away": (
            "Post-training reduces FedOSD's distance to ω⁰ by at most 1 %.",
            at_most(distance(1, OSD), distance(2, OSD), times=1 / 0.99),
        ),
    },
    ("Appendix B; Figures 8, 9", CIFAR10): {
        "fedosd-fast": (
            "After half of the unlearning rounds, FedOSD's ASR is at most .01.",
            at_most(course("asr", 0.5, OSD), 0.01),
        ),
    },
    ("Appendix B; Tables 4, 6 to 9", MAIN + CLIENTS): {
        "fair-worst": (
            "After unlearning, no other method's worst client is more than .01 above FedOSD's.",
            every(at_most(worst(1, row), worst(1, OSD), plus=0.01) for row in OTHERS),
        ),
        "fair-spread": (
            "After unlearning, no other method's std over clients is more than .01 below FedOSD's.",
            every(at_most(std(1, OSD), std(1, row), plus=0.01) for row in OTHERS),
        ),
    },
    ("Evaluation; Figure 6", ISLANDS): {
        "islands-worst": (
            "After unlearning, every other method's worst client is below FedOSD's.",
            every(above(worst(1, OSD), worst(1, row)) for row in OTHERS),
        ),
        "islands-zero": (
            "After unlearning, some other method's worst client has an R-Acc of at most .05.",
            some(at_most(worst(1, row), 0.05) for row in OTHERS),
        ),
        "islands-mean": (
            "After unlearning, every other method's R-Acc is below FedOSD's.",
            every(_below(row, 0.0) for row in OTHERS),
        ),
    },
    ("Evaluation; Table 2", FMNIST): {
        "sfu-remembers": ("After unlearning, the ASR of SFU is above .1.", above(asr(1, "sfu"), 0.1)),
        "sfu-harms": (
            "Unlearning reduces the R-Acc of SFU by more than .1.",
            above(acc(0, "sfu"), acc(1, "sfu"), plus=0.1),
        ),
        "sfu-reverts": ("The ASR of SFU rises by more than .06 in post-training.", _reverts("sfu")),
    },
    ("Evaluation; Table 3", COUNTED): {
        "fedosd-agrees": ("FedOSD's step causes no conflicts: NC is at most .005.", at_most(nc(OSD), 0.005)),
        **_each(OTHERS, "conflicts", "{} causes conflicts: NC is above .5.", lambda row: above(nc(row), 0.5)),
        "conflicts-harm": (
            "If NC is above .5, R-Acc after unlearning is more than .1 below FedOSD's.",
            every(some((at_most(nc(row), 0.5), _below(row, 0.1))) for row in OTHERS),
        ),
    },
    ("Ablation; Table 5", ABLATED): {
        "m1-destroys": ("Ascent on the plain loss (M1) at least halves R-Acc.", _halved("fedosd-m1")),
        "m2-conflicts": ("The target's own direction (M2) has NC above .5.", above(nc("fedosd-m2"), 0.5)),
        "m2-harms": (
            "After unlearning, M2's R-Acc is more than .05 below FedOSD's.",
            _below("fedosd-m2", 0.05),
        ),
        "m3-keeps": (
            "With common descent (M3), R-Acc is at most .02 below that of ω⁰.",
            _kept("fedosd-m3", stage=1),
        ),
        "m3-remembers": ("After unlearning, M3's ASR is above .1.", above(asr(1, "fedosd-m3"), 0.1)),
        "m4-remembers": (
            "With a random orthogonal direction (M4), ASR is more than .001 above FedOSD's.",
            above(asr(1, "fedosd-m4"), asr(1, OSD), plus=0.001),
        ),
        "m4-harms": (
            "After unlearning, M4's R-Acc is more than .01 below FedOSD's.",
            _below("fedosd-m4", 0.01),
        ),
        "m5-reverts": (
            "Without projection (M5), ASR rises by more than .06 in post-training.",
            _reverts("fedosd-m5"),
        ),
        "m5-returns": ("Post-training brings M5 closer to ω⁰.", _nearer("fedosd-m5")),
    },
    ("Appendix B; Table 11", ABLATED): {
        "m6-destroys": (
            "An unbounded unlearning loss (M6) at least halves R-Acc.",
            _halved("fedosd-m6"),
        ),
        "m6-explodes": (
            "At its first evaluation, M6 has lost at least half of its R-Acc.",
            at_most(course("r_acc", 0.0, "fedosd-m6"), acc(0, "fedosd-m6"), times=0.5),
        ),
    },
}

TIMED: Mapping[tuple[str, Sequence[str]], Sentences] = {
    ("Evaluation; Table 2", FMNIST): {
        "sfu-slow": (
            "SFU's server takes more than twice as long as FedOSD's.",
            above(server("sfu"), server(OSD), times=2.0),
        ),
    },
    ("Appendix B; Table 12", ABLATED): {
        "server-quick": (
            "FedOSD's server takes at most 5 % of the total time.",
            at_most(server(OSD), seconds(OSD), times=0.05),
        ),
        "fedosd-quick": (
            "FedOSD takes at most 20 % longer than retraining with the same number of rounds.",
            at_most(seconds(OSD), seconds("retrain"), times=1.2),
        ),
        "projection-quick": (
            "FedOSD takes at most 20 % longer than without projection (M5).",
            at_most(seconds(OSD), seconds("fedosd-m5"), times=1.2),
        ),
    },
}

SHOWN: Mapping[tuple[str, Sequence[str]], Sentences] = {
    ("Tables 1, 4, 8 to 10; the criterion is ours", ALL): {
        "fedosd-leads-forgetting": (
            "After unlearning, FedOSD's ASR is at most .1, and no other method with ASR at most .1 has "
            "an R-Acc more than .01 above FedOSD's.",
            _best(1, OTHERS),
        ),
        "fedosd-leads-at-end": (
            "After all rounds, FedOSD's ASR is at most .1, and no other method with ASR at most .1 has "
            "an R-Acc more than .01 above FedOSD's.",
            _best(2, (*RETRAINING, *OTHERS)),
        ),
    },
    ("Tables 1, 4, 8 to 10", ALL): {
        "backdoor": ("Pre-training plants the backdoor in ω⁰: its ASR is above .1.", above(asr(0, OSD), 0.1)),
        **_each(
            (*RETRAINING, "mode"),
            "slow",
            "After all rounds, the R-Acc of {} is more than .01 below FedOSD's.",
            lambda row: _below(row, 0.01, stage=2),
        ),
    },
    ("Gradient Projection; Figures 5, 8, 9; the criterion is ours", MAIN + EPOCHS): _each(
        REVERTING,
        "near",
        "After unlearning, {} is less than half as far from ω⁰ as retraining is at its end.",
        lambda row: above(distance(2, "retrain"), distance(1, row), times=2.0),
    ),
}

KINDS = {
    "the claims in the paper's text, column by column": SAID,
    "its claims about run time, measured on a busy machine": TIMED,
    "the claims that only its tables show": SHOWN,
}

claims: Sequence[Claim] = tuple(
    Claim(name, says, where, columns, check, kind)
    for kind, tables in KINDS.items()
    for (where, columns), sentences in tables.items()
    for name, (says, check) in sentences.items()
)
