"""Submitted methods, and the results that are stored with the documentation."""

from __future__ import annotations

import runpy
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import NoReturn

import pytest
from support.codes import refused

from fedunlearn import FedUnlearnError
from fedunlearn.data import where
from fedunlearn.studies.benchmark import check_results, read_results
from fedunlearn.studies.benchmark.plan import requests, seeds

ROOT = Path(__file__).parents[1]
STORED = ROOT / "docs/results/benchmark.json"
SUBMISSIONS = sorted((ROOT / "submissions").glob("*.json"))
CHECKED = {"shrink_perturb.json": "3f3d9bd3d9fe8f2a97e906b8cf783f0e9d15035f1e0344f9e0437955a5bfb590"}
"""SHA-256 of results that passed the check on a machine of their kind; others may not be skipped."""


@contextmanager
def unseen(what: str):
    yield lambda event: None


def again(path: Path, folder: Path) -> list[str]:
    """One cell, run again."""
    if where("fmnist") is None:
        skip(path, "Fashion-MNIST is not here: fedunlearn data get fmnist")
    try:
        return [*check_results(path, 1, folder, unseen)]
    except FedUnlearnError as error:
        if "check it on a machine of that kind" in str(error):
            skip(path, str(error))
        raise


def skip(path: Path, why: str) -> NoReturn:
    """Refused for new results: those that cannot be checked here could be made up."""
    if CHECKED.get(path.name) != sha256(path.read_bytes()).hexdigest():
        pytest.fail(f"{path.name} is new and was not checked: {why}")
    pytest.skip(why)


@pytest.mark.parametrize("path", SUBMISSIONS, ids=lambda path: path.stem)
def test_a_submission_is_as_it_was_written(path):
    found = read_results(path)
    own = {name: about.file for name, about in found.methods.items() if about.file}
    assert {file.name for file in own.values()} == {f"{path.stem}.py"}
    assert {file.sha256 for file in own.values()} == {
        sha256(path.with_suffix(".py").read_bytes()).hexdigest()
    }
    cells = {(cell.method, cell.request, cell.seed) for cell in found.results if cell.method in own}
    assert cells == {(name, request, seed) for name in own for request in requests() for seed in seeds()}


@pytest.mark.submissions
@pytest.mark.filterwarnings("ignore:pre-training records")
@pytest.mark.parametrize("path", SUBMISSIONS, ids=lambda path: path.stem)
def test_a_cell_of_a_submission_comes_out_the_same(path, tmp_path):
    assert "the same rate, model and numbers" in again(path, tmp_path)[0]


def test_new_results_that_cannot_be_checked_here_are_refused(tmp_path):
    (tmp_path / "shrink_perturb.json").write_text("{}")
    with pytest.raises(pytest.fail.Exception, match="is new and was not checked: no data"):
        skip(tmp_path / "shrink_perturb.json", "no data")


def test_a_submission_is_not_stored_among_our_own_results():
    script = runpy.run_path(str(ROOT / "scripts/store_benchmark.py"))
    with refused("invalid", says="is a submission: copy it to submissions/"):
        script["main"]([str(SUBMISSIONS[0])])


def test_the_page_shows_the_stored_results():
    script = runpy.run_path(str(ROOT / "scripts/store_benchmark.py"))
    page = (ROOT / "docs/benchmark.md").read_text(encoding="utf-8")
    assert script["renewed"](page) == page
