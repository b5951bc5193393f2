from __future__ import annotations

import fcntl
import gzip
import hashlib
import io
import multiprocessing
import socket
import tarfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from support.codes import refused, warned

from fedunlearn.core import FedUnlearnError
from fedunlearn.data import download, fetch, load, where
from fedunlearn.data.sources import SETTING, SOURCES


@dataclass
class Server:
    """Serves the files it was given, and remembers what it was asked for."""

    address: str
    files: dict[str, bytes] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    cut_off: bool = False
    delay: float = 0.0


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(download, "RETRIES", 0)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.rsplit("/", 1)[1]
            served.asked.append(name)
            if served.delay:
                time.sleep(served.delay)
            if name not in served.files:
                self.send_error(404)
                return
            content = served.files[name]
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content[: len(content) // 2] if served.cut_off else content)

        def log_message(self, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listener:
        served = Server(f"http://127.0.0.1:{listener.server_port}/files/")
        thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield served
        listener.shutdown()
        thread.join()


@pytest.fixture
def offer(server: Server, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Mapping[str, bytes]], None]:
    """Puts packages on the server and makes it the address of a data set."""

    def place(name: str, packages: Mapping[str, bytes]) -> None:
        server.files.update(packages)
        downloads = {
            server.address + file: hashlib.md5(content, usedforsecurity=False).hexdigest()
            for file, content in packages.items()
        }
        monkeypatch.setitem(SOURCES, name, replace(SOURCES[name], downloads=downloads))

    return place


def zipped(files: Mapping[str, bytes]) -> dict[str, bytes]:
    return {f"{name}.gz": gzip.compress(content) for name, content in files.items()}


def archive(files: Mapping[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return stream.getvalue()


def everything_below(folder) -> set[str]:
    """All files but the lock, which stays: removing it would let two processes in."""
    return {
        str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and path.name != ".lock"
    }


def children_fetch(name: str, count: int) -> list[str]:
    """What several processes that fetch a data set at the same moment say about it."""
    begin, lines = multiprocessing.Barrier(count), []

    def work(line: multiprocessing.connection.Connection) -> None:
        begin.wait(30)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                line.send(str(fetch(name)))
            except FedUnlearnError as error:
                line.send(str(error))

    processes = []
    for _ in range(count):
        ours, theirs = multiprocessing.Pipe()
        processes.append(multiprocessing.get_context("fork").Process(target=work, args=(theirs,)))
        lines.append(ours)
        processes[-1].start()
        theirs.close()
    said = [line.recv() for line in lines]
    for process, line in zip(processes, lines, strict=True):
        process.join()
        line.close()
    return said


def test_idx_files_come_unpacked_and_only_once(home, digits, server, offer, capsys):
    offer("mnist", zipped(digits))
    folder = fetch("mnist")
    assert folder == home / "MNIST" / "raw" == where("mnist")
    assert everything_below(home) == {f"MNIST/raw/{name}" for name in digits}
    assert len(load("mnist").train.y) == 20
    assert fetch("mnist") == folder
    assert sorted(server.asked) == sorted(f"{name}.gz" for name in digits)
    assert capsys.readouterr().err == ""


def test_an_archive_is_unpacked_where_we_want_it(home, photographs, server, offer):
    content = {f"cifar-10-batches-py/{name}": content for name, content in photographs.items()}
    content["../../outside"] = b"malice"
    content["cifar-10-batches-py/readme.html"] = b"unneeded"
    offer("cifar10", {"cifar-10-python.tar.gz": archive(content)})
    assert fetch("cifar10") == home / "cifar-10-batches-py"
    assert everything_below(home.parent) == {f"home/cifar-10-batches-py/{name}" for name in photographs}
    assert len(load("cifar10").train.y) == 50


def test_both_data_sets_of_one_archive_come_with_it(home, things, server, offer):
    content = archive({f"cifar-100-python/{name}": content for name, content in things.items()})
    for name in ("cifar100", "cifar100-test"):
        offer(name, {"cifar-100-python.tar.gz": content})
    fetch("cifar100-test")
    fetch("cifar100")
    assert server.asked == ["cifar-100-python.tar.gz"]
    assert len(load("cifar100").train.y) == 100


def test_processes_that_fetch_at_once_download_once(home, digits, server, offer):
    offer("mnist", zipped(digits))
    server.delay = 0.05
    assert children_fetch("mnist", 4) == [str(home / "MNIST/raw")] * 4
    assert sorted(server.asked) == sorted(f"{name}.gz" for name in digits)
    assert everything_below(home) == {f"MNIST/raw/{name}" for name in digits}


def test_who_waits_for_a_download_is_told(home, digits, server, offer):
    offer("mnist", zipped(digits))
    (home / "MNIST/raw").mkdir(parents=True)
    holder = (home / "MNIST/raw/.lock").open("w")
    fcntl.flock(holder, fcntl.LOCK_EX)
    release = threading.Timer(0.3, holder.close)
    release.start()
    with warned("waiting", says="waiting for another process that is downloading MNIST"):
        fetch("mnist")
    release.join()


def test_a_killed_download_leaves_nothing_after_the_next(home, digits, put, server, offer):
    offer("mnist", zipped(digits))
    put(home / "MNIST/raw/downloads", {"tmp_1a2b3c": b"half", "0123456789abcdef": b"half"})
    fetch("mnist")
    assert everything_below(home) == {f"MNIST/raw/{name}" for name in digits}


def test_damaged_files_are_replaced(home, digits, put, server, offer):
    offer("mnist", zipped(digits))
    put(home / "MNIST/raw", {**digits, "t10k-images-idx3-ubyte": b"damaged"})
    fetch("mnist")
    assert len(load("mnist").test.y) == 10


@pytest.mark.wording
def test_a_wrong_checksum_is_refused(home, digits, server, offer):
    offer("mnist", zipped(digits))
    server.files["train-labels-idx1-ubyte.gz"] = b"something else"
    with refused("download") as caught:
        fetch("mnist")
    sentence = str(caught.value)
    assert f"the file from {server.address}train-labels-idx1-ubyte.gz is not MNIST" in sentence
    assert str(home / "MNIST/raw") in sentence
    assert where("mnist") is None


def test_an_interrupted_download_leaves_nothing_that_looks_whole(home, digits, server, offer):
    offer("mnist", zipped(digits))
    server.cut_off = True
    with refused("download", says=r"MNIST could not be downloaded from http://127\.0\.0\.1"):
        fetch("mnist")
    assert where("mnist") is None
    assert everything_below(home) == set()
    server.cut_off = False
    fetch("mnist")
    assert len(load("mnist").train.y) == 20


def test_what_an_interrupted_download_got_whole_is_kept(home, digits, server, offer):
    packages = zipped(digits)
    offer("mnist", packages)
    del server.files["t10k-labels-idx1-ubyte.gz"]
    with refused("download", says="404"):
        fetch("mnist")
    server.files.update(packages)
    fetch("mnist")
    assert server.asked.count("train-images-idx3-ubyte.gz") == 1


def test_a_failure_is_tried_again(home, digits, server, offer, monkeypatch):
    offer("mnist", zipped(digits))
    server.cut_off = True
    monkeypatch.setattr(download, "RETRIES", 1)

    def recover(seconds: float) -> None:
        server.cut_off = False

    monkeypatch.setattr("time.sleep", recover)
    fetch("mnist")
    assert server.asked.count("train-images-idx3-ubyte.gz") == 2


@pytest.mark.wording
def test_no_network_is_one_clear_sentence(home, digits, server, offer, monkeypatch):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        server.address = f"http://127.0.0.1:{unused.getsockname()[1]}/"
        offer("mnist", zipped(digits))
        with refused("download") as caught:
            fetch("mnist")
    sentence = str(caught.value)
    assert "MNIST could not be downloaded" in sentence
    assert "(no connection, or the connection broke): check the network" in sentence
    assert "Max retries" not in sentence


def test_a_folder_that_cannot_be_written_is_named(home, digits, server, offer):
    (home / "MNIST").write_text("in the way")
    offer("mnist", zipped(digits))
    with refused("file", says=f"MNIST cannot be written to {home}.*set {SETTING}"):
        fetch("mnist")


def test_a_terminal_shows_progress(home, digits, server, offer, monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    offer("mnist", zipped(digits))
    fetch("mnist")
    drawn = capsys.readouterr().err
    assert "t10k-labels-idx1-ubyte.gz" in drawn
    assert "bytes" in drawn


def test_what_is_on_the_machine_is_not_downloaded(home, tmp_path, digits, put, server, offer, monkeypatch):
    offer("mnist", zipped(digits))
    system = put(tmp_path / "system", digits, packed=True)
    monkeypatch.setitem(SOURCES, "mnist", replace(SOURCES["mnist"], system=system))
    assert fetch("mnist") == system
    assert fetch("fashion-demo") == where("fashion-demo")
    assert server.asked == []


def test_unknown_names_get_a_suggestion():
    with refused("unknown", says="did you mean 'mnist'"):
        fetch("mnits")
