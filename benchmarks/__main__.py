"""Measures everything and writes ``results.json``, ``results.md`` and ``growth.svg`` into a folder.

``python benchmarks FOLDER [--peers PYTHON] [--only rounds,load,...]``: PYTHON is the interpreter of an
environment with the packages of ``peers/requirements.txt``; without it the peers are skipped. Sections that
are not measured keep their figures from an earlier ``results.json``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import compare
import direction
import rounds
import scale
from timing import machine

HERE = Path(__file__).parent
MODELS = {"mlp": 10, "lenet5": 7, "cnn": 5, "nfresnet18": 5}
RUNS = [("mlp", 60_000, 10, 20), ("mlp", 60_000, 100, 20), ("cnn", 4_000, 10, 10), ("cnn", 4_000, 100, 10)]
LONG_RUN = ("mlp", 2_000, 10, 500)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("folder", type=Path)
    arguments.add_argument("--peers")
    arguments.add_argument("--only", default="rounds,load,direction,peers,growth,memory,peak,startup")
    given = arguments.parse_args()
    folder: Path = given.folder
    folder.mkdir(parents=True, exist_ok=True)
    known = folder / "results.json"
    results: dict[str, Any] = json.loads(known.read_text()) if known.exists() else {}
    sections: dict[str, Callable[[], Any]] = {
        "rounds": lambda: [rounds.measure(name, repeats) for name, repeats in MODELS.items()],
        "load": lambda: rounds.under_load(15),
        "direction": lambda: {"grid": direction.measure(direction.GRID), "regimes": direction.accuracy()},
        "peers": lambda: _peers(given.peers),
        "growth": lambda: {what: scale.growth(what, 5) for what in scale.GROWTH},
        "memory": lambda: [_memory(*run) for run in (*RUNS, LONG_RUN)],
        "peak": lambda: _separate("peak.py"),
        "startup": _startup,
    }
    for section in given.only.split(","):
        print(f"{section} ...", file=sys.stderr, flush=True)
        before, started = machine(), time.perf_counter()
        measured = sections[section]()
        if measured is None:
            continue
        results[section] = {
            "machine": before,
            "load_after": os.getloadavg()[0],
            "seconds": round(time.perf_counter() - started),
            "figures": measured,
        }
        known.write_text(json.dumps(results, indent=1))
    (folder / "results.md").write_text("\n".join(_page(results)))
    if "growth" in results:
        _plot(results["growth"]["figures"], folder / "growth.svg")
    print(folder / "results.md")


def _peers(python: str | None) -> Any:
    if python is None:
        print("peers skipped: name the interpreter of their environment with --peers", file=sys.stderr)
        return None
    found = {
        "one core": compare.compare(
            python, ["reference.py", "with_pfl.py", "with_fedlab.py"], 5, workers=1, launches=4
        ),
        "all cores": compare.compare(
            python, ["reference.py", "with_flower.py"], 5, workers=len(os.sched_getaffinity(0))
        ),
    }
    try:
        # By itself: it needs the most packages, and one of them may be missing.
        found["one core, fluke"] = compare.compare(
            python, ["reference.py", "with_fluke.py"], 5, workers=1, launches=4
        )
    except RuntimeError as error:
        print(f"fluke skipped: {error}", file=sys.stderr)
    return found


def _memory(*run: str | int) -> dict[str, Any]:
    return {"model": run[0], "samples": run[1], "clients": run[2], **_separate("scale.py", *run)}


def _separate(script: str, *arguments: str | int) -> Any:
    """Runs in a separate process, so that leftovers of other measurements do not count."""
    done = subprocess.run(
        [sys.executable, str(HERE / script), *map(str, arguments)], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


def _startup() -> dict[str, float] | None:
    """Seconds from the command to the first finished round of Fashion-MNIST, and of importing torch."""
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    importing = time.perf_counter() - begin
    command = [
        str(Path(sys.executable).with_name("fedunlearn")),
        "run",
        f"{HERE.parent}/experiments/fedosd.toml",
    ]
    seconds = []
    for _ in range(3):
        with tempfile.TemporaryDirectory() as folder:
            begin = time.perf_counter()
            process = subprocess.Popen(
                [*command, "--out", f"{folder}/run"],
                env={**os.environ, "FEDUNLEARN_CACHE": folder},
                stdout=subprocess.DEVNULL,
            )
            try:
                while not list(Path(folder).glob("pretraining/*/metrics.jsonl")):
                    time.sleep(0.01)
                    if process.poll() is not None:
                        print("startup skipped: Fashion-MNIST is not on this machine", file=sys.stderr)
                        return None
                seconds.append(time.perf_counter() - begin)
            finally:
                process.kill()
                process.wait()
    return {"torch": importing, "first_metrics": min(seconds)}


def _page(results: dict[str, Any]) -> list[str]:
    """One table for each section that has figures."""
    lines = ["# Benchmarks", ""]
    for section, table in TABLES.items():
        if section not in results:
            continue
        entry = results[section]
        about = entry["machine"]
        lines += [f"## {section}", ""]
        lines += [
            f"{about['processor']}, {about['cores']} cores, {about['capability']}, torch {about['torch']}; "
            f"load {about['load'][0]} before and {entry['load_after']:.2f} after, {entry['seconds']} s.",
            "",
            *table(entry["figures"]),
            "",
        ]
    return lines


def _table(heads: str, rows: list[list[object]]) -> list[str]:
    return [f"| {heads} |", "|---" * (heads.count("|") + 1) + "|"] + [
        "| " + " | ".join(map(str, row)) + " |" for row in rows
    ]


def _rounds(figures: Any) -> list[str]:
    return _table(
        "model | samples | GEMM peak GF/s | sequential s, min (median) | one worker s | parallel s "
        "| speed-up, min (median) | CPU s of parallel | share of peak: sequential | one worker | parallel",
        [
            [
                row["model"],
                f"{row['samples']:,}",
                f"{row['peak']:.0f}",
                _span(row["sequential"]),
                _span(row["one worker"]),
                _span(row["parallel"]),
                f"{row['speedup']:.2f} ({row['speedup_median']:.2f})",
                f"{row['parallel']['cpu']:.3f}",
                *(f"{share:.0%}" for share in row["share"].values()),
            ]
            for row in figures
        ],
    )


def _shares(figures: Any) -> list[str]:
    return _table(
        "model | " + " | ".join(figures[0]["profile"]),
        [[row["model"], *(f"{share:.1%}" for share in row["profile"].values())] for row in figures],
    )


def _span(times: dict[str, float]) -> str:
    return f"{times['wall']:.3f} ({times['wall_median']:.3f})"


def _load(figures: Any) -> list[str]:
    return _table(
        "busy processes | quiet median s | busy median s | ratio",
        [
            [
                figures["processes"],
                f"{figures['quiet']:.3f}",
                f"{figures['busy']:.3f}",
                f"{figures['ratio']:.2f}",
            ]
        ],
    )


def _direction(figures: Any) -> list[str]:
    return [
        *_table(
            "m | D | pass ms | direction: CPU ms | passes | passes of G Gᵀ | conflicts, passes "
            "| max cos | MB beyond G",
            [
                [
                    row["clients"],
                    f"{row['parameters']:,}",
                    f"{1e3 * row['pass']:.2f}",
                    f"{1e3 * row['direction_cpu']:.1f}",
                    f"{row['direction_passes']:.1f}",
                    f"{row['gram_passes']:.1f}",
                    f"{row['conflicts_passes']:.1f}",
                    f"{row['max_cosine']:.1e}",
                    f"{row['megabytes']:.0f}",
                ]
                for row in figures["grid"]
            ],
        ),
        "",
        *_table(
            "regime, m = 10, D = 478,410 | max cos | rank | CPU ms",
            [
                [row["regime"], f"{row['cosine']:.1e}", row["rank"], f"{1e3 * row['cpu']:.0f}"]
                for row in figures["regimes"]
            ],
        ),
    ]


def _compared(figures: Any) -> list[str]:
    rows = []
    for where, players in figures.items():
        ours = players[-1]
        rows += [
            [
                where,
                f"{player['name']} {player['version']}",
                _span(player),
                f"{player['cpu']:.3f} ({player['cpu_median']:.3f})",
                f"{player['wall'] / ours['wall']:.2f} ({player['wall_median'] / ours['wall_median']:.2f})",
                f"{player['difference']:.0e}",
            ]
            for player in players
        ]
    return _table(
        "on | simulator | wall s, min (median) | CPU s | wall, ours = 1 "
        "| max difference to the plain loop's model",
        rows,
    )


def _growth(figures: Any) -> list[str]:
    return _table(
        "grows | sizes | seconds | time ~ size^ | megabytes (PSS) | memory ~ size^",
        [
            [
                what,
                ", ".join(f"{row['size']:,}" for row in rows),
                ", ".join(f"{row['wall']:.3f}" for row in rows),
                f"{scale.exponent(rows, 'wall'):.2f}",
                ", ".join(f"{row['pss']:.0f}" for row in rows),
                f"{scale.exponent(rows, 'pss'):.2f}",
            ]
            for what, rows in figures.items()
        ],
    )


def _memories(figures: Any) -> list[str]:
    return _table(
        "model | m | samples | data MB | rounds | RSS of all processes, MB | RSS after a tenth | PSS MB",
        [
            [
                row["model"],
                row["clients"],
                f"{row['samples']:,}",
                f"{row['data']:.0f}",
                row["rounds"],
                f"{row['rss']:.1f}",
                f"{row['early_rss']:.1f}",  # PSS would depend on other processes that map torch
                f"{row['pss']:.0f}",
            ]
            for row in figures
        ],
    )


def _peaks(figures: Any) -> list[str]:
    return _table(
        "1000 clients, 2.6 million parameters | wall s | CPU s | peak RSS of all processes, MB "
        "| of it without a file, MB",
        [
            [name, *(f"{row[key]:.0f}" for key in ("wall", "cpu", "rss", "unbacked"))]
            for name, row in figures.items()
        ],
    )


def _started(figures: Any) -> list[str]:
    return _table(
        "seconds from the command to the first metrics | seconds of `import torch` in it",
        [[f"{figures['first_metrics']:.2f}", f"{figures['torch']:.2f}"]],
    )


TABLES: dict[str, Callable[[Any], list[str]]] = {
    "rounds": lambda figures: [*_rounds(figures), "", *_shares(figures)],
    "load": _load,
    "direction": _direction,
    "peers": _compared,
    "growth": _growth,
    "memory": _memories,
    "peak": _peaks,
    "startup": _started,
}


def _plot(figures: Any, path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.4), layout="constrained")
    for axes, (what, rows) in zip(figure.subplots(1, len(figures)), figures.items(), strict=True):
        sizes = [row["size"] for row in rows]
        axes.loglog(sizes, [row["wall"] for row in rows], "o-", color="tab:blue", label="seconds per round")
        axes.set(xlabel=what, ylabel="seconds per round")
        memory = axes.twinx()
        memory.loglog(sizes, [row["pss"] for row in rows], "s--", color="tab:orange")
        memory.set_ylabel("megabytes of all processes")
        axes.set_title(
            f"time ~ {what}^{scale.exponent(rows, 'wall'):.2f}, memory ~ ^{scale.exponent(rows, 'pss'):.2f}",
            fontsize=9,
        )
    figure.savefig(path)


if __name__ == "__main__":
    main()
