"""Real Flower processes on loopback: a deployment with TLS and authenticated nodes, and a simulation on Ray.

    with Deployment(["site-1", "site-2"]) as deployment:
        run = deployment.run(app_folder, {"rounds": 2})
        status, details = deployment.wait(run)

All processes are started and ended here, by process id. Every wait has a deadline, and output goes to files.
Flower and Ray are told to listen on loopback alone; ``listeners`` shows whether they do.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO, NamedTuple, Self, TypeVar

# Seconds. Generous, because a shared machine may be several times slower than an idle one.
START = 120.0
COMMAND = 90.0
RUN = 300.0
STOP = 20.0
PATIENCE = 10.0

# A killed SuperNode counts as online until it misses two heartbeats of 30 s. Its key is refused until then.
RETURN = 180.0

LOOPBACK = "127.0.0.1"

OFFLINE = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # otherwise Ray listens on all interfaces
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "NO_PROXY": f"{LOOPBACK},localhost",
    "no_proxy": f"{LOOPBACK},localhost",
    "OMP_NUM_THREADS": "1",
    "NO_COLOR": "1",
    "PYTHONUNBUFFERED": "1",
}

Value = str | int | float | bool
T = TypeVar("T")


class DeploymentError(AssertionError):
    """A process or command did not do what the test needs; the message ends with its output."""


class Listener(NamedTuple):
    """A listening TCP socket."""

    command: str
    address: str
    port: int


class Process(NamedTuple):
    """A row of the process table. ``started`` tells a process from a later one with the same id."""

    pid: int
    parent: int
    started: int
    command: str

    @property
    def name(self) -> str:
        """The Flower or Ray program, without interpreter and folder."""
        words = self.command.split("\0")
        if len(words) > 1 and Path(words[0]).name.startswith("python"):
            words = words[1:]
        return Path(words[0]).name


def process_table() -> dict[int, Process]:
    """All processes that run; zombies have ended and are left out."""
    table = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError, ValueError):
            # The name in parentheses may contain spaces and parentheses itself.
            fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
            if fields[0] not in "ZX":
                command = (entry / "cmdline").read_bytes().decode(errors="replace")
                table[int(entry.name)] = Process(int(entry.name), int(fields[1]), int(fields[19]), command)
    return table


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def until(condition: Callable[[], T | None], deadline: float, what: str, pause: float = 0.1) -> T:
    """The first true result of ``condition``; fails after ``deadline`` seconds."""
    end = time.monotonic() + deadline
    while True:
        if result := condition():
            return result
        if time.monotonic() > end:
            raise DeploymentError(f"{what}: not after {deadline:.0f} s")
        time.sleep(pause)


def toml(values: Mapping[str, Value]) -> str:
    """One line per value."""
    return "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())


class Processes:
    """Processes that share a temporary folder, and Flower's command line for them.

    A process belongs to them if it inherited the folder's name in ``FLWR_HOME``, if its parent belongs to
    them, or if it belonged to them earlier. Parents alone would miss orphans, and a program may overwrite its
    environment.
    """

    connection = "tested"

    def __init__(self) -> None:
        # Ray's sockets lie in this folder, and the path of a socket has at most 107 bytes.
        self.folder = Path(tempfile.mkdtemp(prefix="fl-", dir="/tmp" if Path("/tmp").is_dir() else None))
        self.logs = self.folder / "logs"
        self.home = self.folder / "home"
        self.port = free_port()
        self.logs.mkdir()
        self.home.mkdir()
        programs = Path(sys.executable).parent  # Flower's programs start each other by name
        self.environment = (
            os.environ
            | OFFLINE
            | {
                "PATH": f"{programs}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
                "FLWR_HOME": str(self.home),
                "RAY_TMPDIR": str(self.folder),
                "TMPDIR": str(self.folder),
            }
        )
        self._children: list[subprocess.Popen[bytes]] = []
        self._seen: dict[int, int] = {}
        self._commands = 0
        self.runs: list[int] = []

    # Processes

    def start(self, log: str, *command: str) -> subprocess.Popen[bytes]:
        """Starts a program in a session of its own; its output is appended to a file."""
        with (self.logs / f"{log}.log").open("ab") as output:
            child = subprocess.Popen(
                command,
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._children.append(child)
        return child

    def tree(self) -> list[Process]:
        """All processes that were started from here and still run."""
        # Flower's programs watch their parent by its id, which a child that was not waited for keeps.
        for child in self._children:
            child.poll()
        table = process_table()
        mark = f"FLWR_HOME={self.home}".encode()
        children: dict[int, list[int]] = {}
        for process in table.values():
            children.setdefault(process.parent, []).append(process.pid)
        found: set[int] = set()
        unread = [
            pid
            for pid, process in table.items()
            if self._seen.get(pid) == process.started or marked(pid, mark)
        ]
        while unread:
            pid = unread.pop()
            if pid not in found:
                found.add(pid)
                unread += children.get(pid, [])
        for pid in found:
            self._seen[pid] = table[pid].started
        return [table[pid] for pid in sorted(found)]

    def find(self, program: str, under: int | None = None) -> list[int]:
        """Ids of the processes that run ``program``, optionally only descendants of one process."""
        tree = {process.pid: process for process in self.tree()}

        def descends(process: Process) -> bool:
            while process.pid != under:
                if process.parent not in tree:
                    return False
                process = tree[process.parent]
            return True

        return [p.pid for p in tree.values() if p.name == program and (under is None or descends(p))]

    def listeners(self) -> list[Listener]:
        """The TCP sockets on which these processes listen."""
        sockets = dict(listening_sockets())
        found = set()
        for process in self.tree():
            with contextlib.suppress(OSError):
                for link in Path(f"/proc/{process.pid}/fd").iterdir():
                    with contextlib.suppress(OSError):
                        if place := sockets.get(os.readlink(link)):
                            found.add(Listener(process.name, *place))
        return sorted(found)

    def end(self, children: Sequence[subprocess.Popen[bytes]], deadline: float = STOP) -> None:
        """Asks all of them to end, then waits, then kills those that remain."""
        for child in children:
            if child.poll() is None:
                child.terminate()
        end = time.monotonic() + deadline
        for child in children:
            try:
                child.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait(STOP)

    def _end_rest(self) -> list[Process]:
        """Ends what is left of the tree; returns what could not be ended."""
        with contextlib.suppress(DeploymentError):
            until(lambda: not self.tree(), STOP / 4, "the children end by themselves")
        for number in (signal.SIGTERM, signal.SIGKILL):
            rest = self.tree()
            for process in rest:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, number)
            if rest:
                with contextlib.suppress(DeploymentError):
                    until(lambda: not self.tree(), STOP / 2, "the children end when told to")
        return self.tree()

    def _order(self) -> Iterator[Sequence[subprocess.Popen[bytes]]]:
        """Groups of own children in the order in which they are ended."""
        yield self._children

    def close(self) -> None:
        """Ends all processes, proves it by their ids, and removes the folder."""
        self.tree()  # remembers descendants before their parents end
        try:
            for group in self._order():
                self.end(group)
        finally:
            left = self._end_rest()
            shutil.rmtree(self.folder, ignore_errors=True)
        if left:
            raise DeploymentError(f"still running: {[(p.pid, p.name) for p in left]}")

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:  # pytest shows this with the failure
            for log in sorted(self.logs.glob("*.log")):
                print(f"--- {log.name}\n{tail(log)}")
        self.close()

    # Flower's command line

    def begin(self, *words: str) -> tuple[subprocess.Popen[bytes], Path]:
        """Starts a ``flwr`` command; returns it and the file of its output."""
        self._commands += 1
        name = f"flwr-{self._commands:03}-{words[0]}"
        return self.start(name, "flwr", *words), self.logs / f"{name}.log"

    def finish(self, begun: tuple[subprocess.Popen[bytes], Path], deadline: float = COMMAND) -> str:
        """The output of a command that was begun."""
        child, log = begun
        try:
            code = child.wait(deadline)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait(STOP)
            raise DeploymentError(f"{child.args}: no end after {deadline:.0f} s\n{tail(log)}") from None
        finally:
            self._children.remove(child)
        if code:
            raise DeploymentError(f"{child.args}: exit code {code}\n{tail(log)}")
        return log.read_text(errors="replace")

    def flwr(self, *words: str) -> str:
        """The output of a ``flwr`` command."""
        return self.finish(self.begin(*words))

    def ask(self, *words: str) -> dict[str, object]:
        """The answer of a ``flwr`` command that prints JSON. It exits with 0 even if it failed."""
        return answer(self.flwr(*words, "--format", "json"))

    def connect(self, **settings: Value) -> None:
        """Writes the address of the SuperLink where ``flwr`` looks for it."""
        settings = {"address": f"{LOOPBACK}:{self.port}"} | settings
        (self.home / "config.toml").write_text(
            f'[superlink]\ndefault = "{self.connection}"\n\n[superlink.{self.connection}]\n{toml(settings)}'
        )

    def await_health(
        self, child: subprocess.Popen[bytes], deadline: float, authority: Path | None = None
    ) -> None:
        """Waits until the SuperLink answers."""
        context = ssl.create_default_context(cafile=authority) if authority else None
        handlers = [urllib.request.ProxyHandler({})]
        if context:
            handlers.append(urllib.request.HTTPSHandler(context=context))
        opener = urllib.request.build_opener(*handlers)
        address = f"{'https' if authority else 'http'}://{LOOPBACK}:{self.port}/health"

        def healthy() -> bool:
            if child.poll() is not None:
                raise DeploymentError(f"the SuperLink ended: {tail(self.logs / 'superlink.log')}")
            with contextlib.suppress(OSError), opener.open(address, timeout=5) as reply:
                return reply.status == 200
            return False

        until(healthy, deadline, "the SuperLink answers")

    # Runs

    def run(self, app: Path, config: Mapping[str, Value] | None = None, *options: str) -> int:
        """Submits the app in a folder; returns the id of the run. The app declares all keys of ``config``."""
        words = ["run", str(app.resolve()), self.connection, *options]
        if config:
            file = self.folder / f"run-config-{self._commands}.toml"
            file.write_text(toml(config))
            words += ["--run-config", str(file)]
        self.runs.append(int(str(self.ask(*words)["run-id"])))
        return self.runs[-1]

    def status(self, run: int) -> tuple[str, str]:
        """The status of a run, such as ``running`` or ``finished:failed``, and its details."""
        runs = self.ask("list", self.connection, "--run-id", str(run))["runs"]
        assert isinstance(runs, list)
        return runs[0]["status"], runs[0].get("status-details", "")

    def stop(self, run: int) -> None:
        """Stops a run that has not finished."""
        if not self.status(run)[0].startswith("finished"):
            self.ask("stop", str(run), self.connection)

    def wait(self, run: int, deadline: float = RUN) -> tuple[str, str]:
        """The final status of a run, and its details: the text of the exception if the run failed."""

        asked = -PATIENCE

        def finished() -> tuple[str, str] | None:
            # Each question costs a second of processor time; while an app works there is little to ask.
            nonlocal asked
            working = self.find("flwr-serverapp") or self.find("flwr-simulation")
            if working and time.monotonic() - asked < PATIENCE:
                return None
            asked = time.monotonic()
            status, details = self.status(run)
            return (status, details) if status.startswith("finished") else None

        try:
            return until(finished, deadline, f"run {run} ends", pause=0.5)
        except DeploymentError as error:
            raise DeploymentError(f"{error}\n{self.log(run)}") from None

    def log(self, run: int) -> str:
        """What the ServerApp of a run printed."""
        return self.flwr("log", str(run), self.connection, "--show")


class Deployment(Processes):
    """A SuperLink with TLS, and SuperNodes that prove with a key that they are registered.

    ``nodes`` maps the registered name of each node to its ``--node-config``.
    """

    def __init__(self, nodes: Mapping[str, Mapping[str, Value]] | Sequence[str]) -> None:
        super().__init__()
        self.nodes = dict(nodes) if isinstance(nodes, Mapping) else {name: {} for name in nodes}
        self._ports = {name: free_port() for name in self.nodes}
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self.superlink: subprocess.Popen[bytes] | None = None
        self.authority = self.folder / "ca.crt"
        self.ids: dict[str, str] = {}  # Flower's, by registered name
        self.seconds: dict[str, float] = {}

    def __enter__(self) -> Self:
        try:
            write_certificates(self.folder)
            for name in self.nodes:
                write_key(self.private_key(name))
            self.connect(**{"root-certificates": str(self.authority)})
            with self.timed("superlink"):
                self.start_superlink()
            with self.timed("registration"):
                self.register(*self.nodes)
            with self.timed("nodes"):
                for name in self.nodes:
                    self.start_node(name)
                self.await_online(*self.nodes)
        except BaseException:
            self.__exit__(*sys.exc_info())
            raise
        return self

    def _order(self) -> Iterator[Sequence[subprocess.Popen[bytes]]]:
        yield list(self._running.values())  # while the SuperLink still takes their farewell
        yield self._children

    @contextlib.contextmanager
    def timed(self, what: str) -> Iterator[None]:
        """Stores the seconds of a part in ``seconds``."""
        start = time.monotonic()
        yield
        self.seconds[what] = round(time.monotonic() - start, 2)

    # The SuperLink

    def start_superlink(self, deadline: float = START) -> None:
        """Starts the SuperLink and waits until it answers. The second time it finds its database again."""
        self.superlink = self.start(
            "superlink",
            *("flower-superlink", "--host", LOOPBACK, "--port", str(self.port)),
            *("--ssl-ca-certfile", str(self.authority)),
            *(
                "--ssl-certfile",
                str(self.folder / "server.crt"),
                "--ssl-keyfile",
                str(self.folder / "server.key"),
            ),
            *("--enable-supernode-auth", "--database", str(self.folder / "state.db")),
            "--disable-runtime-dependency-installation",
        )
        self.await_health(self.superlink, deadline, self.authority)

    def kill_superlink(self, number: int = signal.SIGKILL) -> None:
        """Ends the SuperLink and waits for its end. A ServerApp may outlive it by many seconds."""
        assert self.superlink is not None
        self.tree()
        self._end_one(self.superlink, number)

    def restart_superlink(self, deadline: float = START) -> float:
        """Starts the SuperLink on the same port and database; returns the seconds until all nodes are online.

        A node whose last heartbeat is recent counts as online at once, whether or not it has reconnected.
        """
        start = time.monotonic()
        self.start_superlink(deadline)
        self.await_online(*(name for name, child in self._running.items() if child.poll() is None))
        return time.monotonic() - start

    def server_app(self, deadline: float = START) -> int:
        """The process id of the ServerApp that runs, as soon as there is one."""
        assert self.superlink is not None
        pid = self.superlink.pid
        return until(lambda: self.find("flwr-serverapp", pid), deadline, "a ServerApp runs")[0]

    def kill_server_app(self, number: int = signal.SIGKILL, deadline: float = START) -> int:
        """Ends the ServerApp that runs; returns its process id."""
        pid = self.server_app(deadline)
        os.kill(pid, number)
        return pid

    # Nodes

    def pid(self, name: str) -> int:
        """The process id of a SuperNode."""
        return self._running[name].pid

    def private_key(self, name: str) -> Path:
        """The file of a node's private key; its public key lies beside it."""
        return self.folder / f"{name}.key"

    def public_key(self, name: str) -> Path:
        """The file of a node's public key, in the format of OpenSSH."""
        return self.folder / f"{name}.key.pub"

    def register(self, *names: str) -> None:
        """Registers the keys of these nodes under their names."""
        words = ("--format", "json")
        begun = [
            self.begin("supernode", "register", str(self.public_key(n)), self.connection, "--name", n, *words)
            for n in names
        ]
        for name, command in zip(names, begun, strict=True):
            self.ids[name] = str(answer(self.finish(command))["node-id"])

    def start_node(self, name: str) -> subprocess.Popen[bytes]:
        """Starts a SuperNode without waiting for it."""
        child = self.start(
            name,
            *("flower-supernode", "--superlink", f"{LOOPBACK}:{self.port}"),
            *("--root-certificates", str(self.authority)),
            *("--auth-supernode-private-key", str(self.private_key(name))),
            *("--host", LOOPBACK, "--port", str(self._ports[name])),
            *("--node-config", " ".join(toml(self.nodes[name]).replace(" = ", "=").splitlines())),
        )
        self._running[name] = child
        return child

    def statuses(self) -> dict[str, str]:
        """``registered``, ``online``, ``offline`` or ``unregistered`` for each node, by name."""
        nodes = self.ask("supernode", "list", self.connection)["nodes"]
        assert isinstance(nodes, list)
        found = {node["node-id"]: node["status"] for node in nodes}  # the list has no names
        return {name: found[node] for name, node in self.ids.items() if node in found}

    def await_online(self, *names: str, deadline: float = START) -> None:
        """Waits until all of these nodes are online; fails as soon as one of them ends."""

        def online() -> bool:
            for name in names:
                if (code := self._running[name].poll()) is not None:
                    raise DeploymentError(f"{name} ended with {code}\n{tail(self.logs / f'{name}.log')}")
            # Each question costs a second of processor time that the nodes need to start; logs cost nothing.
            if not all("SuperNode ID" in (self.logs / f"{name}.log").read_text() for name in names):
                return False
            statuses = self.statuses()
            return all(statuses.get(name) == "online" for name in names)

        until(online, deadline, f"{', '.join(names)} online", pause=0.2)

    def ended(self) -> list[str]:
        """Names of the nodes whose process has ended."""
        return [name for name, child in self._running.items() if child.poll() is not None]

    def await_status(self, name: str, status: str, deadline: float = RETURN) -> float:
        """The seconds until a node has this status."""
        start = time.monotonic()
        until(lambda: self.statuses().get(name) == status, deadline, f"{name} {status}", pause=1.0)
        return time.monotonic() - start

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        """Ends a SuperNode and waits until it and its children have ended."""
        child = self._running[name]
        inside = {child.pid}
        for process in sorted(self.tree(), key=lambda process: process.started):
            if process.parent in inside:
                inside.add(process.pid)
        self._end_one(child, number)
        until(lambda: not inside & {p.pid for p in self.tree()}, STOP, f"the children of {name} end")

    def _end_one(self, child: subprocess.Popen[bytes], number: int) -> None:
        child.send_signal(number)
        try:
            child.wait(STOP)
        except subprocess.TimeoutExpired:
            raise DeploymentError(f"{child.args} did not end after signal {number}") from None

    def restart(self, name: str, deadline: float = RETURN) -> tuple[float, int]:
        """Starts a node again until it is online; returns the seconds and the number of attempts.

        Flower refuses a key whose owner still counts as online, and the refused SuperNode ends.
        """
        start = time.monotonic()
        attempts = 0
        while True:
            attempts += 1
            log = self.logs / f"{name}.log"
            log.rename(log.with_suffix(f".{time.monotonic_ns()}.log"))
            self.start_node(name)
            left = deadline - (time.monotonic() - start)
            try:
                self.await_online(name, deadline=left)
            except DeploymentError:
                if self._running[name].poll() is None or time.monotonic() - start > deadline:
                    raise
            else:
                return time.monotonic() - start, attempts


class Simulation(Processes):
    """A SuperLink that runs its apps on Ray, with this many simulated nodes."""

    def __init__(self, nodes: int, processors: int = 2) -> None:
        super().__init__()
        self.nodes = nodes
        self.processors = processors

    def __enter__(self) -> Self:
        try:
            self.connect(insecure=True)
            superlink = self.start(
                "superlink",
                *(
                    "flower-superlink",
                    "--simulation",
                    "--insecure",
                    "--host",
                    LOOPBACK,
                    "--port",
                    str(self.port),
                ),
                "--disable-runtime-dependency-installation",
            )
            self.await_health(superlink, START)
        except BaseException:
            self.__exit__(*sys.exc_info())
            raise
        return self

    def run(self, app: Path, config: Mapping[str, Value] | None = None, *options: str) -> int:
        """Submits the app in a folder; each simulated node uses one processor."""
        federation = {
            "num-supernodes": self.nodes,
            "client-resources-num-cpus": 1,
            "init-args-num-cpus": self.processors,
        }
        words = " ".join(f"{key}={value}" for key, value in federation.items())
        return super().run(app, config, "--federation-config", words, *options)


def marked(pid: int, mark: bytes) -> bool:
    """Whether a process inherited this assignment of a variable."""
    try:
        return mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


def listening_sockets() -> Iterator[tuple[str, tuple[str, int]]]:
    """Every listening TCP socket of this machine, as /proc links to it, with its address and port."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(FileNotFoundError), open(table) as rows:
            next(rows)
            for row in rows:
                (
                    _,
                    local,
                    _,
                    state,
                    *_,
                ) = row.split()[:4]
                if state == "0A":
                    words, port = local.split(":")
                    # Words of 32 bits, each in the byte order of the machine.
                    raw = b"".join(
                        int(words[i : i + 8], 16).to_bytes(4, sys.byteorder) for i in range(0, len(words), 8)
                    )
                    address = ipaddress.ip_address(raw)
                    yield f"socket:[{row.split()[9]}]", (str(address), int(port, 16))


def is_loopback(address: str) -> bool:
    """Whether an address can be reached from this machine alone."""
    parsed = ipaddress.ip_address(address)
    inner = getattr(parsed, "ipv4_mapped", None)
    return (inner or parsed).is_loopback


def answer(text: str) -> dict[str, object]:
    """The JSON object that a ``flwr`` command printed; fails if it reports a failure."""
    start = text.find("{")
    try:
        found = json.loads(text[start:])
    except json.JSONDecodeError:
        raise DeploymentError(f"no JSON: {text}") from None
    if not found.get("success"):
        raise DeploymentError(str(found.get("error-message", text)))
    return dict(found)


def tail(file: Path, size: int = 8000) -> str:
    """The end of a text file."""
    handle: IO[bytes]
    with contextlib.suppress(FileNotFoundError), file.open("rb") as handle:
        handle.seek(max(0, file.stat().st_size - size))
        return handle.read().decode(errors="replace")
    return ""


def write_key(file: Path) -> None:
    """A key pair on the curve P-384 in the format of OpenSSH, the only one that Flower reads."""
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP384R1())
    file.touch(mode=0o600)
    file.write_bytes(
        key.private_bytes(form.Encoding.PEM, form.PrivateFormat.OpenSSH, form.NoEncryption()),
    )
    public = key.public_key().public_bytes(form.Encoding.OpenSSH, form.PublicFormat.OpenSSH)
    file.with_name(file.name + ".pub").write_bytes(public + b"\n")


def write_certificates(folder: Path) -> None:
    """``ca.crt``, and ``server.crt`` with ``server.key`` for localhost and 127.0.0.1, valid for a day."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric import ec

    def named(name: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])

    now = datetime.now(UTC)
    authority = ec.generate_private_key(ec.SECP384R1())
    server = ec.generate_private_key(ec.SECP384R1())

    def certificate(subject: str, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(named(subject))
            .issuer_name(named("test authority"))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), critical=False
            )
        )

    root = (
        certificate("test authority", authority)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(authority, hashes.SHA384())
    )
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address(LOOPBACK))]
    leaf = (
        certificate("localhost", server)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(authority, hashes.SHA384())
    )
    (folder / "ca.crt").write_bytes(root.public_bytes(form.Encoding.PEM))
    (folder / "server.crt").write_bytes(leaf.public_bytes(form.Encoding.PEM))
    (folder / "server.key").touch(mode=0o600)
    (folder / "server.key").write_bytes(
        server.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption())
    )
