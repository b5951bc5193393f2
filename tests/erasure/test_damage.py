"""R4: every file of a desk, damaged in every way at every stage of an answer.

A damage counts as noticed if the commands that read the desk refuse it in one sentence, or tell about it and
go on with what is good. It is harmless if the answer ends in the same bytes. Nothing else may happen.
"""

from __future__ import annotations

import json
import os
import random
import secrets
import shutil
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.damages import ANYWHERE, ONCE, TEXT
from support.desks import TARGET, answer, contents, document, federation, make, opened, repeatable

from fedunlearn import FedUnlearnError, Replies
from fedunlearn.erasure import purge, verify
from fedunlearn.erasure.certificate import read_certificate
from fedunlearn.erasure.ledger import Ledger

UNREAD = ("certificate.html", "plan.json", "controller.pub", "desk.toml")
"""Pages for people, which nobody reads back, and what the operator writes: it may be changed any time."""
HARMLESS = ("nonces/", "controller.key")
"""A nonce only repeats what the ledger knows; a key that still signs the same is the same key."""
SMALL = 800
"""Bytes up to which a file is cut at many places."""


class Copying:
    """A federation that copies the desk when a certain round begins."""

    def __init__(self, folder: Path, place: Path) -> None:
        self._whole, self._folder, self._place, self._rounds = federation(), folder, place, 0
        self.task = self._whole.task

    def present(self) -> frozenset[str]:
        return self._whole.present()

    def exchange(self, jobs, *terms) -> Replies:
        self._rounds += any(job.work == "train" for job in jobs.values())
        for name, number in {"round 3": 3, "round 6": 6}.items():
            if self._rounds == number and not (self._place / name).exists():
                shutil.copytree(self._folder, self._place / name)
        return self._whole.exchange(jobs, *terms)


def course(place: Path, number: int) -> dict[str, bytes]:
    """Answers a request and copies the desk on the way; returns what the desk holds at the end."""
    folder = make(place / "desk")
    there = Copying(folder, place)
    append, told = Ledger.append, Counter[str]()

    def copying(ledger: Ledger, request: str, event: str, **fields):
        entry = append(ledger, request, event, **fields)
        told[event] += 1
        shutil.copytree(folder, place / f"{event} {told[event]}")
        return entry

    with repeatable(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(Ledger, "append", copying)
        if number:
            patch.setattr(secrets, "token_bytes", os.urandom)
        answer(opened(folder), document(TARGET, number), there)
    return contents(folder)


STAGES = [
    *("received 1", "authenticated 1", "admitted 1", "round 3", "verified 1", "round 6", "verified 2"),
    *("certified 1", "installing 1", "installed 1", "purging 1", "purged 1"),
]


@dataclass(frozen=True)
class Desks:
    place: Path
    other: Path
    whole: dict[str, bytes]


@pytest.fixture(scope="module")
def desks(tmp_path_factory: pytest.TempPathFactory) -> Desks:
    """The same desk at several times, and another one that answers the same client with other keys."""
    one, two = (tmp_path_factory.mktemp(name) for name in ("one", "two"))
    course(two, 1)
    (there,) = (two / "purged 1" / "requests").iterdir()
    found = Desks(one, two, course(one, 0))
    (here,) = (one / "purged 1" / "requests").iterdir()
    for stage in STAGES:  # what is copied keeps the place that its name says
        if (two / stage / "requests" / there.name).exists():
            (two / stage / "requests" / there.name).rename(two / stage / "requests" / here.name)
    return found


@dataclass(frozen=True)
class Case:
    stage: str
    kind: str
    file: str
    content: bytes | None


def cases(desks: Desks, each: int) -> Iterator[Case]:
    """All damages; those that may strike anywhere are tried so often in each file."""
    for number, stage in enumerate(STAGES):
        files = contents(desks.place / stage)
        earlier = contents(desks.place / STAGES[max(0, number - 1)])
        other = contents(desks.other / stage)
        for file, whole in files.items():
            if not whole or Path(file).name in UNREAD or file.startswith("clients/"):
                continue
            draw = random.Random(f"{stage} {file}")
            text = file.endswith((".json", ".jsonl"))
            kinds = ANYWHERE | (TEXT if text else {})
            struck = [(kind, damage) for kind, damage in kinds.items() for _ in range(each)]
            for kind, damage in [*struck, *ONCE.items()]:
                if kind != "delete" or file.count("/") != 2 or not file.endswith("/model.safetensors"):
                    yield Case(stage, kind, file, damage(draw, whole))  # a kept model may be deleted
            yield Case(stage, "append", file, whole + whole[-40:])
            if len(whole) <= SMALL and each > 1:
                for size in range(0, len(whole), max(1, len(whole) // 16)):
                    yield Case(stage, "cut", file, whole[:size])
            for kind, source in {"earlier": earlier, "other desk": other}.items():
                if file in source:
                    yield Case(stage, kind, file, source[file])
        place = next(name for name in files if name.endswith("/key"))[: -len("key")] if number < 10 else ""
        sealed = [file for file in files if _sealed(file)]
        for file in sealed:  # files that the same key encrypts, in each other's place
            for source in sealed:
                if place and source != file:
                    yield Case(stage, f"{Path(source).name} as", file, files[source])


def _sealed(file: str) -> bool:
    return file.endswith(".sealed") or ("/run/" in file and file.endswith(".safetensors"))


def noticed(desks: Desks, case: Case, place: Path) -> str:
    """What comes of a damage."""
    if contents(desks.place / case.stage).get(case.file) == case.content:
        return "none"
    folder = shutil.copytree(desks.place / case.stage, place / "desk")
    try:
        path = folder / case.file
        path.unlink() if case.content is None else path.write_bytes(case.content)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            try:
                read(folder)
            except FedUnlearnError as error:
                return "refused" if "\n" not in str(error) else f"missed: {error}"
            except Exception as error:
                return f"missed: {error!r}"
        now = contents(folder)
        if now == desks.whole or _counts_fewer(now, desks.whole):
            return "harmless"
        if case.stage == "received 1" and case.file.endswith("/key") and _received_again(now, desks.whole):
            return "told"
        left = {name for name in now.keys() | desks.whole.keys() if now.get(name) != desks.whole.get(name)}
        if left == {case.file} and (case.file.startswith(HARMLESS) or _means_the_same(folder, desks.whole)):
            return "harmless"
        named = any(Path(case.file).name in str(each.message) for each in told)
        return "told" if named and case.file not in left else "missed"
    finally:
        shutil.rmtree(folder)


def _counts_fewer(now: dict[str, bytes], whole: dict[str, bytes]) -> bool:
    """Whether the purge tells of one file less, because it was missing, and everything else is the same."""
    told = {"ledger.jsonl", "ledger.head.json"} | {name for name in whole if name.endswith("purge.json")}
    fewer = [
        [line for line in each["ledger.jsonl"].splitlines() if b'"event":"purg' not in line]
        for each in (now, whole)
    ]
    rest = [{name: each[name] for name in each.keys() - told} for each in (now, whole)]
    return fewer[0] == fewer[1] and rest[0] == rest[1]


def _received_again(now: dict[str, bytes], whole: dict[str, bytes]) -> bool:
    """Whether the ledger tells of a second receipt with a new key, which nothing had been encrypted with."""
    events = [json.loads(line)["event"] for line in now["ledger.jsonl"].splitlines()]
    before = [json.loads(line)["event"] for line in whole["ledger.jsonl"].splitlines()]
    return events == ["received", *before] and now["model.safetensors"] == whole["model.safetensors"]


def _means_the_same(folder: Path, whole: dict[str, bytes]) -> bool:
    """Whether the list of forgotten clients only lacks its last line break."""
    return (folder / "suppressed.json").read_bytes().strip() == whole["suppressed.json"].strip()


def read(folder: Path) -> None:
    """The commands of a desk: erase, which continues, then requests, purge and verify."""
    with repeatable():
        warnings.simplefilter("always")
        warnings.filterwarnings("ignore", message="no backdoor|the model was not audited|.*clean targets")
        desk = opened(folder)
        desk.forgotten([])
        case = answer(desk, document())
        desk = opened(folder)
        assert [each.id for each in desk.cases()] == [case.id]
        desk.forgotten([TARGET])
        purge(desk, case.id)
        place = desk.place(case.id)
        verify(
            read_certificate(place / "certificate.json"),
            folder / "controller.pub",
            model=folder / "model.safetensors",
            ledger=folder / "ledger.jsonl",
        )


def damage(desks: Desks, place: Path, each: int, share: float = 1.0) -> Counter[str]:
    """Tries the damages, or a share of them, and counts what came of them."""
    counts: Counter[str] = Counter()
    missed: list[tuple[str, str, str, str]] = []
    draw = random.Random("which")
    for case in cases(desks, each):
        if draw.random() < share:
            result = noticed(desks, case, place)
            counts[result.split(":")[0]] += 1
            if result.startswith("missed"):
                missed.append((case.stage, case.kind, case.file, result))
    total = counts.total() - counts["none"]
    print(f"R4: {total:,} damages, {len(missed)} missed; {dict(counts)}")
    assert not missed, "\n".join(map(str, missed))
    return counts


def test_an_undamaged_desk_is_read(desks, tmp_path):
    for stage in STAGES:
        folder = shutil.copytree(desks.place / stage, tmp_path / stage)
        with warnings.catch_warnings(record=True) as told:
            read(folder)
        assert contents(folder) == desks.whole
        assert not [each for each in told if "damaged" in str(each.message)]


def test_damage_to_a_desk_is_noticed(desks, tmp_path):
    assert damage(desks, tmp_path, 1, 0.03)["refused"] > 30


@pytest.mark.chaos
def test_damage_anywhere_on_a_desk_is_noticed(desks, tmp_path):
    counts = damage(desks, tmp_path, 4)
    assert counts["refused"] + counts["told"] + counts["harmless"] >= 3000
