from __future__ import annotations

import io
import os
import re
from dataclasses import replace

import pytest
import torch
from rich.console import Console

from fedunlearn.cli.progress import Display, duration
from fedunlearn.core import Event, Progress, State, Status
from fedunlearn.driver import log_rounds
from fedunlearn.methods import Schedule
from fedunlearn.methods.fedavg import Pretraining
from fedunlearn.methods.fedosd import fedosd
from fedunlearn.methods.retrain import retrain

PHASES = fedosd(Schedule(4, 0.1, 3, 0.1))
TRAINING = (Pretraining(10, 0.1),)
SCORES = {"asr": 0.125, "r_acc": 0.75}


def start(phases=PHASES):
    return Event(Progress(0, 0, State(torch.zeros(1))), phases, {"stage": "start", "round": 0, **SCORES})


def event(phase, done, phases=PHASES, status=Status.RUNNING, **scores):
    stage = phases[phase].stage
    state = State(torch.zeros(1), done, status=status)
    return Event(Progress(phase, 1 + done, state), phases, {"stage": stage, "round": done, **scores})


class Clock:
    """Time that passes only when told to."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def plain(*events, seconds=0.1, planned=None):
    """Shows the events on something that is no terminal, so many seconds apart, and returns the lines."""
    console, clock = Console(file=io.StringIO(), width=100), Clock()
    with Display(console, planned or {"": (0, 7)}, clock=clock) as display, display.run() as listener:
        for each in events:
            clock.now += seconds
            listener(each)
    return console.file.getvalue().splitlines()


def test_plain_lines_come_at_the_end_of_each_stage_without_escape_codes():
    lines = plain(start(), *(event(0, n, **SCORES) for n in range(1, 5)), *(event(1, n) for n in range(1, 4)))
    assert lines == [
        "pre-training skipped: ω⁰ exists already",
        "unlearning 4/4  ASR 12.5%  R-Acc 75.0% (round 4)",
        "post-training 3/3  ASR 12.5%  R-Acc 75.0% (unlearning 4)",
    ]


def test_measurements_say_which_round_they_are_from():
    late = {"asr": 0.5, "r_acc": 0.25}
    lines = plain(start(), event(0, 1), event(0, 2, **late), event(0, 3), seconds=10.0)[1:]
    assert [re.search(r"\((.*)\)", line)[1] for line in lines] == ["before", "round 2", "round 2"]


def test_a_new_model_is_retrained_and_has_no_scores_of_the_one_before():
    phases = retrain(Schedule(1, 0.1, 2, 0.1))
    lines = plain(start(phases), event(0, 1, phases), event(0, 2, phases, **SCORES), seconds=10.0)[1:]
    assert [line.split("  about")[0] for line in lines] == [
        "retraining 1/3",
        "retraining 2/3  ASR 12.5%  R-Acc 75.0% (round 2)",
    ]


def test_plain_lines_come_no_faster_than_one_in_ten_seconds():
    phases = fedosd(Schedule(100, 0.1, 0, 0.1))
    assert len(plain(start(), *(event(0, n, phases) for n in range(1, 100)), seconds=1.0)) == 1 + 10


def test_a_stage_that_ends_early_says_so():
    *_, line = plain(event(0, 2, status=Status.CONVERGED, **SCORES))
    assert line.startswith("unlearning 2/4")


def test_only_a_pre_training_that_did_not_run_is_called_skipped():
    lines = plain(start(TRAINING), event(0, 10, TRAINING), start(), event(0, 4), planned={"": (10, 7)})
    assert lines[0].startswith("pre-training 10/10")
    assert not any("skipped" in line for line in lines)


def test_the_total_time_is_known_while_the_first_model_trains():
    lines = plain(
        start(TRAINING), *(event(0, n, TRAINING) for n in range(1, 4)), seconds=60, planned={"": (10, 7)}
    )
    assert [line.rpartition("  ")[2] for line in lines] == [
        "about 16 min left",
        "about 15 min left",
        "about 14 min left",
    ]


def test_rounds_that_a_stage_does_not_need_are_not_waited_for():
    lines = plain(start(), event(0, 1), event(0, 2, status=Status.CONVERGED), seconds=60)
    assert lines[-1].endswith("about 3 min left")


def test_each_kind_of_round_is_judged_by_its_own_kind():
    console, clock = Console(file=io.StringIO(), width=100), Clock()
    with Display(console, {"": (10, 7)}, clock=clock) as display, display.run() as listener:
        listener(start(TRAINING))
        clock.now += 1000
        listener(event(0, 10, TRAINING))
        listener(start())
        clock.now += 60
        listener(event(0, 1))
    assert console.file.getvalue().splitlines()[-1].endswith("about 6 min left")


@pytest.mark.parametrize(
    ("seconds", "words"), [(29, "29 s"), (150, "2 min"), (7380, "2 h 3 min"), (260_000, "3 days")]
)
def test_times_are_rough(seconds, words):
    assert duration(seconds) == words


def on_terminal(*events, planned=None):
    """What a real pseudo-terminal receives."""
    reader, writer = os.openpty()
    with (
        os.fdopen(writer, "w") as file,
        Display(Console(file=file, width=120), planned or {"": (0, 7)}) as display,
        display.run() as listener,
    ):
        for each in events:
            listener(each)
    shown = b""
    while True:
        try:
            part = os.read(reader, 1 << 16)
        except OSError:  # Linux tells the end of a pseudo-terminal like this.
            break
        if not part:
            break
        shown += part
    os.close(reader)
    return shown.decode()


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


@pytest.mark.usefixtures("terminal")
def test_a_terminal_gets_bars_with_measurements_and_the_time_left_of_all_rounds():
    shown = on_terminal(start(), event(0, 1, **SCORES), event(0, 2), event(1, 1))
    for words in ("all rounds", "unlearning", "post-training", "2/4", "ASR 12.5%", "(round 1)", "ETA", "━"):
        assert words in shown


@pytest.mark.usefixtures("terminal")
def test_a_resumed_bar_starts_where_the_run_stopped():
    shown = on_terminal(event(0, 3, **SCORES))
    assert "3/4" in shown
    assert "1/4" not in shown


@pytest.mark.parametrize(("name", "value"), [("CI", "true"), ("TERM", "dumb")])
def test_no_bar_in_ci_or_on_a_dumb_terminal(terminal, monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    assert "━" not in on_terminal(event(0, 4, **SCORES))


MANY = {"seed-1/fedosd": (10, 7), "seed-1/puf": (0, 7)}


def test_many_runs_are_counted_before_and_their_time_is_told_after_the_first_rounds():
    console, clock = Console(file=io.StringIO(), width=100), Clock()
    with Display(console, MANY, clock=clock) as display:
        with display.run("seed-1/fedosd") as listener:
            listener(start(TRAINING))
            for number in range(1, 11):
                clock.now += 600
                listener(event(0, number, TRAINING))
            listener(start())
        with display.run("seed-1/puf") as listener:
            listener(start())
            clock.now += 600
            listener(event(1, 3))
    lines = console.file.getvalue().splitlines()
    assert lines[0] == "2 runs, 24 rounds at most"
    assert "seed-1/fedosd (1 of 2)" in lines
    assert "seed-1/puf (2 of 2)" in lines
    assert [line for line in lines if "in all" in line] == ["about 3 h 30 min in all, by the first rounds"]


@pytest.mark.usefixtures("terminal")
def test_many_runs_share_one_display():
    console = Console(file=io.StringIO(), force_terminal=True, width=140)
    with Display(console, MANY) as display:
        for name in MANY:
            with display.run(name) as listener:
                listener(event(0, 1, **SCORES))
    last = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", console.file.getvalue()).split("all rounds")[-1]
    assert "24/24" in last
    assert "seed-1/puf" in last
    assert last.count("unlearning") == 1


STOP = "unlearning ended in round 3 of 4: the next step [of it] would harm site-1"


def ended(phase, done, status=Status.DONE, reason=STOP, stopped=STOP):
    """The last event of a phase, with what guards have stopped so far."""
    found = event(phase, done, **SCORES).progress
    progress = replace(
        found, state=found.state.halt(status, reason), guarded=replace(found.guarded, stopped=stopped)
    )
    return Event(progress, PHASES, event(phase, done, **SCORES).metrics)


@pytest.mark.wording
def test_a_stop_by_guards_is_told_at_once_with_what_is_left(caplog):
    events = start(), event(0, 1), ended(0, 2), ended(1, 2, Status.RUNNING, reason="")
    told = (
        f"stopped by guards: {STOP}. The request may fail: 3 more rounds will show. Let them run, or "
        "stop now (Ctrl-C)"
    )
    lines = plain(*events, seconds=10.0)
    assert lines.index(told) == 3
    assert lines[2].startswith("unlearning 2/4")
    assert len(lines) == 5
    with caplog.at_level("INFO", logger="fedunlearn"):
        log = log_rounds()
        for each in events:
            log(each)
    assert [record.message == told for record in caplog.records] == [False, False, False, True, False]
    assert [record.message.endswith("; stopped by guards") for record in caplog.records[2:]] == [1, 0, 1]


@pytest.mark.wording
def test_a_failed_round_is_told_with_its_reason(caplog):
    failed = ended(1, 1, Status.MISSING_REPLY, "nobody answered", stopped="")
    told = "post-training failed (missing_reply): nobody answered"
    assert plain(start(), failed)[-1] == told
    with caplog.at_level("INFO", logger="fedunlearn"):
        log = log_rounds()
        for each in (start(), event(0, 1), failed):
            log(each)
    assert [record.levelname for record in caplog.records] == ["INFO", "INFO", "INFO", "WARNING"]
    assert caplog.records[-1].message == told
    assert [" left" in record.message for record in caplog.records] == [False, True, False, False]
