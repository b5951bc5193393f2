from __future__ import annotations

import json
import os
import re
import runpy
import warnings
from itertools import chain
from pathlib import Path

import pytest
from support.children import in_child, script

from fedunlearn.runs import read_outcome

EXAMPLES = Path(__file__).parent.parent / "examples"


def accuracies(name: str, folder: Path) -> list[tuple[float, float]]:
    """What an example prints: accuracy of the forgotten client and of the retained ones, line by line."""
    printed = script(EXAMPLES / name, folder)
    return [
        (float(a), float(b))
        for a, b in re.findall(r"forgotten client ([\d.]+) +retained clients ([\d.]+)", printed)
    ]


def test_fedosd_in_a_plain_training_loop(tmp_path):
    trained, unlearned, recovered = accuracies("own_loop.py", tmp_path)
    assert trained[0] > 0.9
    assert unlearned[0] < 0.1
    assert recovered[0] < 0.1
    assert recovered[1] >= trained[1] - 0.02


def test_own_model_and_tensors(tmp_path):
    trained, unlearned, recovered = accuracies("own_model.py", tmp_path)
    assert trained[0] > 0.6
    assert unlearned[0] < 0.1
    assert recovered[0] < 0.15
    assert recovered[1] >= trained[1] - 0.03


def test_own_model_takes_under_thirty_lines():
    lines = [line for line in (EXAMPLES / "own_model.py").read_text().splitlines() if line.strip()]
    assert len(lines) < 30


def test_the_page_shows_what_successive_requests_print(tmp_path):
    page = (EXAMPLES.parent / "docs/concepts.md").read_text(encoding="utf-8")
    (row,) = re.findall(r"^\| 2 \| yes \| (.*) \|$", page, re.MULTILINE)
    requests = runpy.run_path(str(EXAMPLES / "successive_requests.py"))["requests"]
    found = in_child(lambda: requests(2, True, str(tmp_path)))
    shown = [float(number) for number in re.findall(r"[.\d]+", row)]
    assert [*chain(*found)] == pytest.approx(shown, abs=0.02)  # another processor may round differently


NUMBER = re.compile(r"(?<![\w-])[-+]?\d+\.\d+")


def outputs(notebook: dict) -> tuple[list[str], list[str]]:
    """What the cells of a notebook print, and the kinds of what they draw."""
    found = [output for cell in notebook["cells"] for output in cell.get("outputs", [])]
    printed = ["".join(output["text"]) for output in found if output["output_type"] == "stream"]
    return printed, [kind for output in found for kind in output.get("data", [])]


def test_the_notebook_shows_what_it_computes(tmp_path):
    pytest.importorskip("matplotlib", reason="the notebook draws: pip install 'fedunlearn[report]'")
    stored = json.loads((EXAMPLES / "first_steps.ipynb").read_text(encoding="utf-8"))

    def execute() -> list:
        os.chdir(tmp_path)
        warnings.simplefilter("error")
        executed = runpy.run_path(str(EXAMPLES.parent / "scripts" / "run_notebook.py"))["executed"]
        return outputs(executed(stored))

    printed, drawn = in_child(execute)
    shown, pictures = outputs(stored)
    assert drawn == pictures == ["image/png"] * 2
    assert [NUMBER.sub("#", text) for text in printed] == [NUMBER.sub("#", text) for text in shown]
    for new, old in zip(printed, shown, strict=True):
        # Another processor may round differently, and training carries that on.
        assert [*map(float, NUMBER.findall(new))] == pytest.approx(
            [*map(float, NUMBER.findall(old))], abs=0.02
        )
    (run,) = re.findall(
        r"`fedunlearn report (\S+)`", (EXAMPLES / "first_steps.ipynb").read_text(encoding="utf-8")
    )
    assert read_outcome(tmp_path / run)["status"] == "done"
    verdicts = dict(re.findall(r"^(\S+) .* (UNDER|EQUIVALENT)$", "".join(printed), re.MULTILINE))
    assert verdicts == {
        "before": "UNDER",
        "finetune": "UNDER",
        "fedosd": "UNDER",
        "fast-retrain": "EQUIVALENT",
    }
