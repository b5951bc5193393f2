"""What mkdocs does beside rendering: text made by Python, links into the repository, drawings, and a check.

A page asks for text with a comment on a line of its own, ``<!-- NAME: WORD WORD -->``. It calls the function
that is registered with ``@maker("NAME")`` with those words, and gives way to the Markdown that this returns.
Where pages are read without the hook, the comment does not show.
"""

from __future__ import annotations

import posixpath
import re
import sys
import tomllib
from base64 import b64encode
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from json import dumps
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_args

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "src"))

EXPERIMENTS = [
    path
    for folder in ("experiments", "reproduction/experiments")
    for path in sorted((ROOT / "src/fedunlearn" / folder).glob("*.toml"))
]

OUTSIDE = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
"""Pages made from files outside docs/, by their path in the repository."""
OUTSIDE |= {
    path.relative_to(ROOT).as_posix(): f"sources/{path.name}.md"
    for path in [
        *sorted(ROOT.glob("examples/*.py")),
        *EXPERIMENTS,
        ROOT / "src/fedunlearn/demo.toml",
    ]
}
ORIGIN = {page: path for path, page in OUTSIDE.items()}

Maker = Callable[..., str]
MAKERS: dict[str, Maker] = {}
MARKER = re.compile(r"^<!-- ([a-z][a-z-]*):(.*?)-->$", re.MULTILINE)


def maker(name: str) -> Callable[[Maker], Maker]:
    """Registers what a marker of that name calls."""

    def register(make: Maker) -> Maker:
        MAKERS[name] = make
        return make

    return register


def made(markdown: str) -> str:
    """A page with its markers replaced."""

    def call(found: re.Match[str]) -> str:
        name, words = found[1], found[2].split()
        if name not in MAKERS:
            near = get_close_matches(name, MAKERS, n=1) or [", ".join(sorted(MAKERS))]
            raise PluginError(f"nothing is registered for the marker {found[0]}: did you mean {near[0]}?")
        return MAKERS[name](*words)

    return MARKER.sub(call, markdown)


@maker("result-files")
def result_files(folder: str = "docs/results") -> str:
    """What each stored file of results holds: scale, columns, runs and seeds."""
    from fedunlearn.reproduction.results import load

    found = [(path, load(path)) for path in sorted((ROOT / folder).glob("*.json"))]
    if not found:
        return "No results are stored yet."
    lines = ["| file | scale | column | methods | seeds | runs |", "|---|---|---|---|---|---:|"]
    for path, results in found:
        for column in dict.fromkeys(run.column for run in results.runs):
            runs = [run for run in results.runs if run.column == column]
            rows = ", ".join(f"`{row}`" for row in dict.fromkeys(run.row for run in runs))
            seeds = ", ".join(str(seed) for seed in sorted({run.seed for run in runs}))
            lines.append(f"| {path.name} | {results.scale} | {column} | {rows} | {seeds} | {len(runs)} |")
    return "\n".join(lines)


@maker("machines")
def machines(folder: str = "docs/results") -> str:
    """What the stored results were made with."""
    from fedunlearn.reproduction.results import load

    made_with = {
        f"{one['cores']} cores ({one['cpu_capability']}), {one['system']}, torch {one['torch']}, "
        f"Python {one['python']}, fedunlearn {one['fedunlearn']}"
        for path in (ROOT / folder).glob("*.json")
        for one in load(path).environments.values()
    }
    return "\n".join(f"- {one}" for one in sorted(made_with)) or "No results are stored yet."


@maker("results")
def results(scale: str, *names: str) -> str:
    """Tables of the paper, ours beside its numbers, from the stored file of a scale."""
    from fedunlearn.reproduction import beside, plan, titles
    from fedunlearn.reproduction.results import load
    from fedunlearn.reproduction.side_by_side import as_markdown

    path = ROOT / f"docs/results/{scale}.json"
    if not path.exists():
        return "Nothing has been run at this scale yet."
    found, parts = load(path), []
    for name in names:
        wanted = plan(name, scale=scale, only=[], seeds=None)
        cells = beside(wanted, found)
        if not cells:
            parts.append(f"### {titles()[name]}\n\nNot run yet.")
            continue
        commands = "\n".join(_commands(name, scale, wanted, found))
        parts += [f"### {titles()[name]}\n\n```\n{commands}\n```", as_markdown(cells, found)]
        absent = [
            f"{column} ({', '.join(rows)})"
            for column in wanted.requests
            if (rows := [row for row in wanted.listed if not found.of(column, row)])
        ]
        parts += [f"Not run yet: {'; '.join(absent)}."] if absent else []
    return "\n\n".join(parts)


def _commands(name: str, scale: str, wanted: Any, found: Any) -> Iterator[str]:
    """What ran the stored runs of a table: one command for columns with the same rows."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for column in wanted.requests:
        if rows := tuple(row for row in wanted.listed if found.of(column, row)):
            alike.setdefault(rows, []).append(column)
    for rows, columns in alike.items():
        seeds = max(len(found.of(column, row)) for column in columns for row in rows)
        only = [*([] if columns == [*wanted.requests] else columns), *([] if rows == wanted.listed else rows)]
        asked = "".join(f" --only {one}" for one in only)
        yield f"fedunlearn reproduce {name} --scale {scale} --seeds {seeds}{asked}"


@maker("counts")
def counts() -> str:
    """How much of the paper has been run at each scale, and how much of it agrees."""
    from fedunlearn.reproduction import beside, plan, titles
    from fedunlearn.reproduction.claims import judge, tally
    from fedunlearn.reproduction.results import load
    from fedunlearn.reproduction.side_by_side import counted

    lines = []
    for path in sorted((ROOT / "docs/results").glob("*.json"), reverse=True):
        found = load(path)
        cells = {
            (cell.column, cell.row, cell.stage, cell.measure): cell
            for name in titles()
            for cell in beside(plan(name, scale=found.scale, only=[], seeds=None), found)
        }
        hours = sum(run.cost["seconds"] for run in found.runs) / 3600
        lines.append(
            f"- `{found.scale}`: {len(found.runs)} runs, {hours:.1f} hours of rounds after the request "
            f"(without trials and pre-training). {counted(cells.values())} {tally(judge(found))}"
        )
    return "\n".join(lines) or "No results are stored yet."


SEEN = {
    "tradeoff": "ASR against R-Acc of each method, after unlearning and after post-training,",
    "curves": "ASR, R-Acc and distance to ω⁰ of each method over the rounds",
    "clients": "Accuracy of each retained client under each method",
}
"""What the figures of pages show, for those who cannot see them."""


@maker("figure")
def figure(scale: str, name: str, kind: str, *columns: str) -> str:
    """A figure of the stored results of a scale, of the columns and rows of a table of the paper."""
    from fedunlearn.reproduction import plan
    from fedunlearn.reproduction.gallery import draw
    from fedunlearn.reproduction.results import load

    path = ROOT / f"docs/results/{scale}.json"
    found = load(path) if path.exists() else None
    wanted = plan(name, scale=scale, only=[*columns], seeds=None)
    there = [column for column in wanted.columns if found and column in found.settings]
    if found is None or not there:
        return ""
    with TemporaryDirectory() as folder:
        drawn = draw(kind, found, there, wanted.listed, Path(folder) / kind)
        svgs = [file.read_bytes() for file in drawn if file.suffix == ".svg"]
    about = f"{SEEN[kind]} in {', '.join(there)}, at {scale} scale."
    images = [f'<img alt="{about}" src="data:image/svg+xml;base64,{b64encode(s).decode()}">' for s in svgs]
    return f'<div class="figure chart">{"".join(images)}</div>'


@maker("claims")
def claims(scale: str) -> str:
    """What the paper says, judged by the stored results of a scale."""
    from fedunlearn.reproduction.claims import judge, markdown
    from fedunlearn.reproduction.results import load

    path = ROOT / f"docs/results/{scale}.json"
    return markdown(judge(load(path))) if path.exists() else "Nothing has been run at this scale yet."


@maker("command-line")
def command_line() -> str:
    """Every command as its ``--help`` describes it."""
    from typer.main import get_command

    from fedunlearn.cli.commands import app

    return "\n\n".join(_command(get_command(app), "fedunlearn"))


def _command(command: Any, name: str) -> list[str]:
    inner = [command.commands[key] for key in getattr(command, "commands", {})]
    context = command.context_class(command, info_name=name)
    parts = [f"## {name}"] if name != "fedunlearn" else []
    if not inner or name == "fedunlearn":
        parts += [_plain(command.help), f"```\n{command.get_usage(context).removeprefix('Usage: ')}\n```"]
        records = [parameter.get_help_record(context) for parameter in command.get_params(context)]
        records = [record for record in records if record and not record[0].startswith("--help")]
        if records:
            parts.append("\n".join(["| | |", "|---|---|", *(f"| `{a}` | {_plain(b)} |" for a, b in records)]))
        if command.epilog:
            label, _, example = command.epilog.partition(": ")
            parts.append(f"{label}: `{example}`")
    else:
        parts.append(_plain(command.help))
    for each in inner:
        deeper = _command(each, f"{name} {each.name}")
        parts += [f"#{deeper[0]}", *deeper[1:]] if name != "fedunlearn" else deeper
    return parts


def _plain(text: str | None) -> str:
    """Help as Markdown: brackets are text, not links, and tables need their bars."""
    return (text or "").replace("[", "\\[").replace("|", "\\|")


@maker("settings")
def settings(kind: str) -> str:
    """Every key of an experiment, or what a comparison adds, with its default and what it means."""
    from fedunlearn.comparison import Plan
    from fedunlearn.experiment import Experiment

    top = {"experiment": Experiment, "comparison": Plan}[kind]
    return "\n\n".join(_settings(top, f"At the top of {kind} files"))


def _settings(table: Any, title: str) -> list[str]:
    about = " ".join((table.__doc__ or "").split()).replace("``", "`")
    lines, deeper = ["| key | default | |", "|---|---|---|"], []
    for key, field in table.model_fields.items():
        if field.description is None:
            inner = next(
                t for t in (field.annotation, *get_args(field.annotation)) if hasattr(t, "model_fields")
            )
            deeper += _settings(inner, f"[{key}]")
        else:
            value = None if field.is_required() else field.get_default(call_default_factory=True)
            default = "" if value is None else f"`{dumps(value)}`"
            lines.append(f"| `{key}` | {default} | {field.description} |")
    return [f"### {title}", about, "\n".join(lines), *deeper]


@maker("experiments")
def experiments() -> str:
    """Every experiment file with the first line of its comment."""
    lines = ["| file | command | what it is |", "|---|---|---|"]
    for path in EXPERIMENTS:
        sentence = path.read_text(encoding="utf-8").split("\n", 1)[0].strip("# .")
        link = f"/{path.relative_to(ROOT).as_posix()}"
        values = tomllib.loads(path.read_text(encoding="utf-8"))
        command = "`compare`" if "methods" in values else "`run`"
        command = "`reproduce`" if "extends" in values else "" if path.stem == "protocol" else command
        shown = path.name if "reproduction" in path.parts else f"experiments/{path.name}"
        lines.append(f"| [`{shown}`]({link}) | {command} | {sentence} |")
    return "\n".join(lines)


LINK = re.compile(r"(!?\[(?:[^\[\]]|\[[^\]]*\])*\])\(([^)\s]+?)(#[^)\s]*)?\)")


def relinked(markdown: str, page: str) -> str:
    """Links as they are right in the repository, made right for the site; / is the repository."""
    home = posixpath.dirname(ORIGIN.get(page, f"docs/{page}"))

    def point(found: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join("/", home, found[2])).lstrip("/")
        target = path.removeprefix("docs/") if path.startswith("docs/") else OUTSIDE.get(path)
        if target is None or not (ROOT / path).exists():
            return found[0]
        return f"{found[1]}({posixpath.relpath(target, posixpath.dirname(page) or '.')}{found[3] or ''})"

    return LINK.sub(point, markdown)


DRAWING = re.compile(r"^!\[([^\]]*)\]\((\S+?\.svg)\)$", re.MULTILINE)


def drawn(markdown: str, page: str) -> str:
    """Drawings of our own inside the page, where they follow its colours."""

    def inline(found: re.Match[str]) -> str:
        path = ROOT / "docs" / posixpath.dirname(page) / found[2]
        text = path.read_text(encoding="utf-8")
        if 'class="drawing"' not in text:
            return found[0]
        return f'<div class="figure">{"".join(text.splitlines())}</div>'

    return DRAWING.sub(inline, markdown)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages that come from outside docs/."""
    for path, page in OUTSIDE.items():
        text = (ROOT / path).read_text(encoding="utf-8")
        if not path.endswith(".md"):
            language = {".py": "python", ".toml": "toml"}[Path(path).suffix]
            text = f"# {Path(path).name}\n\n```{language}\n{text}```\n"
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Text made by Python first, because it may hold links."""
    if page.parent is None:
        page.meta["hide"] = ["navigation"]  # a list of one page
    return drawn(relinked(made(markdown), page.file.src_uri), page.file.src_uri)


LOADED = re.compile(
    r"""<(?:script|img|iframe|source|embed|audio|video|image|use)\b[^>]*?\b(?:src|href)=["']?(?:https?:)?//[^>]*
    |<link\b(?![^>]*rel=["']?canonical)[^>]*href=["']?(?:https?:)?//[^>]*
    |url\(["']?(?:https?:)?//[^)]*|@import\s+["'](?:https?:)?//[^"']*""",
    re.VERBOSE,
)


def on_post_build(config: MkDocsConfig) -> None:
    """Nothing that a page loads may come from elsewhere; what a reader clicks may."""
    for path in sorted(Path(config.site_dir).rglob("*")):
        if path.suffix in (".html", ".css", ".svg"):
            found = LOADED.search(path.read_text(encoding="utf-8"))
            if found:
                raise PluginError(f"{path.name} would load from outside: {found[0][:120]}")
