"""Callbacks: witnesses, recorder and listeners have their order, whatever order they are given in."""

from __future__ import annotations

import pytest
from support.closed_form import Quadratics, request

from fedunlearn import unlearn
from fedunlearn.core import Callback, Witness
from fedunlearn.methods.fedavg import Averaging
from fedunlearn.runs import Recorder, read_metrics


def test_a_round_is_witnessed_then_recorded_then_announced(tmp_path):
    calls: list[tuple[str, int]] = []

    class Both(Callback):
        def record(self, event):
            calls.append(("record", event.progress.elapsed_rounds))

        def after_record(self, event):
            calls.append(("after", event.progress.elapsed_rounds))

    def function(event):
        calls.append(("function", event.progress.elapsed_rounds))

    def before(event):
        calls.append(("before", event.progress.elapsed_rounds))

    unlearn([Averaging(2, 0.1)], request(), Quadratics(), listeners=[function, Both(), Witness(before)])
    order = ("before", "record", "function", "after")
    assert calls == [(name, elapsed) for elapsed in range(3) for name in order]


def test_an_interruption_leaves_no_finished_round_unwritten(tmp_path):
    def stop(event):
        if event.progress.elapsed_rounds == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), Recorder(tmp_path, "me", seconds=1000) as recorder:
        unlearn([Averaging(5, 0.1)], request(), Quadratics(), listeners=[stop, recorder])
    progress = Recorder(tmp_path, "me").progress
    assert progress is not None
    assert progress.elapsed_rounds == 2
    assert [row["elapsed"] for row in read_metrics(tmp_path)] == [0, 1, 2]
