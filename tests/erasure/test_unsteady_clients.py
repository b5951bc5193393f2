"""R9, R11: clients that come and go: an answer ends in a typed state, or in a sentence, and goes on later."""

from __future__ import annotations

import random
import shutil
import time
from collections import Counter
from pathlib import Path

import pytest
from support.desks import CLIENTS, TARGET, Unsteady, answer, contents, document, opened, repeatable

from fedunlearn import FedUnlearnError
from fedunlearn.erasure import Case

LONGEST = 30.0
"""Seconds that an answer may take, however clients behave."""


@pytest.fixture(scope="module")
def exchanges(new: Path, tmp_path_factory: pytest.TempPathFactory) -> int:
    """How many an answer takes when everybody is there."""
    there = Unsteady()
    folder = shutil.copytree(new, tmp_path_factory.mktemp("counted") / "desk")
    with repeatable():
        answer(opened(folder), document(), there)
    return there.exchanges


def tried(folder: Path, there: Unsteady) -> tuple[Case, str]:
    """A request after an attempt to answer it, and the sentence in which that ended, if any."""
    began, told = time.monotonic(), ""
    with repeatable():
        try:
            answer(opened(folder), document(), there, to_purge=False)
        except FedUnlearnError as error:
            told = str(error)
    assert time.monotonic() - began < LONGEST
    assert "\n" not in told
    return opened(folder).cases()[0], told


def end(folder: Path, there: Unsteady, *, left: bool = False) -> str:
    """How an attempt ends; whatever happens, it is told. ``left`` says that the target is not back."""
    case, told = tried(folder, there)
    assert (case.state.open and not case.state.failed) == bool(told)
    if case.state == "certified":
        assert "verified" in [entry.event for entry in case.current]
        assert not left or case.last("certified").fields["claim"] == "PROCESS_ONLY"
    return "resumable" if told else str(case.state)


def finished(folder: Path) -> Case:
    """The same answer when everybody is back."""
    with repeatable():
        return answer(opened(folder), document())


ROUNDS, MEASURED, AUDITED = (3, 6, 8), (10, 18), 19
"""The exchanges in which the target unlearns, measures the ends of stages, and compares models."""


@pytest.mark.wording
@pytest.mark.parametrize("left_at", [1, *ROUNDS, *MEASURED, AUDITED])
def test_a_target_that_leaves_is_partly_answered_and_the_answer_goes_on_when_it_is_back(
    new, whole, left_at, tmp_path
):
    folder = shutil.copytree(new, tmp_path / "desk")
    case, told = tried(folder, Unsteady(lambda client, number: client == TARGET and number >= left_at))
    if left_at == 1:
        assert "is not present" in told
        assert case.state == "authenticated"
    elif left_at in ROUNDS:
        assert case.state == "partial"
        assert case.entries[-1].fields["claim"] == "PARTIAL"
        assert case.entries[-1].fields["reason"] == "missing_reply"
    else:
        assert case.last("certified").fields["claim"] == "PROCESS_ONLY"
    case = finished(folder)
    assert case.state == "purged"
    assert contents(folder)["model.safetensors"] == whole["model.safetensors"]


def leave_everywhere(new: Path, exchanges: int, place: Path, every: int) -> Counter[str]:
    """Each client leaves for good at each exchange, or for one of them; later everybody is back."""
    found: Counter[str] = Counter()
    cases = [
        (client, number, forever)
        for client in (TARGET, "site-0", "site-10")
        for number in range(1, exchanges + 1)
        for forever in (True, False)
    ]
    for client, number, forever in cases[::every]:
        folder = shutil.copytree(new, place / "desk")
        there = Unsteady(
            lambda each, now, client=client, number=number, forever=forever: (
                each == client and (now >= number if forever else now == number)
            )
        )
        role = "target" if client == TARGET else "retained"
        found[f"{role} {end(folder, there, left=client == TARGET and forever)}"] += 1
        assert finished(folder).state in ("purged", "escalated", "certified")
        shutil.rmtree(folder)
    print(f"R9: {found.total()} drops, {found.total()} typed ends; {dict(found)}")
    return found


def test_clients_that_drop_out_leave_a_typed_end(new, exchanges, tmp_path):
    leave_everywhere(new, exchanges, tmp_path, 17)


@pytest.mark.chaos
def test_clients_that_drop_out_anywhere_leave_a_typed_end(new, exchanges, tmp_path):
    leave_everywhere(new, exchanges, tmp_path, 1)


def random_schedules(new: Path, place: Path, count: int) -> None:
    found: Counter[str] = Counter()
    for schedule in range(count):
        draw = random.Random(f"schedule {schedule}")
        shares = {client: draw.choice([0.0, 0.1, 0.3, 0.6]) for client in CLIENTS}

        def absent(client: str, number: int, schedule=schedule, shares=shares) -> bool:
            return random.Random(f"{schedule} {client} {number}").random() < shares[client]

        folder = shutil.copytree(new, place / "desk")
        found[end(folder, Unsteady(absent))] += 1
        assert finished(folder).state in ("purged", "escalated", "certified")
        shutil.rmtree(folder)
    print(f"R9: {count} random schedules, {count} typed ends; {dict(found)}")


def test_clients_that_come_and_go_leave_a_typed_end(new, tmp_path):
    random_schedules(new, tmp_path, 4)


@pytest.mark.chaos
def test_clients_that_come_and_go_in_any_way_leave_a_typed_end(new, tmp_path):
    random_schedules(new, tmp_path, 500)
