"""Codes are for programs: none may vanish, none is misspelt, and the documentation lists them all."""

from __future__ import annotations

import ast
from copy import copy
from pathlib import Path

import pytest

from fedunlearn import FedUnlearnError, FedUnlearnWarning
from fedunlearn.core.errors import ERRORS, WARNINGS, warn
from fedunlearn.signing import Refusal, Refused

ROOT = Path(__file__).parents[2]

ONCE_ERRORS = """
absent changed client damaged data download environment failed file finished forgotten history in-use invalid
key missing model not-audited not-forgotten not-measured occupied other-model package purged
unfinished unknown unsuitable usage
"""
ONCE_WARNINGS = """
absent begun-anew changed continued effort-unknown forgotten history no-backdoor no-data no-manifest no-page
no-reply no-utility not-audited not-better older-checkpoint one-class outcome repeated row-failed tracker
version waiting workers
"""


def test_no_code_vanishes():
    assert set(ONCE_ERRORS.split()) <= set(ERRORS)
    assert set(ONCE_WARNINGS.split()) <= set(WARNINGS)


def test_every_code_in_the_source_is_listed():
    errors, warnings = set(), set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            name = ast.unparse(node.func)
            assert name != "warnings.warn" or path.name == "errors.py", f"{path} warns without a code"
            words = [each.value for each in ast.walk(node) if isinstance(each, ast.Constant)]
            if name == "warn":
                warnings.add(node.args[1].value)
            elif name == "FedUnlearnError":
                errors |= {key.value.value for key in node.keywords if isinstance(key.value, ast.Constant)}
            elif name == "fail" and len(node.args) == 3 and words:
                errors |= {node.args[2].value} if isinstance(node.args[2], ast.Constant) else set()
    assert errors <= set(ERRORS)
    assert warnings <= set(WARNINGS)


@pytest.mark.parametrize("codes", [ERRORS, WARNINGS])
def test_the_documentation_lists_every_code(codes):
    page = (ROOT / "docs/errors.md").read_text("utf-8")
    for code, meaning in codes.items():
        assert f"| `{code}` | {meaning} |" in page


@pytest.mark.wording
def test_a_copy_of_an_error_keeps_its_code():
    assert FedUnlearnError("gone").code == "invalid"
    assert copy(FedUnlearnError("gone", code="missing")).code == "missing"
    refused = copy(Refused(Refusal.EXPIRED, "too late"))
    assert (refused.code, str(refused)) == ("expired", "too late")


@pytest.mark.wording
def test_a_warning_has_a_code():
    with pytest.warns(FedUnlearnWarning, match="^wait$") as caught:
        warn("wait", "waiting")
    assert caught[0].message.code == "waiting"
    assert caught[0].filename == __file__
