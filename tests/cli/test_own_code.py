"""``--use`` and ``use``: the user's own code in the command line."""

from __future__ import annotations

import json

import pytest
from support.folders import drop

METHOD = """
from fedunlearn import method
from fedunlearn.methods.fedosd import fedosd


@method("mine", summary="a method of my own")
def mine(schedule, *, anchor: str = "reverting"):
    return fedosd(schedule, anchor=anchor)
"""


@pytest.fixture
def mine(tmp_path):
    path = tmp_path / "code/mine.py"
    path.parent.mkdir()
    path.write_text(METHOD)
    return path


def test_a_method_is_listed_run_and_compared(apart, small, mine, tmp_path):
    assert "a method of my own" in apart("methods", "--use", mine).stdout
    result = apart("run", small, "method=mine", "--use", "code/mine.py", "--workers", 2, "--out", "run")
    assert result.returncode == 0, result.stderr
    small.write_text('use = ["code/mine.py"]\n' + small.read_text() + "[methods.mine]\n[methods.fedosd]\n")
    assert apart("compare", small, "--out", "both").returncode == 0
    models = [
        json.loads((tmp_path / run / "outcome.json").read_text())["model_sha256"]
        for run in ("run", "both/seed-1/mine", "both/seed-1/fedosd")
    ]
    assert len(set(models)) == 1


def test_a_method_of_one_phase_is_described(apart, mine):
    mine.write_text(
        "from fedunlearn import Averaging, method\n"
        "@method('single', summary='one phase')\n"
        "def single(schedule):\n"
        "    return Averaging(schedule.rounds, schedule.recover_lr)\n"
    )
    result = apart("methods", "--use", mine, "single")
    assert result.returncode == 0, result.stderr
    assert "one phase" in result.stdout


@pytest.mark.wording
def test_a_run_continues_with_the_code_that_it_began_with(apart, refused_apart, small, mine, tmp_path):
    small.write_text('use = ["code/mine.py"]\nmethod = "mine"\n' + small.read_text())
    assert apart("run", small, "--out", "run").returncode == 0
    drop(tmp_path / "run", "outcome.json")
    mine.write_text(METHOD + "# changed\n")
    assert "code/mine.py has changed since the run began" in refused_apart("resume", "run")
    mine.rename(tmp_path / "elsewhere.py")
    assert "cannot read" in refused_apart("resume", "run")
    (tmp_path / "elsewhere.py").write_text(METHOD)
    result = apart("resume", "run", "--use", "elsewhere.py")
    assert result.returncode == 0, result.stderr


@pytest.mark.wording
@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        ("x = 1\nimport nothing_of_this_name\n", "line 2: ModuleNotFoundError: No module named 'nothing_of"),
        ("x = 1\n\ndef f(:\n", "line 3: invalid syntax"),
        ("import sys\nsys.exit(3)\n", "line 2: SystemExit: 3"),
        ("def f():\n    return 1 / 0\n\nf()\n", "line 2: ZeroDivisionError: division by zero"),
        (METHOD.replace('"mine"', '"fedosd"'), "line 6: method 'fedosd' is registered twice"),
    ],
)
def test_bad_code_is_told_by_file_and_line(refused_here, mine, code, sentence):
    mine.write_text(code)
    assert f"code/mine.py, {sentence}" in refused_here("methods", "--use", "code/mine.py")


@pytest.mark.wording
def test_code_that_is_not_there(refused_here, small):
    assert "cannot read" in refused_here("run", small, "--use", "nowhere.py")
    small.write_text('use = ["nowhere.py"]\n' + small.read_text())
    assert "nowhere.py: No such file" in refused_here("run", small)


@pytest.mark.wording
def test_a_model_that_wants_all_memory_ends_in_one_sentence(refused_apart, small, tmp_path):
    (tmp_path / "hungry.py").write_text(
        "import multiprocessing\nimport torch\nfrom fedunlearn import model\n\n\n"
        "class Hungry(torch.nn.Linear):\n"
        "    def forward(self, x):\n"
        "        if multiprocessing.parent_process():  # in a worker\n"
        "            torch.empty(2**50)\n"
        "        return super().forward(x.flatten(1))\n\n\n"
        '@model("hungry")\n'
        "def hungry(classes, shape):\n"
        "    return Hungry(784, classes)\n"
    )
    sentence = refused_apart("run", small, "model=hungry", "--use", "hungry.py", "--workers", 2)
    assert "out of memory: use fewer" in sentence
