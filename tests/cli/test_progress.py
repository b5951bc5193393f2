from __future__ import annotations

import io
import os
import re

import pytest
import torch
from rich.console import Console

from fedunlearn.cli import progress
from fedunlearn.cli.progress import Display
from fedunlearn.core import Event, Progress, State, Status
from fedunlearn.methods import Schedule
from fedunlearn.methods.fedavg import Pretraining
from fedunlearn.methods.fedosd import fedosd

PHASES = fedosd(Schedule(4, 0.1, 3, 0.1))
SCORES = {"asr": 0.125, "r_acc": 0.75}


def start(phases=PHASES):
    return Event(Progress(0, 0, State(torch.zeros(1))), phases, {"stage": "start", "round": 0, **SCORES})


def event(phase, done, phases=PHASES, status=Status.RUNNING, **scores):
    stage = phases[phase].stage
    state = State(torch.zeros(1), done, status=status)
    return Event(Progress(phase, 1 + done, state), phases, {"stage": stage, "round": done, **scores})


@pytest.fixture
def plain(monkeypatch):
    """Shows the events on something that is no terminal, a second apart, and returns the lines."""

    def show(*events, seconds=1.0):
        now = iter(range(10_000))
        monkeypatch.setattr(progress.time, "monotonic", lambda: next(now) * seconds)
        console = Console(file=io.StringIO(), width=100)
        with Display(console) as display:
            for each in events:
                display(each)
        return console.file.getvalue().splitlines()

    return show


def test_plain_lines_come_at_the_end_of_each_stage_without_escape_codes(plain):
    lines = plain(start(), *(event(0, n, **SCORES) for n in range(1, 5)), *(event(1, n) for n in range(1, 4)))
    assert lines == [
        "ω⁰ taken from the cache",
        "unlearning 4/4  ASR 0.125  R-Acc 0.750",
        "post-training 3/3  ASR 0.125  R-Acc 0.750",
    ]
    assert not re.search(r"[\x1b\r]", "".join(lines))


def test_plain_lines_come_no_faster_than_one_in_ten_seconds(plain):
    phases = fedosd(Schedule(100, 0.1, 0, 0.1))
    lines = plain(*(event(0, n, phases) for n in range(1, 100)), seconds=1.0)
    assert len(lines) == 9


def test_a_stage_that_ends_early_says_so(plain):
    (line,) = plain(event(0, 2, status=Status.CONVERGED, **SCORES))
    assert line.startswith("unlearning 2/4")


def test_only_a_cached_pre_training_is_called_cached(plain):
    training = (Pretraining(2, 0.1),)
    lines = plain(start(training), event(0, 1, training), event(0, 2, training), start(), event(0, 4))
    assert lines[0].startswith("pre-training 2/2")
    assert not any("cache" in line for line in lines)


def on_terminal(*events):
    """What a real pseudo-terminal receives."""
    reader, writer = os.openpty()
    with os.fdopen(writer, "w") as file, Display(Console(file=file, width=120)) as display:
        for each in events:
            display(each)
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
def test_a_terminal_gets_a_bar_with_scores_and_the_time_left():
    shown = on_terminal(start(), event(0, 1, **SCORES), event(0, 2), event(1, 1))
    for words in ("unlearning", "post-training", "2/4", "ASR 0.125", "R-Acc 0.750", "ETA", "━"):
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


def test_many_runs_are_named_and_counted_in_plain_lines():
    console = Console(file=io.StringIO(), width=100)
    with Display(console, runs=2) as display:
        for name in ("seed-1/fedosd", "seed-1/puf"):
            with display.run(name) as listener:
                listener(start())
                listener(event(1, 3, **SCORES))
    assert console.file.getvalue().splitlines() == [
        "seed-1/fedosd (1 of 2)",
        "post-training 3/3  ASR 0.125  R-Acc 0.750",
        "seed-1/puf (2 of 2)",
        "post-training 3/3  ASR 0.125  R-Acc 0.750",
    ]


@pytest.mark.usefixtures("terminal")
def test_many_runs_share_one_display():
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    with Display(console, runs=2) as display:
        for name in ("seed-1/fedosd", "seed-1/puf"):
            with display.run(name) as listener:
                listener(event(0, 1, **SCORES))
    last = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", console.file.getvalue()).split("all runs")[-1]
    assert "2/2" in last
    assert "seed-1/puf" in last
    assert last.count("unlearning") == 1


@pytest.mark.usefixtures("terminal")
def test_the_time_left_of_many_long_runs_is_known():
    now = 0.0
    display = Display(Console(file=io.StringIO(), force_terminal=True, width=100), runs=4)
    display._bars.get_time = lambda: now
    with display:
        for name in ("a", "b", "c"):
            with display.run(name):
                now += 1800
    (whole,) = display._bars.tasks
    assert whole.time_remaining == pytest.approx(1800, rel=0.5)
