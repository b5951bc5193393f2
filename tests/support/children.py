"""Work in a child of this process: it need not import torch again, and leaves nothing behind here."""

from __future__ import annotations

import io
import json
import os
import runpy
import sys
import traceback
import warnings
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from fedunlearn.__main__ import main


def in_child(work: Callable[[], Any]) -> Any:
    """What the work returns, as JSON can carry it; an exception of the child is a failed assertion here."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            done = {"result": work()}
        except BaseException:
            done = {"failure": traceback.format_exc()}
        with open(writing, "w") as pipe:
            json.dump(done, pipe)
        os._exit(0)
    os.close(writing)
    with open(reading) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    done = json.loads(said)
    assert "result" in done, done["failure"]
    return done["result"]


def script(path: Path, folder: Path) -> str:
    """What a Python file prints, run in a folder; a warning ends it."""
    return in_child(lambda: _printed(lambda: runpy.run_path(str(path), run_name="__main__"), folder))


def command(*words: str, folder: Path) -> str:
    """What the program prints, run in a folder; a warning ends it."""

    def program() -> None:
        sys.argv = ["fedunlearn", *words]
        with pytest.raises(SystemExit) as end:
            main()
        assert not end.value.code, end.value.code

    return in_child(lambda: _printed(program, folder))


def _printed(work: Callable[[], object], folder: Path) -> str:
    os.chdir(folder)
    os.environ |= {"FEDUNLEARN_CACHE": str(folder / "cache"), "COLUMNS": "200"}
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", "the update of .* was shortened")  # what guards do to an honest target
    with redirect_stdout(io.StringIO()) as out:
        work()
    return out.getvalue()
