"""The tables and figures of the paper by name: run, and shown beside its numbers."""

from __future__ import annotations

from pathlib import Path

from .comparison import Comparison, read_comparison
from .experiment import specimen
from .record import write
from .registry import did_you_mean
from .report import gallery, latex, results, side_by_side
from .types import FedUnlearnError

FILES = Path(__file__).with_name("experiments")


def titles() -> dict[str, str]:
    """What can be reproduced, and what each is, in the words of its file."""
    files = {path.stem: path.read_text(encoding="utf-8") for path in sorted(FILES.glob("*.toml"))}
    return {
        name: text.partition("\n")[0].removeprefix("# ")
        for name, text in files.items()
        if 'extends = "protocol.toml"' in text
    }


def plan(name: str, *, scale: str, only: list[str], seeds: int | None) -> Comparison:
    """The runs of a table or figure."""
    if name not in titles():
        raise FedUnlearnError(f"nothing of the paper is called {name!r}{did_you_mean(name, titles())}")
    return read_comparison(FILES / f"{name}.toml", scale=scale, only=only, seeds=seeds)


def beside(comparison: Comparison, found: results.Results) -> list[side_by_side.Cell]:
    """Its numbers beside the paper's: of all its rows, columns and seeds that have been run."""
    return side_by_side.side_by_side(found, comparison.requests, comparison.listed, comparison.printed)


def write_tables(
    folder: Path, name: str, cells: list[side_by_side.Cell], found: results.Results
) -> list[Path]:
    """The table as Markdown, CSV and LaTeX, and all results of the folder as JSON."""
    title = titles()[name]
    texts = {
        f"{name}.md": f"# {title}\n\n{side_by_side.as_markdown(cells, found)}",
        f"{name}.csv": side_by_side.as_csv(cells),
        f"{name}.tex": latex.as_latex(cells, found, f"{title} Scale {found.scale}."),
    }
    for file, text in texts.items():
        write(folder / file, text.encode())
    results.save(found, folder / "results.json")
    return [*(folder / file for file in texts), folder / "results.json"]


def draw(folder: Path, name: str, comparison: Comparison, found: results.Results) -> list[Path]:
    """The figures that its file names, in ``figures`` of the folder."""
    columns = [column for column in comparison.requests if column in found.settings]
    paths: list[Path] = []
    for figure in comparison.figures:
        path = folder / "figures" / f"{name}-{figure}"
        if figure == "triggers":
            requests = {column: next(iter(rows.values())) for column, rows in comparison.columns.items()}
            pairs = {request.data.dataset: specimen(request) for request in requests.values()}
            paths += gallery.triggers(pairs, path.with_name(name))
        else:
            paths += gallery.draw(figure, found, columns, comparison.listed, path)
    return paths
