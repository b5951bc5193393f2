"""Downloads datasets, only on request."""

from __future__ import annotations

import errno
import gzip
import secrets
import shutil
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from filelock import FileLock, Timeout

from ..core import FedUnlearnError
from ..core.errors import warn
from ..core.registry import dataset
from .datasets import where
from .sources import SETTING, SOURCES, Source, data_directory, locate, read

RETRIES = 2
TIMEOUT_SECONDS = 30


def fetch(name: str) -> Path:
    """Return the folder of the named dataset; download it if it is not complete on this machine."""
    dataset.entry(name)
    if name not in SOURCES:
        folder = where(name)
        if folder is None:
            raise FedUnlearnError(
                f"dataset {name!r} has no download address: copy its files to this machine", code="download"
            )
        return folder
    here = _intact(name)
    if here is not None:
        return here
    source = SOURCES[name]
    folder = data_directory() / source.folders[0]
    packages = folder / "downloads"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder, source.title):
            here = _intact(name)
            if here is not None:  # another process has downloaded it
                return here
            for path in _download(source, packages):
                for file, content in _unpacked(path):
                    if file in _published(source):
                        # A partial file never has the final name, and is deleted with the packages.
                        part = packages / secrets.token_hex(8)
                        with part.open("xb") as stream:
                            stream.write(content)
                        part.replace(folder / file)
            shutil.rmtree(packages)
    except OSError as error:
        space = "free some space there, or " if error.errno == errno.ENOSPC else ""
        raise FedUnlearnError(
            f"{source.title} cannot be written to {data_directory()} ({error}): "
            f"{space}set {SETTING} to another folder",
            code="file",
        ) from error
    for file in source.files:
        read(name, folder, file)
    return folder


@contextmanager
def _locked(folder: Path, title: str) -> Iterator[None]:
    """Let one process at a time write to a folder."""
    lock = FileLock(folder / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        warn(f"waiting for another process that is downloading {title}", "waiting")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _intact(name: str) -> Path | None:
    """Return the folder with the complete dataset, if there is one."""
    folder = locate(name)
    if folder is None:
        return None
    try:
        for file in SOURCES[name].files:
            read(name, folder, file)
    except FedUnlearnError:
        return None
    return folder


def _published(source: Source) -> set[str]:
    """Return all files of the packages, including those of other datasets, to avoid a second download."""
    return {file for other in SOURCES.values() if other.downloads == source.downloads for file in other.files}


def _download(source: Source, folder: Path) -> list[Path]:
    """Download the packages of a dataset, except those that an earlier attempt has completed."""
    # Imported here because they are slow to import and only downloads need them.
    try:
        import pooch  # type: ignore[import-untyped]
        import requests
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
    except ImportError as error:
        raise FedUnlearnError(
            f"a download needs {error.name}: pip install 'fedunlearn[cli]'", code="package"
        ) from None

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    progress = Progress(*columns, console=console, disable=not console.is_terminal)

    def transfer(address: str, path: str, _: object) -> None:
        # Unlike pooch's own downloader, this closes a broken connection and shows progress with rich.
        header = {"Accept-Encoding": "identity"}  # keep .gz files compressed
        with requests.get(address, headers=header, stream=True, timeout=TIMEOUT_SECONDS) as response:
            response.raise_for_status()
            size = int(response.headers.get("Content-Length", 0)) or None
            task = progress.add_task(PurePosixPath(address).name, total=size)
            with open(path, "wb") as file:
                for chunk in response.iter_content(1 << 16):
                    file.write(chunk)
                    progress.advance(task, len(chunk))

    pooch.get_logger().setLevel("WARNING")
    addresses = {PurePosixPath(address).name: address for address in source.downloads}
    cache = pooch.create(
        folder,
        base_url="",
        registry={file: f"md5:{source.downloads[address]}" for file, address in addresses.items()},
        urls=addresses,
        retry_if_failed=RETRIES,
    )
    paths = []
    elsewhere = f"copy the files from another machine to {data_directory() / source.folders[0]}"
    with progress:
        for file, address in addresses.items():
            try:
                paths.append(Path(cache.fetch(file, downloader=transfer)))
            except requests.RequestException as error:
                # For a broken connection, the error text is half a page of library internals.
                answered = isinstance(error, requests.HTTPError)
                reason = error if answered else "no connection, or the connection broke"
                raise FedUnlearnError(
                    f"{source.title} could not be downloaded from {address} ({reason}): "
                    f"check the network and try again, or {elsewhere}",
                    code="download",
                ) from error
            except ValueError as error:
                raise FedUnlearnError(
                    f"the file from {address} is not {source.title}, which has md5 "
                    f"{source.downloads[address]}: try again later, or {elsewhere}",
                    code="download",
                ) from error
    return paths


def _unpacked(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield names and contents of the files in a .tar.gz or .gz; never write to the paths it names."""
    if not path.name.endswith(".tar.gz"):
        yield path.stem, gzip.decompress(path.read_bytes())
        return
    with tarfile.open(path) as archive:
        for member in archive:
            file = archive.extractfile(member) if member.isfile() else None
            if file is not None:
                yield PurePosixPath(member.name).name, file.read()
