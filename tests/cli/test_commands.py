"""Every command, as a process of its own."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
import typer
from rich.text import Text

from fedunlearn.cli.commands import COMMANDS, app
from fedunlearn.cli.help import Group


def test_version(fedunlearn):
    result = fedunlearn("--version")
    assert re.fullmatch(r"fedunlearn \d+\.\d+\.\d+\n", result.stdout)
    assert result.returncode == 0


@pytest.mark.parametrize(
    "words", [(), ("demo",), ("run",), ("resume",), ("data",), ("data", "get"), ("methods",), ("report",)]
)
def test_help(here, words):
    result = here(*words, "--help")
    assert result.returncode == 0
    assert "Usage:" in result.stdout
    if words and words != ("data",) and words != ("methods",):
        assert "Example: fedunlearn" in result.stdout


def every_command() -> dict[tuple[str, ...], typer.core.TyperCommand]:
    """Every command by the words that call it."""
    pending = [((), typer.main.get_command(app))]
    found = {}
    while pending:
        words, command = pending.pop()
        inner = getattr(command, "commands", {})
        pending += [((*words, name), each) for name, each in inner.items()]
        if not inner:
            found[words] = command
    return found


def test_no_word_of_the_help_is_taken_for_markup():
    for words, command in every_command().items():
        for parameter in command.params:
            assert Text.from_markup(parameter.help).plain == parameter.help, f"{words}: {parameter.name}"


@pytest.mark.parametrize("words", every_command(), ids=" ".join)
def test_the_help_explains_every_argument_and_option(here, words):
    shown = " ".join(here(*words, "--help").stdout.replace("│", " ").split())
    for parameter in every_command()[words].params:
        assert parameter.help, parameter.name
        assert parameter.help in shown


def test_the_help_lists_every_command_in_its_group(here):
    _, *panels = re.split(r"╭─ ", here("--help").stdout)
    listed = {panel.partition(" ─")[0]: re.findall(r"^│ ([a-z-]+) ", panel, re.MULTILINE) for panel in panels}
    assert [*listed][1:] == [*Group]
    expected = {group: [work.__name__.replace("_", "-") for work in each] for group, each in COMMANDS.items()}
    expected[Group.CATALOGUE].append("data")
    assert {group: listed[group] for group in Group} == expected


def test_without_a_command_comes_the_help(here):
    result = here()
    assert "demo" in result.stdout
    assert result.stderr == ""
    assert result.returncode != 0


@pytest.mark.parametrize("word", ["--help", "--version"])
def test_torch_is_not_imported_for_a_glance(environment, word):
    code = (
        "import sys; sys.argv = ['fedunlearn', sys.argv[1]]\n"
        "from fedunlearn.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "slow = {'torch', 'numpy', 'matplotlib'} & set(sys.modules)\n"
        "sys.exit(f'imported {slow}' if slow else 0)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, word], env=environment, capture_output=True, text=True, timeout=60
    )
    assert result.returncode == 0, result.stderr


def test_methods_and_the_details_of_one(here):
    assert re.search(r"^fedosd +orthogonal steepest descent", here("methods").stdout, re.MULTILINE)
    for name, needs in {"fedkdu": "public, updates", "knot": "cluster", "fedosd": "-"}.items():
        shown = here("methods", name).stdout
        assert re.search(rf"^needs .*{needs}", shown, re.MULTILINE), shown
    assert "AAAI 2025" in shown
    assert "anchor = 'reverting'" in shown


def test_models_with_their_size(here):
    shown = here("models").stdout
    assert re.search(r"mlp +any +478,410 ", shown)
    assert re.search(r"lenet5 +1x28x28 +61,706 ", shown)


def test_datasets_and_where_they_are(here, tmp_path):
    shown = here("datasets", FEDUNLEARN_DATA=str(tmp_path)).stdout
    assert "fashion-demo.safetensors.xz" in shown
    assert "not here: fedunlearn data get mnist" in shown


def test_data_where(here, refused_here, tmp_path):
    assert here("data", "where", FEDUNLEARN_DATA=str(tmp_path)).stdout.strip() == str(tmp_path)
    assert here("data", "where", "fashion-demo").stdout.strip().endswith("fashion-demo.safetensors.xz")
    missing = refused_here("data", "where", "mnist", code=1, FEDUNLEARN_DATA=str(tmp_path))
    assert "fedunlearn data get mnist" in missing


def test_data_get_of_what_is_here_loads_nothing(here):
    assert here("data", "get", "fashion-demo").stdout.strip().endswith("fashion-demo.safetensors.xz")


@pytest.mark.wording
def test_data_get_without_network_says_so(refused_here, tmp_path, monkeypatch):
    monkeypatch.setattr("fedunlearn.data.download.RETRIES", 0)  # before each it waits for seconds
    sentence = refused_here(
        "data", "get", "mnist", FEDUNLEARN_DATA=str(tmp_path), https_proxy="http://127.0.0.1:9", no_proxy=""
    )
    assert "could not be downloaded" in sentence
    assert not list(tmp_path.rglob("*ubyte*"))


@pytest.mark.wording
def test_run_leaves_a_whole_folder_and_says_where(fedunlearn, here, small, tmp_path):
    result = fedunlearn("run", small, "seed=2", "unlearning.rounds=1")
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    folder = tmp_path / "runs/small-seed=2-unlearning.rounds=1"
    assert {path.name for path in folder.iterdir()} >= {
        "experiment.json",
        "outcome.json",
        "model.safetensors",
        "report.html",
        "curves.svg",
    }
    config = json.loads((folder / "experiment.json").read_text())
    assert (config["seed"], config["unlearning"]["rounds"]) == (2, 1)
    for words in (
        "ω⁰",
        "unlearned",
        "post-trained",
        "R-Acc",
        "runs/small-seed=2-unlearning.rounds=1/curves.svg",
    ):
        assert words in result.stdout
    assert "\x1b" not in result.stdout
    again = here("run", small, "seed=2", "unlearning.rounds=1", "--out", "elsewhere")
    assert "pre-training skipped" in again.stdout
    assert (tmp_path / "elsewhere/outcome.json").read_text() == (folder / "outcome.json").read_text()


def test_a_run_of_no_rounds_is_a_run(here, small, tmp_path):
    result = here("run", small, "unlearning.rounds=0", "recovery.rounds=0", "--out", "run[/b]")
    assert result.returncode == 0, result.stderr
    assert "report  run[/b]/report.html\n" in result.stdout  # a path, not a markup
    result = here("report", "run[/b]", "--out", "pages/page.html")
    assert result.returncode == 0, result.stderr
    assert result.stdout == "report  pages/page.html\n"
    assert (tmp_path / "pages/page.html").read_bytes() == (tmp_path / "run[/b]/report.html").read_bytes()


def test_a_comparison_leaves_a_table_and_a_report(here, small, tmp_path):
    small.write_text(small.read_text() + "[methods.fedosd]\n[methods.finetune]\n")
    result = here("compare", small, "--out", "both")
    assert result.returncode == 0, result.stderr
    assert "both/report.html" in result.stdout
    for text in (result.stdout, (tmp_path / "both/comparison.md").read_text()):
        assert "¹ after unlearning, ² after post-training or retraining\n" in text
    assert "finetune" in (tmp_path / "both/report.html").read_text()


def test_some_rows_of_a_comparison_may_take_what_others_refuse_and_lose_none(here, small, tmp_path):
    small.write_text(small.read_text() + "[methods.fedosd]\n[methods.finetune]\n")
    assert here("compare", small, "--only", "finetune", "--out", "some").returncode == 0
    result = here("compare", small, "options.objective=uce", "--only", "fedosd", "--at", "3", "--out", "some")
    assert result.returncode == 0, result.stderr
    assert "after 3" in result.stdout
    lasting = (tmp_path / "some/comparison.md").read_text()
    assert lasting.count("| fedosd |") == 3  # results, costs, rounds
    assert lasting.count("| finetune |") == 3


@pytest.mark.wording
@pytest.mark.parametrize("package", ["matplotlib", "jinja2"])
def test_without_an_extra_the_run_is_whole_and_one_sentence_names_it(
    apart, small, tmp_path, monkeypatch, package
):
    for module in list(sys.modules):
        if module.startswith((package, "fedunlearn.report")):
            monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, package, None)
    result = apart("run", small)
    assert result.returncode == 0, result.stderr
    assert "fedunlearn[report]" in result.stdout
    assert (tmp_path / "runs/small/outcome.json").exists()
