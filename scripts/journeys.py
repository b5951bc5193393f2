"""What four journeys through the package touch: modules, files read, folders verified, documents parsed.

    python scripts/journeys.py          # one line for each journey; about a minute

A file counts as read again if it is opened for reading more than once, and a folder as verified again if its
manifest is compared more than once. It needs the package with all extras, and ``tests`` beside it.
"""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests")]

import torch  # noqa: E402
from torch import nn  # noqa: E402

import fedunlearn as fu  # noqa: E402
from fedunlearn.data import load  # noqa: E402

try:
    from support import desks
except ImportError:
    import desks  # of version 0.2

PACKAGE = str(Path(fu.__file__).parent)


class Watch:
    """Counts what a journey does; one at a time."""

    def __init__(self) -> None:
        self.folder = ""
        self.read = Counter[str]()
        self.verified = Counter[str]()
        self.parsed = 0
        self.modules: set[str] = set()
        sys.addaudithook(self._opened)

    def _opened(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and self.folder and isinstance(arguments[0], str | os.PathLike):
            path, mode = os.fspath(arguments[0]), arguments[1] or "r"
            reads = mode in ("r", "rb") and isinstance(path, str) and path.startswith(self.folder)
            if reads and not path.endswith("lock"):
                self.read[path] += 1

    def _called(self, frame: FrameType, event: str, _argument: object) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(PACKAGE):
            return
        self.modules.add(code.co_filename)
        place = code.co_filename.removeprefix(PACKAGE)
        if code.co_name == "problems" and place.endswith("manifest.py"):
            self.verified[str(frame.f_locals["folder"])] += 1
        self.parsed += code.co_name == "parsed" and place.endswith("predicate.py")

    def of(self, journey: Callable[[Path], object]) -> str:
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            os.environ["FEDUNLEARN_CACHE"] = str(Path(folder) / "cache")
            os.chdir(folder)
            self.folder, self.parsed = folder, 0
            for counted in (self.read, self.verified, self.modules):
                counted.clear()
            sys.setprofile(self._called)
            try:
                journey(Path(folder))
            finally:
                sys.setprofile(None)
                self.folder = ""
                os.chdir(ROOT)
        again = sum(times > 1 for times in self.read.values())
        twice = sum(times > 1 for times in self.verified.values())
        return (
            f"{len(self.modules):4} modules, {sum(self.read.values()):4} reads of {len(self.read):3} files "
            f"({again} again), {sum(self.verified.values()):3} checks of {len(self.verified):2} folders "
            f"({twice} again), {self.parsed} certificates parsed"
        )


def demo(folder: Path) -> None:
    from fedunlearn.cli.commands import execute

    sys.argv = ["fedunlearn", "demo", "--out", str(folder / "run")]
    execute()


def sites() -> dict[str, fu.ClientData]:
    data = load("fashion-demo", fraction=0.4)
    parts = [[part.take(slice(n, None, 4)) for part in (data.train, data.test)] for n in range(4)]
    return {f"site-{n}": fu.ClientData(train, {"test": test}) for n, (train, test) in enumerate(parts)}


def module() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 16), nn.ReLU(), nn.Linear(16, 10))


def server(folder: Path) -> None:
    ours = fu.Server(module(), sites(), folder=folder / "run", workers=1)
    ours.train(20, 0.1)
    made = ours.compare("site-1", {n: {"method": "retrain", "rounds": 20, "number": int(n)} for n in "23"})
    ours.forget("site-1", "retrain", rounds=20)
    ours.audit(made["2"], again=made["3"])


def desk(folder: Path) -> None:
    desks.way(desks.make(folder / "desk"))


def flower(folder: Path) -> None:
    from flwr.clientapp import ClientApp

    from fedunlearn.engines import flower

    names, app = [*sites()], ClientApp()
    flower.serve(
        app,
        lambda context: flower.Site(
            module(), sites()[names[context.node_id % 4]], name=names[context.node_id % 4]
        ),
    )
    nodes = flower.LocalGrid(app, [{} for _ in names], names=names)
    federation = flower.connect(nodes, module(), clients=4)
    schedule = fu.Schedule(pretrain_lr=0.1)
    plan = {"method": "retrain", "schedule": schedule, "rounds": 20}
    fu.forget(federation, module(), ["site-1"], folder / "run", **plan)


if __name__ == "__main__":
    watch = Watch()
    for name, journey in {"demo": demo, "Server": server, "desk": desk, "Flower": flower}.items():
        sys.stdout.flush()
        print(f"{name:<8}{watch.of(journey)}", flush=True)
