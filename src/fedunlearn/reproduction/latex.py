"""Tables beside the paper's in LaTeX, in its layout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

from .display_names import DATA, NAMES, PARTITIONS
from .results import Results
from .side_by_side import (
    MEASURES,
    START,
    Cell,
    averaged,
    failures,
    has_deviation,
    number,
    staged,
    stops,
    texts,
    title,
)


def as_latex(cells: Sequence[Cell], results: Results, caption: str) -> str:
    r"""The paper's layout, for ``booktabs`` and ``graphicx``: data sets over partitions, std after R-Acc.

    Below each of ours are the paper's number, with its mark of reverting, and the difference, smaller. Rules
    part ω⁰, methods of one stage and both stages. What is wide takes the page, as in the paper.
    """
    of = {(cell.column, cell.row, cell.stage, cell.measure): cell for cell in cells}
    columns = list(dict.fromkeys(cell.column for cell in cells))
    places = [
        (column, measure)
        for column in columns
        for measure in MEASURES
        if measure != "r_acc_std" and any((key[0], key[3]) == (column, measure) for key in of)
    ]
    said = [
        caption,
        averaged(cells),
        "Below ours, the paper's"
        + (" and the difference." if any(cell.difference is not None for cell in cells) else "."),
        staged(cells),
        "In brackets is the deviation over clients." if has_deviation(cells) else "",
        "ʳ is the paper's mark of reverting." if any(cell.reverted for cell in cells) else "",
        failures(cells),
        stops(cells),
    ]
    wide = len(places) > 6
    kind, fit = ("table*", "\\resizebox{\\textwidth}{!}{%\n") if wide else ("table", "")
    lines = [
        rf"\begin{{{kind}}}\centering\small",
        rf"\caption{{{_escaped(' '.join(filter(None, said)))}}}",
        rf"{fit}\begin{{tabular}}{{l{'r' * len(places)}}}",
        r"\toprule",
        *_heads(results, places),
        " & ".join(["Method", *(title(measure) for _, measure in places)]) + r" \\",
    ]
    group: tuple[int, bool] | None = None
    for row, stage in dict.fromkeys((cell.row, cell.stage) for cell in cells):
        both = any(cell.row == row and cell.stage == 1 for cell in cells)
        if group != (group := (stage, both)):
            lines.append(r"\midrule")
        label = (
            r"$\omega^0$" if row == START else NAMES.get(row, _escaped(row)) + (f"$^{stage}$" if both else "")
        )
        triples = [_latex(of, column, row, stage, measure) for column, measure in places]
        ours, *below = zip(*triples, strict=True)
        lines.append(" & ".join([label, *ours]) + r" \\")
        for small in filter(any, below):
            lines.append(
                " & ".join(["", *(rf"{{\scriptsize {text}}}" if text else "" for text in small)]) + r" \\"
            )
    ends = [r"\end{tabular}" + ("}" if wide else ""), rf"\end{{{kind}}}", ""]
    return "\n".join([*lines, r"\bottomrule", *ends])


def _heads(results: Results, places: Sequence[tuple[str, str]]) -> list[str]:
    """Two lines: the data sets, and below each its partitions."""

    def line(titles: Sequence[str]) -> str:
        groups = [(title, len(list(of))) for title, of in groupby(titles)]
        return (
            " & ".join(["", *(rf"\multicolumn{{{wide}}}{{c}}{{{title}}}" for title, wide in groups)]) + r" \\"
        )

    settings = [results.settings[column] for column, _ in places]
    data, epochs = [of["data"] for of in settings], [of["training"]["epochs"] for of in settings]
    sets = [DATA.get(of["dataset"], _escaped(of["dataset"])) for of in data]
    parts = [PARTITIONS.get(of["partition"], _escaped(of["partition"])) for of in data]
    parts = [
        part
        + (f", m={of['clients']}" if of["clients"] != 10 else "")
        + (f", E={passes}" if passes != 1 else "")
        for part, of, passes in zip(parts, data, epochs, strict=True)
    ]
    return [line(sets), line(parts)]


def _latex(
    of: Mapping[tuple[str, str, int, str], Cell], column: str, row: str, stage: int, measure: str
) -> tuple[str, str, str]:
    """Ours, the paper's and the difference, the deviation over clients in brackets."""
    cell = of.get((column, row, stage, measure))
    if cell is None:
        return "--", "", ""
    beside = of.get((column, row, stage, "r_acc_std")) if measure == "r_acc" else None
    ours, paper, apart = texts(cell)
    apart = "" if cell.difference is None else f"${apart.replace('−', '-')}$"
    ours = ours.replace(" ±", r"$\pm$").replace("−", "$-$").replace(" †", r"$^\dagger$")
    paper = "" if cell.paper is None else paper + ("$^r$" if cell.reverted else "")
    if beside is not None:
        ours += f"({number(beside.mean, 'r_acc_std')})"
        paper += f"({number(beside.paper, 'r_acc_std')})" if paper and beside.paper is not None else ""
    return ours, paper, apart


WRITTEN = str.maketrans(
    {
        "&": r"\&",
        "%": r"\%",
        "_": r"\_",
        "−": "$-$",
        "±": r"$\pm$",
        "¹": "$^1$",
        "²": "$^2$",
        "ʳ": "$^r$",
        "†": r"$^\dagger$",
    }
)


def _escaped(text: str) -> str:
    return text.translate(WRITTEN)
