"""Tables in LaTeX, in the paper's layout, with the paper's numbers."""

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
    r"""The paper's layout, for ``booktabs`` and ``graphicx``: datasets above partitions, std after R-Acc.

    Below each of our numbers, in small type, are the paper's number, with its mark for reverting, and the
    difference. Rules separate ω⁰, methods with one stage, and the two stages. Wide tables span the page.
    """
    by_place = {(cell.column, cell.row, cell.stage, cell.measure): cell for cell in cells}
    columns = list(dict.fromkeys(cell.column for cell in cells))
    places = [
        (column, measure)
        for column in columns
        for measure in MEASURES
        if measure != "r_acc_std" and any((key[0], key[3]) == (column, measure) for key in by_place)
    ]
    sentences = [
        caption,
        averaged(cells),
        "Below our numbers: the paper's"
        + (" and the difference." if any(cell.difference is not None for cell in cells) else "."),
        staged(cells),
        "In brackets: the standard deviation over clients." if has_deviation(cells) else "",
        "ʳ is the paper's mark for reverting." if any(cell.reverted for cell in cells) else "",
        failures(cells),
        stops(cells),
    ]
    wide = len(places) > 6
    kind, fit = ("table*", "\\resizebox{\\textwidth}{!}{%\n") if wide else ("table", "")
    lines = [
        rf"\begin{{{kind}}}\centering\small",
        rf"\caption{{{_escaped(' '.join(filter(None, sentences)))}}}",
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
        triples = [_latex(by_place, column, row, stage, measure) for column, measure in places]
        ours, *below = zip(*triples, strict=True)
        lines.append(" & ".join([label, *ours]) + r" \\")
        for small in filter(any, below):
            lines.append(
                " & ".join(["", *(rf"{{\scriptsize {text}}}" if text else "" for text in small)]) + r" \\"
            )
    ends = [r"\end{tabular}" + ("}" if wide else ""), rf"\end{{{kind}}}", ""]
    return "\n".join([*lines, r"\bottomrule", *ends])


def _heads(results: Results, places: Sequence[tuple[str, str]]) -> list[str]:
    """Two lines: the datasets, and below them their partitions."""

    def line(titles: Sequence[str]) -> str:
        groups = [(title, len(list(equal))) for title, equal in groupby(titles)]
        return (
            " & ".join(["", *(rf"\multicolumn{{{wide}}}{{c}}{{{title}}}" for title, wide in groups)]) + r" \\"
        )

    settings = [results.settings[column] for column, _ in places]
    data, epochs = (
        [column["data"] for column in settings],
        [column["training"]["epochs"] for column in settings],
    )
    datasets = [DATA.get(column["dataset"], _escaped(column["dataset"])) for column in data]
    partitions = [PARTITIONS.get(column["partition"], _escaped(column["partition"])) for column in data]
    partitions = [
        partition
        + (f", m={column['clients']}" if column["clients"] != 10 else "")
        + (f", E={count}" if count != 1 else "")
        for partition, column, count in zip(partitions, data, epochs, strict=True)
    ]
    return [line(datasets), line(partitions)]


def _latex(
    cells: Mapping[tuple[str, str, int, str], Cell], column: str, row: str, stage: int, measure: str
) -> tuple[str, str, str]:
    """Ours, the paper's and the difference, with the deviation over clients in brackets."""
    cell = cells.get((column, row, stage, measure))
    if cell is None:
        return "--", "", ""
    deviation = cells.get((column, row, stage, "r_acc_std")) if measure == "r_acc" else None
    ours, paper, apart = texts(cell)
    apart = "" if cell.difference is None else f"${apart.replace('−', '-')}$"
    ours = ours.replace(" ±", r"$\pm$").replace("−", "$-$").replace(" †", r"$^\dagger$")
    paper = "" if cell.paper is None else paper + ("$^r$" if cell.reverted else "")
    if deviation is not None:
        ours += f"({number(deviation.mean, 'r_acc_std')})"
        paper += f"({number(deviation.paper, 'r_acc_std')})" if paper and deviation.paper is not None else ""
    return ours, paper, apart


ESCAPES = str.maketrans(
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
    return text.translate(ESCAPES)
