"""What each method costs: who trains when and what travels, in 20 + 20 rounds of 10 clients."""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest
from support.closed_form import DIMENSION, PUBLIC, SHAPES, Quadratics, fresh

from fedunlearn import History, Outcome, Request, Schedule, State, method, unlearn
from fedunlearn.core.history import KINDS
from fedunlearn.methods.fedavg import Pretraining
from fedunlearn.methods.knot import ClusteredPretraining
from fedunlearn.methods.sisa import SlicedPretraining

SITES = tuple(f"site-{number}" for number in range(10))
SCHEDULE = Schedule(20, 1e-4, 20, 1e-4, pretrain_lr=1e-4)
MODEL = 4 * DIMENSION


class Ten(Quadratics):
    def present(self):
        return frozenset({*SITES, PUBLIC})

    def examples(self, client):
        return 10 + (*SITES, PUBLIC).index(client)

    def measured(self, client, params):
        return {}


@cache
def pretrained(name: str) -> State:
    phase = {
        "knot": ClusteredPretraining(40, 1e-4, clusters=5),
        "sisa": SlicedPretraining(40, 1e-4, shards=1, slices=5),
    }.get(name, Pretraining(40, 1e-4, tuple(KINDS)))
    return unlearn([phase], Request(fresh("cost").params, SITES, (), shapes=SHAPES), Ten()).state


@cache
def run(name: str, **options: object) -> Outcome:
    before = pretrained(name if name in ("knot", "sisa") else "")
    asked = Request(
        before.params,
        SITES,
        ("site-1",),
        fresh,
        shapes=SHAPES,
        history=History.from_tensors(before.memory),
        public=PUBLIC,
    )
    return unlearn(method[name](SCHEDULE, **options), asked, Ten())


def rows(name: str, key: str, **options: object) -> list[object]:
    return [row[key] for row in run(name, **options).metrics[1:]]


TRAININGS = {
    "retrain": (0, 360),
    "fast-retrain": (0, 360),
    "finetune": (0, 360),
    "federaser": (0, 360),
    "rapid": (0, 360),
    "fedrecovery": (0, 351),
    "not": (0, 351),
    "reset": (0, 351),
    "fedmemprune": (9, 351),
    "fused": (0, 369),  # nine to find the critical layers
    "puf": (1, 351),
    "fedquit": (1, 351),
    "ascent": (20, 180),
    "ewcsga": (20, 180),
    "fupga": (20, 180),
    "sfu": (20, 180),
    "fedcare": (20, 180),
    "fupareto": (200, 180),
    "fedosd": (200, 180),
    **{f"fedosd-m{number}": (200, 180) for number in range(1, 7)},
    "fedosd-joint": (200, 0),
    "mode": (380, 180),
    "fedkdu": (0, 306),  # five rounds on public data are the server's own
    "knot": (0, 40),  # one of two clients in one of five clusters
    "noisy-finetune": (180, 180),
    "sisa": (0, 8 * (3 + 5 + 7 + 9)),  # the second of five slices, and those after it
}


def test_every_method_has_its_cost_written_down():
    assert set(TRAININGS) <= {entry.name for entry in method}
    assert {entry.name for entry in method if not entry.name.startswith("test")} <= set(TRAININGS)


@pytest.mark.parametrize("name", TRAININGS)
def test_local_trainings_of_each_stage(name):
    counted: Counter[str] = Counter()
    for row in run(name).metrics[1:]:
        counted[row["stage"]] += row["local_trainings"]
    assert (counted["unlearning"], counted["post-training"]) == TRAININGS[name]


@pytest.mark.parametrize(
    ("name", "options", "total"),
    [("mode", {"guidance": "target"}, 380), ("mode", {"guidance": "none"}, 360)],
)
def test_local_trainings_of_variants(name, options, total):
    assert sum(rows(name, "local_trainings", **options)) == total


def test_retrained_for_longer_it_costs_more():
    assert sum(rows("retrain", "local_trainings", rounds=60)) == 540


@pytest.mark.parametrize(
    ("name", "round", "down", "up"),
    [
        ("fedosd", 0, 10 * MODEL, 10 * MODEL),
        ("fedosd", 20, 9 * MODEL, 9 * MODEL),
        ("fedosd-joint", 10, 10 * MODEL, 10 * MODEL),
        ("retrain", 0, 9 * MODEL, 9 * MODEL),
        ("fedrecovery", 0, 0, 0),
        ("not", 0, 0, 0),
        ("reset", 0, 0, 0),
        ("fedmemprune", 0, 9 * MODEL, 9 * MODEL),
        ("fused", 0, 9 * MODEL + 9 * (MODEL + MODEL // 4), 2 * 9 * MODEL),  # a mask of one byte per entry
        ("fused", 1, 9 * (MODEL + MODEL // 4), 9 * MODEL),
        ("puf", 0, MODEL, MODEL),
        ("ascent", 0, MODEL, MODEL),
        ("ewcsga", 0, MODEL + 3 * MODEL, 2 * MODEL),  # the Fisher diagonal comes up first
        ("ewcsga", 1, 3 * MODEL, MODEL),  # anchor and Fisher diagonal go down
        ("fupga", 0, 2 * MODEL, MODEL),  # the centre of the ball
        ("sfu", 0, 10 * MODEL, MODEL + 9 * 4 * 4 * 4),  # second moments of inputs, no displacement
        ("mode", 0, 9 * MODEL + 11 * MODEL, 9 * MODEL + 10 * MODEL),  # the target gets the teacher too
        ("fedquit", 0, 2 * MODEL, MODEL),
        ("fedcare", 0, 2 * MODEL, MODEL),  # ω⁰, which the proxies are made from
        ("fupareto", 0, 10 * MODEL, 10 * MODEL),
        ("fedkdu", 0, 0, 0),
        ("fedkdu", 1, 0, 0),
        ("federaser", 7, 9 * MODEL, 9 * MODEL),
        ("knot", 0, MODEL, MODEL),
        ("noisy-finetune", 0, 9 * MODEL, 9 * MODEL),
        ("sisa", 0, 3 * MODEL, 3 * MODEL),
    ],
)
def test_bytes_of_a_round(name, round, down, up):
    assert rows(name, "bytes_down")[round] == down
    assert rows(name, "bytes_up")[round] == up


@pytest.mark.parametrize(
    ("name", "stored"),
    [
        ("fedosd", 8),  # how often there was no direction
        ("ascent", 0),
        ("sfu", 0),
        ("puf", 0),
        ("fedmemprune", 0),
        ("fused", MODEL // 4),
        ("fedquit", 0),
        ("fedcare", 0),
        ("fupareto", 8),
        ("federaser", 40 * 10 * len(SHAPES) * 4 + MODEL),
        ("fedrecovery", 10 * MODEL + 16),
        ("fedkdu", 10 * MODEL),
        ("fupga", 10 * MODEL + MODEL + 4),  # the others' models, the ball
        ("mode", MODEL),
        ("knot", 6 * MODEL + MODEL),
        ("noisy-finetune", 8),
        ("sisa", 6 * MODEL + MODEL + 5 * 8 + 10 * 16),  # beside models: rates, places
    ],
)
def test_bytes_that_the_server_keeps(name, stored):
    assert rows(name, "bytes_stored")[0] == stored


def test_the_recovery_keeps_nothing():
    for name in ("fedrecovery", "fupga", "mode", "ewcsga"):
        assert rows(name, "bytes_stored")[-1] == 0
