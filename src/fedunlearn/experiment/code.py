"""The user's own Python files: imported once, so that what they register can be named in an experiment."""

from __future__ import annotations

import hashlib
import sys
import traceback
from importlib.abc import SourceLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

from ..core import FedUnlearnError

_imported: set[str] = set()
"""SHA-256 of each file that this process has imported."""


def sha256(path: Path) -> str:
    """The digest of a file."""
    return hashlib.sha256(_content(path)).hexdigest()


def import_code(path: Path, recorded: str = "", *, alone: bool = False) -> str:
    """Import a file, unless a file with the same content was imported before, and return its SHA-256.

    A file that is not the ``recorded`` one is refused. Modules beside it can be imported from it, unless it
    stands ``alone``.
    """
    if recorded in _imported:
        return recorded
    content = _content(path)
    found = hashlib.sha256(content).hexdigest()
    if recorded and found != recorded:
        raise FedUnlearnError(
            f"{path} has changed since the run began: restore it, give the command an unchanged copy, or "
            "start a new run in another folder (--out)",
            code="changed",
        )
    if found not in _imported:
        _execute(path, content, alone)
        _imported.add(found)
    return found


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise FedUnlearnError(f"cannot read {path}: {error.strerror}", code="file") from error


class _Loader(SourceLoader):
    """Source without a bytecode cache, which could be that of an earlier version of the file."""

    def __init__(self, path: Path, content: bytes) -> None:
        self._path, self._content = path, content

    def get_filename(self, fullname: str) -> str:
        return str(self._path)

    def get_data(self, path: bytes | str) -> bytes:
        return self._content


def _execute(path: Path, content: bytes, alone: bool) -> None:
    # Under its own name another file can import it; a name that is taken, like torch, stays what it is.
    name = path.stem if path.stem not in sys.modules else f"{path.stem} of {path.parent}"
    loader = _Loader(path, content)
    spec = spec_from_loader(name, loader)
    assert spec is not None
    module = sys.modules[name] = module_from_spec(spec)
    if not alone and str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    try:
        loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise FedUnlearnError(f"{path}, {_problem(error, path)}") from error


def _problem(error: BaseException, path: Path) -> str:
    """The line of the file, and what went wrong there."""
    if isinstance(error, SyntaxError) and error.filename == str(path):
        return f"line {error.lineno}: {error.msg}"
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(path)]
    kind = "" if isinstance(error, FedUnlearnError) else f"{type(error).__name__}: "
    return f"line {lines[-1] if lines else 1}: {kind}{error}"
