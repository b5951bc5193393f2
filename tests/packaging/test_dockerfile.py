"""The image installs what the project has: files, extras, pinned versions, and a command that exists."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

from typer.main import get_command

from fedunlearn.cli.commands import app

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
STEPS = [
    (word, rest)
    for line in (ROOT / "Dockerfile").read_text().splitlines()
    if line and not line.startswith("#")
    for word, _, rest in [line.partition(" ")]
]


def steps(word: str) -> list[str]:
    return [rest for name, rest in STEPS if name == word]


def test_the_base_image_has_the_oldest_python_that_is_supported():
    (image,) = steps("FROM")
    found = re.fullmatch(r"python:(\d+\.\d+)-slim", image)
    assert found is not None
    assert PROJECT["requires-python"] == f">={found[1]}"


def test_every_copied_file_exists_and_is_sent_to_the_builder():
    copied = [source for line in steps("COPY") for source in line.split()[:-1]]
    sent = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert set(copied) == sent
    for source in copied:
        assert (ROOT / source).exists(), source
    assert {PROJECT["readme"], *PROJECT["license-files"]} <= set(copied)  # a build reads them


def test_every_installation_is_pinned_and_its_extras_exist():
    installations = [line for line in steps("RUN") if "pip install" in line]
    assert len(installations) == 2
    for line in installations:
        assert line.startswith("pip install -c constraints.txt ")
    (extras,) = re.findall(r"'\.\[(.+)\]'", installations[-1])
    assert set(extras.split(",")) <= PROJECT["optional-dependencies"].keys()


def test_an_ordinary_user_runs_a_command_that_exists():
    words = [word for word, _ in STEPS]
    assert words.index("USER") > max(place for place, word in enumerate(words) if word == "RUN")
    (user,) = steps("USER")
    assert user not in ("root", "0")
    ((program,), (command,)) = (json.loads(line) for word in ("ENTRYPOINT", "CMD") for line in steps(word))
    assert program in PROJECT["scripts"]
    assert command in get_command(app).commands
