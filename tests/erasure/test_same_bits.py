"""R6, R7, R8: other processes, clocks, orders of arrival and surroundings do not change an answer."""

from __future__ import annotations

import hashlib
import itertools
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.desks import (
    CLIENTS,
    NOW,
    TARGET,
    Unsteady,
    answer,
    contents,
    document,
    opened,
    repeatable,
    started,
    way,
)
from support.file_events import watch

from fedunlearn import FedUnlearnError, Replies
from fedunlearn.core import Reply
from fedunlearn.erasure import receive, verify
from fedunlearn.erasure.certificate import read_certificate
from fedunlearn.signing import Refusal, Refused

DAY = 24 * 3600


def patient(folder: Path) -> None:
    """An answer that waits as long as another process works on it."""
    for _ in range(500):
        try:
            way(folder)
            return
        except FedUnlearnError as error:
            if error.code != "in-use":
                raise
        time.sleep(0.02)
    raise AssertionError("it never was its turn")


def together(new: Path, whole: dict[str, bytes], place: Path, times: int) -> None:
    for number in range(times):
        folder = shutil.copytree(new, place / str(number))
        for name in ("work.lock", "ledger.lock", "reception.lock"):
            (folder / name).write_text("4194304\n")  # as of a process that died
        children = [started(lambda folder=folder: patient(folder)) for _ in range(3)]
        assert [os.waitpid(child, 0)[1] for child in children] == [0, 0, 0]
        assert contents(folder) == whole
        shutil.rmtree(folder)
    print(f"R6: {times} of {times} times three processes at once left the same bytes")


def test_processes_on_one_desk_do_not_disturb_each_other(new, whole, tmp_path):
    together(new, whole, tmp_path, 1)


@pytest.mark.chaos
def test_many_processes_on_one_desk_do_not_disturb_each_other(new, whole, tmp_path):
    together(new, whole, tmp_path, 100)


def test_two_requests_of_a_client_at_once_leave_one_open(new, tmp_path):
    for number in range(5):
        folder = shutil.copytree(new, tmp_path / str(number))
        children = [started(lambda folder=folder, each=each: taken(folder, each)) for each in range(3)]
        ended = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        assert sorted(ended) == [0, 2, 2]
        states = sorted(case.state for case in opened(folder).cases())
        assert states == ["authenticated", "refused", "refused"]


def taken(folder: Path, number: int) -> None:
    """Ends with 0 if the request is accepted."""
    with repeatable():
        try:
            receive(opened(folder), document(TARGET, number))
        except Refused as refusal:
            os._exit(2 if refusal.reason is Refusal.STILL_OPEN else 3)


class Interrupted(Exception):
    """Stands for a crash."""


def jump(new: Path, place: Path, number: int, days: float) -> int:
    """The clock jumps after a crash at some file event; the deadline stays, and the certificate holds."""
    folder, left = shutil.copytree(new, place / f"{number} {days}"), number

    def strike(_event: str, _path: str) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise Interrupted

    with repeatable(), pytest.MonkeyPatch.context() as patch:
        receive(opened(folder), document())
        watch(patch, strike)
        with pytest.raises(Interrupted):
            answer(opened(folder), document())
    with repeatable():
        desk = opened(folder, NOW + days * DAY)
        for _ in range(2):  # its files may be kept for days after a clock that was ahead
            case = answer(desk, document())
            desk = opened(folder, NOW + 2 * DAY)
    assert case.state == "purged"
    assert case.deadline == int(NOW) + 30 * DAY
    verified = verify(
        read_certificate(desk.place(case.id) / "certificate.json"),
        folder / "controller.pub",
        model=folder / "model.safetensors",
        ledger=folder / "ledger.jsonl",
    )
    return verified.predicate.ledger.length


@pytest.mark.parametrize("days", [-1, 1])
@pytest.mark.parametrize("number", [30, 150, 300])
def test_a_clock_that_jumps_changes_neither_deadline_nor_result(new, number, days, tmp_path):
    assert jump(new, tmp_path, number, days) == 7


@pytest.mark.chaos
def test_a_clock_that_jumps_anywhere_changes_nothing(new, tmp_path):
    numbers = range(1, 320, 8)
    for number, days in itertools.product(numbers, (-1, 1)):
        jump(new, tmp_path, number, days)
    print(f"R6: {2 * len(numbers)} jumps of the clock, {2 * len(numbers)} certified in time")


class Shuffled(Unsteady):
    """Replies arrive in a certain order."""

    def __init__(self, order: tuple[str, ...]) -> None:
        super().__init__()
        self._order = order

    def exchange(self, jobs, *terms) -> Replies:
        jobs = {client: jobs[client] for client in self._order if client in jobs}
        replies = super().exchange(jobs, *terms)
        arrived: dict[str, Reply] = {c: replies[c] for c in reversed(self._order) if c in replies}
        return Replies(arrived, replies.missing)


def arrive(new: Path, whole: dict[str, bytes], place: Path, orders: list[tuple[str, ...]]) -> None:
    for order in orders:
        folder = shutil.copytree(new, place / "desk")
        with repeatable():
            answer(opened(folder), document(), Shuffled(order))
        assert contents(folder) == whole, order
        shutil.rmtree(folder)
    print(f"R7: {len(orders)} of {len(orders)} orders of arrival, the same bytes")


def test_the_order_of_arrival_does_not_matter(new, whole, tmp_path):
    draw = random.Random("orders")
    arrive(new, whole, tmp_path, [tuple(draw.sample(CLIENTS, len(CLIENTS))) for _ in range(2)])


@pytest.mark.chaos
def test_no_order_of_arrival_matters(new, whole, tmp_path):
    arrive(new, whole, tmp_path, list(itertools.permutations(CLIENTS)))


PROGRAM = """
import hashlib, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from support import desks
folder = Path(sys.argv[1])
desks.way(folder)
print(digest := hashlib.sha256(repr(sorted(desks.contents(folder).items())).encode()).hexdigest())
"""


def surrounded(new: Path, whole: dict[str, bytes], place: Path, count: int) -> None:
    expected = hashlib.sha256(repr(sorted(whole.items())).encode()).hexdigest()
    zones, languages = ("Asia/Kathmandu", "America/St_Johns", "UTC"), ("C", "tr_TR.UTF-8", "de_DE.UTF-8")
    for number in range(count):
        folder = shutil.copytree(new, place / str(number) / "desk")
        surroundings = {
            "PYTHONHASHSEED": str(number + 1),
            "TZ": zones[number % 3],
            "LC_ALL": languages[number // 3 % 3],
            "PYTHONUTF8": "0",
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path]),
        }
        named = folder if number % 2 else Path("desk")
        ended = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", PROGRAM, str(named)],
            cwd=folder.parent,
            env={**os.environ, **surroundings},
            capture_output=True,
            text=True,
        )
        assert ended.returncode == 0, ended.stderr
        assert ended.stdout.split() == [expected]
    print(f"R8: {count} of {count} surroundings, the same bytes")


def test_surroundings_do_not_matter(new, whole, tmp_path):
    surrounded(new, whole, tmp_path, 1)


@pytest.mark.chaos
def test_no_surroundings_matter(new, whole, tmp_path):
    surrounded(new, whole, tmp_path, 20)
