"""The stored results of a benchmark, read from their file."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ...core import FedUnlearnError
from ...evidence import Verdict
from ...report.audits import REFERENCES
from ...report.evidence import verdict_text

FORMAT = "fedunlearn benchmark 1"
ENDED = ("done", "converged")
LETTERS = {"equivalent": "E", "under": "U", "over": "O"}


@dataclass(frozen=True)
class Result:
    """One cell: a method on a request with a seed."""

    request: str
    method: str
    seed: int
    failed: bool
    verdict: Verdict | None
    numbers: Mapping[str, float]
    """By the key of their column; points and percentages are times 100."""
    values: Mapping[str, Any]
    """All that the file says."""

    @property
    def letter(self) -> str:
        """``E``, ``U`` or ``O`` for a verdict that decides, ``?`` for the others, ``×`` for a failed cell."""
        return "×" if self.failed else LETTERS.get(str(self.verdict), "?")

    @property
    def told(self) -> str:
        """The verdict in words, or why there is none."""
        return self.reason if self.failed else verdict_text(self.verdict)

    @property
    def reason(self) -> str:
        """How a failed cell ended."""
        return f"{self.values['status']}: {self.values['reason']}"


@dataclass(frozen=True)
class Board:
    """The stored results of a benchmark."""

    values: Mapping[str, Any]
    requests: Sequence[str]
    seeds: Sequence[int]
    methods: Sequence[str]
    """Without references."""
    references: Sequence[str]
    results: Mapping[tuple[str, str, int], Result]
    """By method, request and seed."""
    tags: Mapping[str, Mapping[str, str]]
    """By request: what requests are filtered by."""

    @cached_property
    def found(self) -> frozenset[tuple[str, int]]:
        """Requests and seeds in which the audit finds the target in ω⁰."""
        known = (self.results.get(("omega0", *at)) for at in self.places(self.requests))
        return frozenset((r.request, r.seed) for r in known if r and r.verdict == Verdict.UNDER)

    def places(self, requests: Sequence[str]) -> list[tuple[str, int]]:
        """These requests with each seed, seed by seed."""
        return [(request, seed) for seed in self.seeds for request in requests]


def read_board(path: Path) -> Board:
    """Reads the stored results of a benchmark."""
    hint = "name the JSON of results that fedunlearn benchmark wrote"
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        if values["format"] != FORMAT:
            raise ValueError(f"its format is {values['format']!r}, not {FORMAT!r}")
        return _board(values)
    except OSError as error:
        raise FedUnlearnError(f"{path} cannot be read ({error.strerror}): {hint}") from None
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise FedUnlearnError(
            f"{path} does not hold the results of a benchmark ({type(error).__name__}: {error}): {hint}"
        ) from None


def _board(values: Mapping[str, Any]) -> Board:
    requests, seeds = [str(name) for name in values["requests"]], [int(seed) for seed in values["seeds"]]
    if not requests or not seeds:
        raise ValueError("there is no request or no seed")
    for key in ("seed", "rates", "chosen"):
        values["tuning"][key]
    for key in ("protocol", "environments"):
        values[key]
    results: dict[tuple[str, str, int], Result] = {}
    for each in values["results"]:
        result = _result(each)
        at = (result.method, result.request, result.seed)
        if result.request not in requests or result.seed not in seeds:
            raise ValueError(f"the request or seed of the result of {at} is not listed")
        if result.method not in REFERENCES and result.method not in values["methods"]:
            raise ValueError(f"the method of the result of {at} is not listed")
        if at in results:
            raise ValueError(f"there are two results of {at}")
        results[at] = result
    there = {method for method, *_ in results}
    methods = sorted(there - REFERENCES.keys())
    references = [name for name in REFERENCES if name in there]
    tags = {str(name): _tags(request) for name, request in values["requests"].items()}
    return Board(values, requests, seeds, methods, references, results, tags)


def _tags(request: Mapping[str, Any]) -> dict[str, str]:
    return {
        "kind": str(request["kind"]),
        "partition": str(request["partition"]),
        "targets": "one" if int(request["targets"]) == 1 else "several",
        "successive": "successive" if request["successive"] else "single",
        "participation": f"{float(request['participation']):.0%}",
    }


def _result(values: Mapping[str, Any]) -> Result:
    failed = values["status"] not in ENDED
    verdict = None if values["verdict"] is None else Verdict(values["verdict"])
    numbers = {} if failed else dict(_numbers(values))
    return Result(
        values["request"], values["method"], int(values["seed"]), failed, verdict, numbers, dict(values)
    )


def _numbers(values: Mapping[str, Any]) -> Iterable[tuple[str, float]]:
    """The numbers that a cell adds to the columns, where they are known."""

    def known(key: str) -> float | None:
        value = values.get(key)
        if value is not None and not math.isfinite(value):
            raise ValueError(f"{key} of {values['method']} on {values['request']} is {value}")
        return None if value is None else float(value)

    if (difference := known("difference")) is not None:
        yield "auc", abs(difference)
    for key in ("asr", "r_acc", "worst"):
        measured, retrained = known(key), known(f"{key}_retrained")
        if measured is not None and retrained is not None:
            yield key, 100 * (measured - retrained)
    if values.get("harmed") is not None:
        yield "harmed", 100.0 * bool(values["harmed"])
    for key, scale in (("harm", 100), ("work", 100), ("time", 100), ("bytes", 1), ("stored", 1)):
        if (value := known(key)) is not None:
            yield key, scale * value
    if (epsilon := known("epsilon")) is not None:
        yield "epsilon", epsilon
