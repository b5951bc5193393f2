"""What the documentation says can be done: Python, commands, experiments, links; and how the site is made."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.children import command, script
from typer.main import get_command

import fedunlearn
from fedunlearn import erasure, evidence, maths
from fedunlearn.cli.commands import UsageProblem, app
from fedunlearn.experiment import Experiment, prepare, read
from fedunlearn.experiment.comparison import Plan, read_comparison
from fedunlearn.runs import read_outcome
from fedunlearn.studies import benchmark
from fedunlearn.studies.paper import plan

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r'^```(\w*)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
SHOWN = [page for page in PAGES if page.name != "CONTRIBUTING.md" and "```python\n" in page.read_text()]


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", SHOWN, ids=name)
def test_python_runs_from_top_to_bottom(page: Path, tmp_path: Path):
    found = FENCE.findall(page.read_text())
    blocks = [text for language, title, text in found if language == "python" and not title]
    (tmp_path / "page.py").write_text("\n".join(blocks))
    script(tmp_path / "page.py", tmp_path)


def test_the_shown_method_runs_on_the_command_line(tmp_path: Path):
    shown = FENCE.findall((ROOT / "docs/how-to/own-method.md").read_text())
    (tmp_path / "back.py").write_text(next(text for language, _, text in shown if language == "python"))
    listed = command("methods", "--use", "back.py", folder=tmp_path)
    assert "one step against the targets' update" in listed


def test_the_shown_loss_runs_on_the_command_line(tmp_path: Path):
    (block,) = (
        text
        for _, title, text in FENCE.findall((ROOT / "docs/methods/fedosd-ablations.md").read_text())
        if title == "naive.py"
    )
    (tmp_path / "naive.py").write_text(block)
    (tmp_path / "small.toml").write_text(
        "options.objective = 'naive'\ndata = { clients = 4, fraction = 0.1 }\ntraining.batch_size = 20\n"
        "pretraining.rounds = 1\nunlearning.rounds = 1\nrecovery.rounds = 0\nuse = ['naive.py']\n"
    )
    command("run", "small.toml", "--workers", "1", folder=tmp_path)
    assert read_outcome(tmp_path / "runs/small")["status"] == "done"


def commands(page: Path) -> Iterator[str]:
    """Every ``fedunlearn ...`` in a block or between backticks, one a line."""
    text = page.read_text()
    fenced = [
        block for language, _, block in FENCE.findall(text) if language in ("", "sh", "bash", "console")
    ]
    inline = re.findall(r"`(fedunlearn [^`]+)`", FENCE.sub("", text))
    for line in "\n".join([*fenced, *inline]).replace("\\\n", " ").splitlines():
        found = re.search(r"(?:^|do )\s*(fedunlearn .*?)(?:; done)?$", line)
        if found:
            yield found[1]


def check(command: str, files: Path) -> None:
    """Parses a command as the program would, and reads the experiment that it names."""
    words = shlex.split(command, comments=True)[1:]
    if "|" in words:  # a list of commands, for short
        for word in " ".join(words).split("|"):
            check(f"fedunlearn {word}", files)
        return
    at: Any = get_command(app)
    while words and words[0] in getattr(at, "commands", {}):
        at = at.commands[words.pop(0)]
    if hasattr(at, "commands"):
        assert all(word in ("--help", "--version") for word in words), f"{command}: no such command"
        return
    if not words:
        return  # the name of a command
    words = ["7" if word == "N" else word.replace("$seed", "7") for word in words]
    given = at.make_context(at.name, words).params
    if at.name == "reproduce" and given["name"] is not None:
        plan(given["name"], scale=given["scale"], only=given["only"] or [], seeds=given["seeds"])
    if given.get("experiment") is not None:
        path = (
            files / given["experiment"]
            if (files / given["experiment"]).exists()
            else ROOT / given["experiment"]
        )
        if at.name in ("run", "per-example", "desk"):
            read(path, given.get("overrides") or [])
        else:
            read_comparison(
                path,
                given["overrides"] or [],
                scale=given["scale"],
                only=given["only"] or [],
                seeds=given["seeds"],
            )


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_commands_parse_and_experiments_exist(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)  # where --use finds the files that the page shows
    for _, title, text in FENCE.findall(page.read_text()):
        if title:
            (tmp_path / title).write_text(text)
    for words in commands(page):
        check(words, tmp_path)


def test_shown_experiments_can_be_set_up(tmp_path: Path):
    """Beyond its keys: that the data can be spread over the clients as it says."""
    shown = {
        title: text
        for page in PAGES
        for language, title, text in FENCE.findall(page.read_text())
        if title and language == "toml" and title != "desk.toml"
    }
    assert len(shown) >= 2
    for title, text in shown.items():
        (tmp_path / title).write_text(text)
        if "[methods." in text:
            found = [
                of for rows in read_comparison(tmp_path / title).columns.values() for of in rows.values()
            ]
        else:
            found = [read(tmp_path / title)]
        for experiment in found:
            if "extends" not in text:
                assert experiment.data.dataset == "fashion-demo"  # a reader has it
                prepare(experiment)


NOT_HERE = {
    r"^(make|pip|docker|openssl|mkdir|flwr|flower-\w+|tensorboard) ": "other programs",
    r"experiments/(?!audit)|compare|reproduce|benchmark|per-example|data get|scripts/": "minutes to hours",
    r"in_process\.py": "apps that tests/flower_federation runs",
    r"runs/demo|verify certificate\.json|sign site-2": "files that another page makes",
}
"""Blocks of commands that are parsed and not run, and why."""


def short(page: Path) -> list[str]:
    """The commands of a page that run here, in seconds."""
    blocks = [
        text
        for language, title, text in FENCE.findall(page.read_text())
        if language in ("", "sh", "bash", "console") and not title and re.search("^fedunlearn ", text, re.M)
    ]
    here = [block for block in blocks if not any(re.search(rule, block, re.M) for rule in NOT_HERE)]
    return [line for block in here for line in block.replace("\\\n", " ").splitlines() if line.strip()]


@pytest.mark.pages
@pytest.mark.parametrize("page", [page for page in PAGES if short(page)], ids=name)
def test_commands_run_as_printed(
    page: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("FEDUNLEARN_CACHE", str(tmp_path_factory.getbasetemp() / "shown"))
    (tmp_path / "experiments").symlink_to(ROOT / "experiments")
    for _, title, text in FENCE.findall(page.read_text()):
        if title:
            (tmp_path / title).write_text(text)
    printed = ""
    for line in short(page):
        for word, where in (("HASH", r"--model (\w{64})"), ("ID", r"\brequest +(\w{16})\b")):
            if re.search(rf"\b{word}\b", line):
                line = re.sub(rf"\b{word}\b", re.search(where, printed)[1], line)
        printed += command(*shlex.split(line, comments=True)[1:], folder=tmp_path)


def test_parts_of_experiments_are_parts(tmp_path: Path):
    """Untitled TOML: keys of an experiment, or of a comparison; Flower's configuration is Flower's."""
    compare = {
        title: text
        for _, title, text in FENCE.findall((ROOT / "docs/how-to/seeds-and-comparisons.md").read_text())
    }["compare.toml"]
    shown = [
        text
        for page in PAGES
        for language, title, text in FENCE.findall(page.read_text())
        if language == "toml" and not title and "[superlink." not in text
    ]
    assert len(shown) >= 3
    for number, text in enumerate(shown):
        file = tmp_path / f"part-{number}.toml"
        if "[grid]" in text:
            file.write_text(f"{compare}\n{text}")
            read_comparison(file)
        else:
            file.write_text(text)
            read(file)


def test_the_pages_stay_short():
    def words(pages: Iterable[Path]) -> int:
        lines = [line for page in pages for line in page.read_text().splitlines()]
        return sum(len(line.split()) for line in lines if not line.lstrip().startswith("|"))

    assert words((ROOT / "docs").rglob("*.md")) <= 32_000
    assert len((ROOT / "README.md").read_text().split()) <= 900


@pytest.mark.parametrize(
    "wrong",
    [
        "fedunlearn runn x",
        "fedunlearn run experiments/fedosd.toml --nope",
        "fedunlearn run experiments/absent.toml",
        "fedunlearn reproduce tabel1",
        "fedunlearn reproduce table1 --scale labtop",
        "fedunlearn reproduce table1 --only nobody",
        "fedunlearn run experiments/fedosd.toml data.partitoin=iid",
        "fedunlearn compare experiments/methods.toml --only nobody",
    ],
)
def test_wrong_commands_are_found(wrong: str, tmp_path: Path):
    with pytest.raises((AssertionError, UsageProblem, fedunlearn.FedUnlearnError)):
        check(wrong, tmp_path)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_to_files_of_the_repository(page: Path):
    prose = re.sub(r"`[^`\n]*`", "", FENCE.sub("", page.read_text()))
    for target in re.findall(r"\]\(([^)\s#]+)(?:#[^)]*)?\)", prose):
        if "://" not in target:
            assert (page.parent / target).exists(), target


@pytest.mark.parametrize(
    ("page", "package"),
    [
        ("fedunlearn", fedunlearn),
        ("maths", maths),
        ("evidence", evidence),
        ("erasure", erasure),
        ("benchmark", benchmark),
    ],
)
def test_the_reference_shows_every_public_name(page: str, package: Any):
    text = (ROOT / "docs" / "api" / f"{page}.md").read_text()
    shown = re.findall(rf"^::: {re.escape(package.__name__)}\.(\w+)$", text, re.MULTILINE)
    assert sorted(shown) == sorted(package.__all__)


def test_drawings_are_what_the_script_draws(tmp_path: Path):
    for folder in ("figures", "assets"):
        (tmp_path / "docs" / folder).mkdir(parents=True)
    (tmp_path / "scripts").mkdir()
    script = (ROOT / "scripts" / "draw_concepts.py").read_text()
    (tmp_path / "scripts" / "draw.py").write_text(script)
    subprocess.run([sys.executable, tmp_path / "scripts" / "draw.py"], check=True)
    drawn = sorted((tmp_path / "docs").rglob("*.svg"))
    assert len(drawn) == 6
    for path in drawn:
        assert path.read_text() == (ROOT / path.relative_to(tmp_path)).read_text(), path.name


@pytest.fixture(scope="module")
def hooks() -> Any:
    pytest.importorskip("mkdocs")
    spec = importlib.util.spec_from_file_location("docs_hooks", ROOT / "docs" / "hooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    before = list(sys.path)
    spec.loader.exec_module(module)
    sys.path[:] = before
    return module


def test_a_marker_calls_what_is_registered(hooks: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(hooks.MAKERS, "shout", lambda *words: " ".join(words).upper())
    assert hooks.made("a\n<!-- shout: table1 laptop -->\nb") == "a\nTABLE1 LAPTOP\nb"
    assert hooks.made("<!-- a remark -->") == "<!-- a remark -->"
    with pytest.raises(hooks.PluginError, match="did you mean shout"):
        hooks.made("<!-- shuot: -->")


def test_every_marker_of_the_pages_is_registered(hooks: Any):
    used = {name for page in PAGES for name, _ in hooks.MARKER.findall(page.read_text())}
    assert used >= {"experiments", "command-line"}
    assert used <= hooks.MAKERS.keys()  # the build calls them


def test_the_command_line_is_described_from_its_help(hooks: Any):
    text = hooks.command_line()
    for heading in ("## fedunlearn compare", "### fedunlearn data get"):
        assert f"\n{heading}\n" in text
    assert "`--seeds" in text
    assert "Start with: `fedunlearn demo`" in text


@pytest.mark.parametrize(
    ("page", "link", "becomes"),
    [
        ("how-to/own-method.md", "../../CONTRIBUTING.md#add-a-method", "../contributing.md#add-a-method"),
        ("how-to/maths-alone.md", "../../examples/own_loop.py", "../sources/own_loop.py.md"),
        ("contributing.md", "docs/methods/README.md", "methods/README.md"),
        ("concepts.md", "results.md#the-plateau", "results.md#the-plateau"),
        ("how-to/x.md", "/src/fedunlearn/demo.toml", "../sources/demo.toml.md"),
        ("concepts.md", "https://example.org/x.md", "https://example.org/x.md"),
    ],
)
def test_links_of_the_repository_become_links_of_the_site(hooks: Any, page: str, link: str, becomes: str):
    assert hooks.relinked(f"see [this]({link}).", page) == f"see [this]({becomes})."


def test_a_notebook_becomes_a_page_with_its_outputs(hooks: Any):
    printed = {"output_type": "stream", "name": "stdout", "text": ["0.5\n"]}
    drawn = {"output_type": "display_data", "metadata": {}, "data": {"image/png": "cGl4ZWxz"}}
    cells = [
        {"cell_type": "markdown", "source": ["# Title\n", "text"]},
        {"cell_type": "code", "source": ["print(0.5)"], "outputs": [printed, drawn]},
    ]
    text, pictures = hooks.notebook_page(json.dumps({"cells": cells}), "how-to/book.md")
    assert text == (
        "# Title\ntext\n\n```python\nprint(0.5)\n```\n\n```text\n0.5\n```\n\n"
        "![what the code above draws](book-1.png)\n"
    )
    assert pictures == {"how-to/book-1.png": b"pixels"}


@pytest.mark.parametrize(
    ("html", "outside"),
    [
        ('<script src="https://cdn.example/x.js">', True),
        ('<link rel="stylesheet" href="//fonts.example/x.css">', True),
        ("p { background: url(https://example.org/x.png) }", True),
        ('<a href="https://example.org">there</a>', False),
        ('<script src="assets/x.js">', False),
        ('<svg xmlns="http://www.w3.org/2000/svg">', False),
    ],
)
def test_what_a_page_would_load_from_outside_is_found(hooks: Any, html: str, outside: bool):
    assert bool(hooks.LOADED.search(html)) is outside


def test_every_setting_is_explained(hooks: Any):
    page = hooks.SETTINGS.read_text(encoding="utf-8")
    assert hooks.settings_page(page) == page, "docs/settings.md is out of date: run python docs/hooks.py"
    assert "### [request]\n\nWhat is to be forgotten" in page
    assert (
        '| `targets` | `1` | Number of clients, drawn by the seed, or their names: `["client-3"]`. |' in page
    )
    assert "| `seed` | `1` |" in page
    assert len(re.findall("^### .*", page, re.MULTILINE)) == len(
        set(re.findall("^### .*", page, re.MULTILINE))
    )
    assert "### [grid]" in page
    for table in (Experiment, Plan):
        assert {
            key for key in table.model_fields if f"| `{key}` |" not in page and f"### [{key}]" not in page
        } == set()


def test_every_file_of_the_package_names_its_command(hooks: Any):
    page = hooks.made("<!-- experiments: -->")
    assert re.search(r"fedosd\.toml.* \| `run` \|", page)
    assert re.search(r"methods\.toml.* \| `compare` \|", page)
    assert re.search(r"protocol\.toml[^|]*\|  \|", page)
    assert re.search(r"table1\.toml.* \| `reproduce` \|", page)


def test_the_citation_names_this_version():
    cited = re.search(r'^version: "(.+)"$', (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert cited is not None
    assert cited[1] == fedunlearn.__version__
