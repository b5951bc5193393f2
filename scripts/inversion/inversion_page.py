"""The stored results of the inversion attempt, its picture, and the tables of its page."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from federation import public, setting
from matplotlib.figure import Figure
from quality import compare, ssim
from torch import Tensor
from torch.nn import functional as F

from fedunlearn.core import FedUnlearnError, did_you_mean
from fedunlearn.report import markdown
from fedunlearn.runs import read_tensors, write
from fedunlearn.studies.paper.results_page import MARKED

ROOT = Path(__file__).parents[2]
STORED = ROOT / "docs/results/inversion.json"
FIGURE = ROOT / "docs/figures/inversion.png"
PAGE = ROOT / "docs/evidence/inversion.md"

Measured = Mapping[str, Any]
"""The figures of one request."""

ATTACKS = {
    "server features": "server, features",
    "server matching": "server, matching",
    "pooled features": "coalition, features",
    "step features": "one step, features",
    "step matching": "one step, matching",
    "request matching": "whole request, matching",
}
GUESSES = {"class mean": "class mean", "other picture": "other picture"}
VIEWS = {"server": "server", "pooled": "coalition", "step": "one step", "request": "whole request"}


def store(requests: Sequence[Measured], made_with: Measured, path: Path) -> None:
    """One line for each request."""
    lines = ",\n".join(json.dumps(each, ensure_ascii=False) for each in requests)
    about = json.dumps(made_with, ensure_ascii=False)
    write(path, f'{{"environment": {about},\n"requests": [\n{lines}\n]}}\n'.encode())


def renewed(page: str, requests: Sequence[Measured]) -> str:
    """The page with the tables between its markers updated."""

    def make(found: re.Match[str]) -> str:
        part, (network, state) = found["part"], found["words"].split()
        if part not in PARTS:
            raise FedUnlearnError(f"unknown page part {part!r}{did_you_mean(part, PARTS)}")
        mine = [r for r in requests if (r["network"], r["trained"]) == (network, state == "trained")]
        return f"{found['begin']}\n{PARTS[part](mine)}\n\n"

    return MARKED.sub(make, page)


def _by_size(columns: Mapping[str, Callable[[Sequence[Measured]], str]]) -> Callable[..., str]:
    """A table with a row for each number of examples; columns without a figure are left out."""

    def make(requests: Sequence[Measured]) -> str:
        lines = [["examples", *columns]]
        for size in sorted({each["examples"] for each in requests}):
            same = [each for each in requests if each["examples"] == size]
            lines.append([str(size), *(cell(same) for cell in columns.values())])
        kept = [n for n in range(len(lines[0])) if any(line[n] != "–" for line in lines[1:])]
        return markdown([[line[n] for n in kept] for line in lines])

    return make


def _found(kind: str, text: Callable[[Sequence[Measured], int], str]) -> Callable[..., str]:
    """A cell about one attack, from its figures and the number of examples."""

    def cell(requests: Sequence[Measured]) -> str:
        mine = [each["found"][kind] for each in requests if kind in each["found"]]
        return text(mine, requests[0]["examples"]) if mine else "–"

    return cell


def _identified(found: Sequence[Measured], size: int) -> str:
    count, chance = (sum(round(each[key] * size) for each in found) for key in ("identified", "control"))
    return f"{count} of {size * len(found)}" + (f" (control {chance})" if chance else "")


def _quality(found: Sequence[Measured], size: int) -> str:
    return f"{fmean(each['psnr'] for each in found):.1f}, {fmean(each['ssim'] for each in found):.2f}"


def _mean(key: str, inner: str | None = None, digits: int = 2) -> Callable[..., str]:
    def cell(requests: Sequence[Measured]) -> str:
        known = [each[key] if inner is None else each[key].get(inner) for each in requests]
        return "–" if None in known else f"{fmean(known):.{digits}f}"

    return cell


PARTS: dict[str, Callable[[Sequence[Measured]], str]] = {
    "identified": _by_size(
        {
            "contributing": _mean("contributing", digits=1),
            **{title: _found(kind, _identified) for kind, title in ATTACKS.items()},
        }
    ),
    "quality": _by_size(
        {title: _found(kind, _quality) for kind, title in (GUESSES | ATTACKS).items()},
    ),
    "labels": _by_size(
        {
            "even spread": _mean("labels_guessed"),
            **{title: _mean("labels", view) for view, title in VIEWS.items()},
        }
    ),
    "longer": _by_size({"longer gradient": _mean("longer")}),
    "cosines": _by_size({title: _mean("cosines", view, 3) for view, title in VIEWS.items()}),
}
"""The parts of the page by the word in their marker; network and state of the model follow it."""

ROWS = {
    "server features": "server",
    "pooled features": "coalition",
    "step matching": "one step",
    "request matching": "whole request",
}
SHOWN = {1: 3, 8: 8, 32: 8, 128: 4}
"""How many pictures of which requests the figure shows: the best for the server."""


def draw(folder: Path, path: Path) -> None:
    """Originals above their reconstructions, from the trained LeNet-5."""
    groups = [_shown(folder, size, count) for size, count in SHOWN.items()]
    figure = Figure(figsize=(10, 2.4), dpi=110)
    axes = figure.subplots(1, len(groups), width_ratios=[each.shape[1] for each in groups])
    figure.subplots_adjust(left=0.095, right=0.995, top=0.9, bottom=0.01, wspace=0.04)
    for axis, (size, tiles) in zip(axes, zip(SHOWN, groups, strict=True), strict=True):
        axis.imshow(tiles.numpy(), cmap="gray", vmin=0, vmax=1, aspect="auto", interpolation="nearest")
        axis.set_title(f"{size} examples" if size > 1 else "1 example", fontsize=9)
        axis.set_xticks([])
        axis.set_yticks([])
    titles = ["original", *ROWS.values()]
    height = groups[0].shape[0] / len(titles)
    axes[0].set_yticks([height * (n + 0.5) for n in range(len(titles))], titles, fontsize=8)
    axes[0].tick_params(length=0)
    figure.savefig(path)


def _shown(folder: Path, size: int, count: int) -> Tensor:
    """Pictures in rows by view; single examples come from all targets, others from the one in the middle."""
    files = sorted(folder.glob(f"lenet5-trained-{size}-*.safetensors"))
    columns: list[Tensor] = []
    for path in files if size == 1 else files[1:2]:
        chosen = setting("lenet5", int(path.stem.rpartition("-")[2]), size)
        originals = chosen.population.unlearning[chosen.population.targets[0]].train.x
        grey, made = public(chosen).x.mean(0), read_tensors(path)[0]
        rows = [compare(originals, made[kind], originals, grey)[1] for kind in ROWS]
        best = ssim(originals, rows[0]).argsort(descending=True)[:count]
        columns += [torch.cat([_framed(row[n, 0]) for row in (originals, *rows)]) for n in best]
    return torch.cat(columns, dim=1)


def _framed(picture: Tensor) -> Tensor:
    return F.pad(picture, (1, 1, 1, 1), value=1.0)
