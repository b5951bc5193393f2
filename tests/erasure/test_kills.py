"""R1, R2, R13: an answer that is killed anywhere between receipt and purge ends in the same bytes.

A kill leaves the files of that moment. So beside processes that are killed at random times, one answer is
watched, its folder is copied after each file event and in the middle of each write, and continued from there.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.codes import refused
from support.desks import TARGET, Unsteady, answer, contents, document, opened, repeatable, started, way
from support.file_events import watch

from fedunlearn.erasure import purge
from fedunlearn.erasure.keys import read_key
from fedunlearn.runs import read_state

EVENTS = [
    *("received", "authenticated", "admitted", "unlearning", "verified", "recovering", "verified"),
    *("certified", "installing", "installed", "purging", "purged"),
]


def test_an_answer_goes_through_all_states(new, tmp_path):
    case = way(shutil.copytree(new, tmp_path / "desk"))
    assert [entry.event for entry in case.entries] == EVENTS


@pytest.fixture(scope="module")
def certified(new: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A desk with a request that is answered, but not purged."""
    folder = shutil.copytree(new, tmp_path_factory.mktemp("certified") / "desk")
    with repeatable():
        answer(opened(folder), document(), to_purge=False)
    return folder


def told(folder: Path) -> str:
    """The last event that the ledger tells of; a kill may have left it without."""
    lines = (folder / "ledger.jsonl").read_bytes() if (folder / "ledger.jsonl").exists() else b""
    complete = lines[: lines.rfind(b"\n") + 1].splitlines()
    events = [json.loads(line)["event"] for line in complete]
    return (
        f"{events[-1]} {events.count('verified')}" if events[-1:] == ["verified"] else (events or ["-"])[-1]
    )


def killed(folder: Path, entries: int, seconds: float) -> bool:
    """Whether an answer was killed, and not finished.

    It is killed so many seconds of its processor time after the ledger has so many entries.
    """
    child, since = started(lambda: way(folder)), None
    while not os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT):
        if since is None and written(folder) >= entries:
            since = used(child) if entries else 0.0
        if since is not None and used(child) - since >= seconds:
            break
        time.sleep(0.0005)
    os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    assert status in (0, signal.SIGKILL), "the work failed"
    return status != 0


def written(folder: Path) -> int:
    """Complete entries of the ledger."""
    path = folder / "ledger.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def used(process: int) -> float:
    """Seconds of the processor; on a busy machine, they say better than the clock how far a process is."""
    return time.clock_gettime(~process << 3 | 2)


def kill_at_random(new: Path, whole: dict[str, bytes], place: Path, kills: int) -> Counter[str]:
    """Kills so many answers, a tenth of them once more when they are continued; counts where they were.

    Every other one is killed at any time, the rest soon after an entry: some stages are short.
    """
    draw = random.Random("kills")
    began = time.process_time()
    way(shutil.copytree(new, place / "timed"))
    longest = 1.1 * (time.process_time() - began)
    where: Counter[str] = Counter()
    twice = 0
    folder = place / "desk"
    while where.total() < kills:
        shutil.copytree(new, folder)
        soon = draw.randrange(len(EVENTS)), draw.uniform(0, longest / 40)
        if killed(folder, *(soon if where.total() % 2 else (0, draw.uniform(0, longest)))):
            where[told(folder)] += 1
            if where.total() % 10 == 0:
                twice += killed(folder, 0, draw.uniform(0, longest / 2))
            way(folder)
            assert contents(folder) == whole, f"killed when the ledger told {where}"
        shutil.rmtree(folder)
    print(f"R1: {kills:,} of {kills:,} identical; {twice} killed twice; {dict(where)}")
    return where


def test_an_answer_that_is_killed_at_a_random_time_ends_in_the_same_bytes(new, whole, tmp_path):
    kill_at_random(new, whole, tmp_path, 10)


@pytest.mark.chaos
def test_a_thousand_kills_at_random_times_change_nothing(new, whole, tmp_path):
    where = kill_at_random(new, whole, tmp_path, 1000)
    assert {"-", "verified 1", "verified 2", *EVENTS} - {"verified", "purged"} <= {*where}


@dataclass(frozen=True)
class Moment:
    event: str
    folder: Path
    rounds: int
    """Trained until then."""


def moments(new: Path, place: Path, every: int) -> Iterator[Moment]:
    """The folder of an answer after each event of its files, or after one of so many."""
    folder, there = shutil.copytree(new, place / "watched"), Unsteady()
    found: list[Moment] = []
    number, copying = 0, False

    def keep(event: str, path: str) -> None:
        nonlocal number, copying
        if copying or event == "fsync":
            return
        number += 1
        if number % every == 0:
            copying = True
            name = f"{number} {event} {Path(path).name}"
            found.append(Moment(name, shutil.copytree(folder, place / str(number)), there.rounds))
            copying = False

    with repeatable(), pytest.MonkeyPatch.context() as patch:
        watch(patch, keep)
        answer(opened(folder), document(), there)
    yield Moment("end", folder, there.rounds)
    yield from found


def continue_all(new: Path, whole: dict[str, bytes], place: Path, every: int) -> int:
    """Continues from every moment; returns how many there were."""
    end, *found = moments(new, place, every)
    assert contents(end.folder) == whole
    for moment in found:
        there = Unsteady()
        admitted = told(moment.folder) not in ("-", "received", "authenticated")
        with repeatable():
            answer(opened(moment.folder), document(), there)
        assert contents(moment.folder) == whole, moment.event
        lost = there.rounds + moment.rounds - end.rounds
        assert lost <= 1 or not admitted, f"{lost} rounds were lost at {moment.event}"
        shutil.rmtree(moment.folder)
    print(
        f"R2: {len(found):,} of {len(found):,} moments continued to the same bytes, at most 1 round repeated"
    )
    return len(found)


def test_an_answer_continues_from_any_file_event(new, whole, tmp_path):
    assert continue_all(new, whole, tmp_path, 29) > 10


@pytest.mark.chaos
def test_an_answer_continues_from_every_file_event(new, whole, tmp_path):
    assert continue_all(new, whole, tmp_path, 1) > 300


def kill_at_event(folder: Path, work: Callable[[], object], number: int) -> bool:
    """Whether the work was killed at this event of its files, and did not end before."""

    def watched() -> None:
        left = number

        def strike(_event: str, _path: str) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)

        with repeatable(), pytest.MonkeyPatch.context() as patch:
            watch(patch, strike)
            work()

    status = os.waitpid(started(watched), 0)[1]
    assert status in (0, signal.SIGKILL)
    return status != 0


@pytest.mark.parametrize("number", [3, 40, 90, 160, 230, 300])
def test_a_process_that_is_killed_at_a_file_event_leaves_what_can_be_continued(new, whole, number, tmp_path):
    folder = shutil.copytree(new, tmp_path / "desk")
    assert kill_at_event(folder, lambda: answer(opened(folder), document()), number)
    way(folder)
    assert contents(folder) == whole


def purge_killed(certified: Path, whole: dict[str, bytes], place: Path, number: int) -> bool:
    """Whether a purge that is killed at a file event, if it has so many, is finished by the next one."""
    folder, sealed = shutil.copytree(certified, place / str(number)), place / f"{number}.sealed"
    request = opened(folder).cases()[0].id
    shutil.copy(folder / "requests" / request / "omega0.sealed", sealed)
    secret = read_key(folder / "requests" / request / "key")
    assert read_state(sealed, secret)
    struck = kill_at_event(folder, lambda: purge(opened(folder), request), number)
    with repeatable():
        case = purge(opened(folder), request)
    assert case.state == "purged"
    assert contents(folder) == whole
    assert not list(folder.rglob("key"))
    with refused("purged", says="is gone"):
        opened(folder).key(request)
    shutil.rmtree(folder)
    return struck


@pytest.mark.parametrize("number", [0, 7, 8, 9, 10, 11, 12, 30, 45])
def test_a_purge_that_is_killed_is_finished_by_the_next(certified, whole, number, tmp_path):
    assert purge_killed(certified, whole, tmp_path, number)


@pytest.mark.chaos
def test_a_purge_that_is_killed_at_any_file_event_is_finished_by_the_next(certified, whole, tmp_path):
    number = 0
    while purge_killed(certified, whole, tmp_path, number):
        number += 1
    print(f"R13: {number} of {number} crashes inside purge: it completes, the key is gone")
    assert number >= 50


def test_what_is_being_purged_is_not_continued(certified, tmp_path):
    folder = shutil.copytree(certified, tmp_path / "desk")
    request = opened(folder).cases()[0].id
    number = 0
    while told(folder) != "purging":
        shutil.rmtree(folder)
        shutil.copytree(certified, folder)
        assert kill_at_event(folder, lambda: purge(opened(folder), request), number)
        number += 1
    case = opened(folder).case(request)
    assert case.next_step == "finish with fedunlearn purge"
    assert answer(opened(folder), document(TARGET)).state == "purged"
