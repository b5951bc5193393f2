"""Whatever is done to a desk in whatever order: what its ledger says stays true."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from support.desks import CLIENTS, NOW, document, federation, make, opened, production, repeatable

from fedunlearn import FedUnlearnError
from fedunlearn.core.hashes import module_hash
from fedunlearn.erasure import Desk, RequestState, erase, purge, receive

QUICK = "keep_days = 1"
clients, numbers = st.sampled_from(CLIENTS), st.integers(0, 2)


class Desks(RuleBasedStateMachine):
    """A desk that does not know what comes next."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = make(Path(tempfile.mkdtemp()) / "desk", QUICK)
        settings = (self.folder / "desk.toml").read_text()
        (self.folder / "desk.toml").write_text(settings.replace("rounds = 3", "rounds = 1"))
        self.now = NOW
        self.deadlines: dict[str, int] = {}
        self.patched = repeatable()
        self.patched.__enter__()

    def teardown(self) -> None:
        self.patched.__exit__(None, None, None)
        shutil.rmtree(self.folder.parent)

    @property
    def desk(self) -> Desk:
        return opened(self.folder, self.now)

    def some(self, number: int) -> str:
        cases = self.desk.cases()
        return cases[number % len(cases)].id if cases else "none"

    @rule(client=clients, number=numbers)
    def receive(self, client: str, number: int) -> None:
        desk = self.desk
        served = module_hash(production(desk))
        self.told(lambda: receive(desk, document(client, number, served), served))

    @rule(client=clients, number=numbers)
    def receive_for_the_first_model(self, client: str, number: int) -> None:
        desk = self.desk
        self.told(lambda: receive(desk, document(client, number), module_hash(production(desk))))

    @rule(number=st.integers(0, 20))
    def erase(self, number: int) -> None:
        desk, request = self.desk, self.some(number)
        self.told(lambda: erase(desk, request, federation(), production(desk)))

    @rule(number=st.integers(0, 20), withdrawn=st.booleans())
    def purge(self, number: int, withdrawn: bool) -> None:
        desk, request = self.desk, self.some(number)
        self.told(lambda: purge(desk, request, withdrawn=withdrawn))

    @rule(hours=st.integers(-2, 9))
    def wait(self, hours: int) -> None:
        self.now += 3600 * hours

    def told(self, work) -> None:
        """Does it, or hears in one sentence why not."""
        sentence = ""
        try:
            work()
        except FedUnlearnError as error:
            sentence = str(error)
        assert "\n" not in sentence

    @invariant()
    def the_ledger_is_true(self) -> None:
        desk = self.desk
        cases = desk.cases()
        for case in cases:
            events = [entry.event for entry in case.entries]
            if "certified" in events:
                assert "verified" in events[: events.index("certified")]
                assert "installed" not in events[: events.index("certified")]
            alive = (desk.place(case.id) / "key").exists()
            assert alive == (case.state not in (RequestState.PURGED, RequestState.REFUSED))
            if case.deadline is not None:
                assert self.deadlines.setdefault(case.id, case.deadline) == case.deadline
        waiting = [(desk.key(case.id), case.last("received")) for case in cases if case.waiting]
        for client in CLIENTS:
            assert sum(key.pseudonym(client) == told.fields["subject"] for key, told in waiting) <= 1

    @invariant()
    def production_knows_nobody_who_was_forgotten(self) -> None:
        desk = self.desk
        installed = [entry for entry in desk.ledger.entries if entry.event == "installed"]
        if installed:
            assert module_hash(production(desk)) == installed[-1].fields["model"]


def run(examples: int, steps: int) -> None:
    chosen = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(Desks, settings=chosen)
    print(f"state machine: {examples} runs of up to {steps} steps, every ledger true")


def test_a_desk_stays_true(one_thread):
    run(4, 10)


@pytest.mark.chaos
def test_a_desk_stays_true_for_long(one_thread):
    run(150, 40)
