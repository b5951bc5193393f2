from __future__ import annotations

from collections import defaultdict

from support.codes import refused

import fedunlearn.data
import fedunlearn.methods
import fedunlearn.models  # noqa: F401 (all three register names)
from fedunlearn.core import registry
from fedunlearn.studies.paper.paper import Printed, lookup, printed

METRICS = (
    "asr",
    "r_acc",
    "r_acc_std",
    "r_acc_worst",
    "r_acc_best",
    "conflicts",
    "seconds",
    "seconds_server",
)

# Typed from the paper: table, dataset, partition, clients, epochs, row, stage, numbers in its order, mark r.
TYPED = """
table1 fmnist pat-20 10 1 omega0 0 .991 .852 .113
table1 fmnist iid 10 1 federaser 2 .002 .872 .009
table1 cifar10 pat-20 10 1 fupga 2 .662 .599 .157 r
table1 cifar10 pat-50 10 1 mode 1 .066 .199 .119
table1 cifar10 iid 10 1 fedosd 2 .030 .734 .015
sfu fmnist pat-20 10 1 sfu 1 .000 .345 .27
sfu fmnist pat-50 10 1 sfu 2 .563 .846 .02 r
sfu fmnist iid 10 1 sfu 1 .103 .169 .01
conflicts mnist pat-20 10 1 omega0 0 .997 .963
conflicts mnist pat-20 10 1 mode 1 .039 .723 3.47
conflicts mnist pat-20 10 1 fupga 1 .000 .535 7.38
conflicts cifar100 pat-20 10 1 fedrecovery 1 .000 .214 1.00
conflicts cifar100 pat-20 10 1 fedosd 1 .000 .369 0.00
clients cifar10 pat-50 10 1 retrain 2 .009 .583 .149 .435 .770
clients cifar10 pat-50 20 1 fedrecovery 2 .074 .667 .075 .552 .766 r
clients cifar10 pat-50 50 1 omega0 0 .085 .712 .069 .570 .830
clients cifar10 pat-50 50 1 fedosd 1 .000 .707 .067 .575 .830
ablation fmnist pat-50 10 1 fedosd-m1 1 .000 .163
ablation cifar10 pat-50 10 1 fedosd-m3 1 .331 .697
ablation cifar10 pat-50 10 1 fedosd-m5 2 .340 .655 r
ablation cifar100 pat-50 10 1 fedosd-m4 1 .004 .360
ablation cifar100 pat-50 10 1 fedosd 2 .056 .458
fmnist fmnist pat-20 10 1 fedosd 2 .023 .851 .105 .593 .947
fmnist fmnist pat-50 10 1 omega0 0 .957 .869 .013 .844 .89
fmnist fmnist iid 10 1 ewcsga 2 .378 .896 .012 .870 .911 r
cifar10 cifar10 pat-20 10 1 fupga 2 .662 .599 .157 .331 .809 r
cifar10 cifar10 pat-50 10 1 federaser 2 .026 .571 .128 .399 .693
cifar10 cifar10 iid 10 1 mode 1 .025 .481 .018 .456 .507
mnist mnist pat-20 10 1 fupga 1 .000 .532 .360 .010 .953
mnist mnist pat-50 10 1 ewcsga 1 .000 .441 .485 .000 .993
mnist mnist iid 10 1 fedrecovery 2 .358 .986 .004 .977 .992 r
cifar100 cifar100 pat-20 10 1 omega0 0 .584 .394 .046 .282 .454
cifar100 cifar100 pat-50 10 1 fedosd 2 .025 .458 .030 .418 .523
cifar100 cifar100 iid 10 1 fupga 2 .179 .502 .011 .488 .523 r
epochs fmnist pat-20 10 5 retrain 2 .003 .753 .239 .370 .952
epochs fmnist pat-50 10 5 fedosd 1 .000 .864 .013 .840 .881
epochs fmnist iid 10 5 fedrecovery 2 .850 .898 .012 .878 .919 r
ablation-m6 fmnist pat-50 10 1 fedosd-m6 1 .200 .110
ablation-m6 cifar10 pat-50 10 1 fedosd 1 .000 .602
ablation-m6 cifar100 pat-50 10 1 fedosd-m6 1 .021 .011
runtime fmnist pat-50 10 1 retrain 2 63.58 0.44
runtime cifar10 pat-50 10 1 fedrecovery 2 143.41 3.4
runtime cifar100 pat-50 10 1 fedosd 2 643.94 0.77
"""


def numbers(row: Printed) -> dict[str, float]:
    return {name: value for name in METRICS if (value := getattr(row, name)) is not None}


def test_every_cell_of_the_paper_is_there_once():
    cells = [(r.table, r.dataset, r.partition, r.clients, r.epochs, r.row, r.stage) for r in printed()]
    assert len(cells) == len(set(cells))


def test_numbers_are_those_of_the_paper():
    """Typed a second time, a few of each table: a slip in the file would have to be made twice."""
    lines = [line.split() for line in TYPED.strip().splitlines()]
    assert {line[0] for line in lines} == {row.table for row in printed()}
    for table, dataset, partition, clients, epochs, row, stage, *typed in lines:
        found = lookup(
            dataset=dataset,
            partition=partition,
            row=row,
            stage=int(stage),
            clients=int(clients),
            epochs=int(epochs),
        )
        (entry,) = (one for one in found if one.table == table)
        assert entry.reverted == (typed[-1] == "r"), entry
        assert list(numbers(entry).values()) == [float(value) for value in typed if value != "r"], entry


def test_names_are_those_of_this_package():
    models = {"mnist": "lenet5", "fmnist": "mlp", "cifar10": "cnn", "cifar100": "nfresnet18"}
    for row in printed():
        for known, name in (
            (registry.dataset, row.dataset),
            (registry.partition, row.partition),
            (registry.model, row.model),
        ):
            known.entry(name)
        assert row.model == models[row.dataset]
        assert (row.row == "omega0") == (row.stage == 0)
        if row.row != "omega0":
            registry.method.entry(row.row)


def test_numbers_agree_with_each_other():
    for row in printed():
        shares = [
            row.asr,
            row.r_acc,
            row.r_acc_std,
            row.r_acc_worst,
            row.r_acc_best,
        ]
        assert all(0 <= share <= 1 for share in shares if share is not None)
        assert (row.r_acc_worst is None) == (row.r_acc_best is None)
        if row.r_acc_worst is not None:
            assert row.r_acc_worst <= row.r_acc <= row.r_acc_best
            # No spread between worst and best has a larger deviation (Bhatia and Davis), of a sample.
            retained = row.clients - 1
            widest = (row.r_acc_best - row.r_acc + 0.001) * (row.r_acc - row.r_acc_worst + 0.001)
            assert row.r_acc_std <= (widest * retained / (retained - 1)) ** 0.5 + 0.0005
        if row.conflicts is not None:
            assert 0 <= row.conflicts <= row.clients - 1


def test_the_mark_r_says_that_asr_rose():
    stages = {(r.table, r.dataset, r.partition, r.clients, r.row, r.stage): r for r in printed()}
    for (*where, stage), row in stages.items():
        if row.reverted:
            assert stage == 2
            assert row.asr > stages[(*where, 1)].asr


def test_where_the_paper_contradicts_itself():
    places = defaultdict(dict)
    for row in printed():
        where = (row.dataset, row.partition, row.clients, row.epochs, row.row, row.stage)
        for name, value in numbers(row).items():
            places[*where, name][row.table] = value
        if row.asr is not None:
            places[*where, "reverted"][row.table] = row.reverted
    assert {where: found for where, found in places.items() if len(set(found.values())) > 1} == {
        ("cifar10", "pat-50", 10, 1, "fedosd", 2, "asr"): {
            "table1": 0.016,
            "clients": 0.016,
            "ablation": 0.024,
            "cifar10": 0.016,
        },
        ("mnist", "pat-20", 10, 1, "fupga", 1, "r_acc"): {"conflicts": 0.535, "mnist": 0.532},
        ("cifar100", "pat-50", 10, 1, "fedosd", 2, "asr"): {"ablation": 0.056, "cifar100": 0.025},
    }


def test_lookup_finds_every_table_and_nothing_that_is_not_printed():
    where = {"dataset": "cifar10", "partition": "pat-50", "row": "fedosd", "stage": 1}
    assert [row.table for row in lookup(**where)] == [
        "table1",
        "clients",
        "ablation",
        "cifar10",
        "ablation-m6",
    ]
    assert [row.table for row in lookup(**where, clients=50)] == ["clients"]
    assert lookup(**where, clients=30) == []


def test_an_unknown_table_is_explained():
    with refused("unknown", says="no table 'ablations'; did you mean 'ablation'"):
        printed("ablations")
