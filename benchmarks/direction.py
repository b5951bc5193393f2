"""The server at scale: time, accuracy and memory of the direction.

Times are those of one thread. A pass is one read of all rows G, the faster of ``G.sum()`` and ``G @ v`` in
the same run; all candidates take turns.
"""

from __future__ import annotations

import re
import time
from multiprocessing import get_context
from pathlib import Path

import torch
from timing import take_turns
from torch import Tensor

from fedunlearn.maths import conflicts, orthogonal_direction, project_off

GRID = [(10, 478_410), (50, 478_410), (200, 500_000), (1000, 500_000), (10, 11_000_000)]
REGIMES = [
    "well-conditioned",
    "cos .999",
    "duplicate",
    "rank-deficient",
    "tiny norms",
    "norms 1e-8..1e8",
    "near-duplicate 1e-4",
    "near-duplicate 1e-6",
    "near-duplicate 1e-7",
]


def measure(grid: list[tuple[int, int]]) -> list[dict[str, float]]:
    """One row for each (clients, parameters): CPU and wall seconds, passes, cosine, megabytes."""
    # Each runs in its own process, because memory that the allocator keeps would hide that of the next.
    with get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        return pool.starmap(_measure, grid, chunksize=1)


def accuracy(clients: int = 10, parameters: int = 478_410) -> list[dict[str, float | str]]:
    """The largest |cos| and the rank in each regime; the cosine is measured in float64."""
    torch.set_num_threads(1)
    rows: list[dict[str, float | str]] = []
    for name in REGIMES:
        forget, retain = _regime(name, clients, parameters)
        begin = time.process_time()
        step = orthogonal_direction(forget, retain)
        seconds = time.process_time() - begin
        unit = step.vector.double() / step.vector.double().norm()
        worst = max(abs(float(row.double() @ unit) / float(row.double().norm())) for row in retain)
        rows.append({"regime": name, "cosine": worst, "rank": step.rank, "cpu": seconds})
    return rows


def _measure(clients: int, parameters: int) -> dict[str, float]:
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    forget = torch.randn(parameters, generator=generator)
    retain = torch.randn(clients, parameters, generator=generator)
    orthogonal_direction(forget[:1000], retain[:8, :1000])  # loads the numeric libraries

    before = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    step = orthogonal_direction(forget, retain)
    extra = _status("VmHWM") - before

    work = clients**2 * parameters
    repeats = 15 if work < 1e9 else 5 if work < 1e11 else 3
    times = take_turns(
        repeats,
        {
            "sum": lambda: retain.sum(),
            "product": lambda: retain @ forget,
            "gram": lambda: retain @ retain.T,
            "direction": lambda: orthogonal_direction(forget, retain),
            "project_off": lambda: [project_off(row, forget, always=True) for row in retain],
            "conflicts": lambda: conflicts(retain, forget),
        },
    )
    one = min(times["sum"]["cpu"], times["product"]["cpu"])
    result: dict[str, float] = {"clients": clients, "parameters": parameters, "pass": one}
    for name in ("gram", "direction", "project_off", "conflicts"):
        result |= {f"{name}_{kind}": value for kind, value in times[name].items()}
        result[f"{name}_passes"] = times[name]["cpu"] / one
    return result | {"max_cosine": step.max_cosine, "megabytes": extra}


def _status(field: str) -> float:
    """Megabytes of this process (Linux)."""
    found = re.search(field + r":\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found.group(1)) / 1000


def _regime(name: str, clients: int, parameters: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(clients, parameters, generator=generator)
    forget, other = torch.randn(2, parameters, generator=generator)
    near = re.fullmatch(r"near-duplicate (.+)", name)
    if near:  # differ along the forget vector, where it matters most
        rows[-1] = rows[0] + float(near[1]) * forget
        forget = forget + 0.5 * other
    match name:
        case "cos .999":
            rows = 0.999**0.5 * other + 0.001**0.5 * rows
        case "duplicate":
            rows[-1] = rows[0]
        case "rank-deficient":
            rows[-1] = rows[:-1].sum(0)
        case "tiny norms":
            rows *= 1e-25
            forget *= 1e-25
        case "norms 1e-8..1e8":
            rows *= torch.logspace(-8, 8, clients).unsqueeze(1)
    return forget, rows
