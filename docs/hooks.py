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
from collections.abc import Callable
from difflib import get_close_matches
from json import dumps
from pathlib import Path
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
