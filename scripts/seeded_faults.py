"""Forty faults, put into a copy of the sources one at a time: the tests must notice each of them.

    python scripts/seeded_faults.py                # all, about 10 minutes
    python scripts/seeded_faults.py --only ledger

A fault is a text that occurs once in ``src``, what takes its place, and the tests that should fail.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
DRIVER, ERASURE = "tests/driver tests/contract", "tests/erasure"
FAULTS = {  # name: text, what takes its place, tests
    # mathematics
    "project every displacement": (" or not (always or product > 0):", ":", "tests/maths"),
    "wrong share of Eq. 7": ("share = product / reach  # Eq. 7", "share = product / square", "tests/maths"),
    "a margin that includes its edges": (
        "return -margin < self.low and self.high < margin",
        "return -margin <= self.low and self.high <= margin",
        "tests/evidence",
    ),
    "one-sided interval": (
        "half = NORMAL.inv_cdf((1 + level) / 2) * self.error",
        "half = NORMAL.inv_cdf(level) * self.error",
        "tests/evidence",
    ),
    "weights left out of the mean": (
        "return losses.sum() / weights.sum().clamp_min",
        "return losses.mean() / weights.new_ones(1).sum().clamp_min",
        "tests/maths",
    ),
    # methods
    "the target among the protected": (
        "retained = replies.every(request.targets).mean(), replies.some(request.asked)",
        "retained = replies.every(request.targets).mean(), replies.some((*request.asked, *request.targets))",
        "tests/methods/test_fedosd.py tests/contract",
    ),
    "earlier requests are no anchors": (
        "anchor for anchor in (request.params, *request.anchors)])\n        always",
        "anchor for anchor in (request.params,)])\n        always",
        "tests/methods tests/contract/test_requests.py",
    ),
    "patience of FedOSD": (
        "if stalled < PATIENCE:",
        "if stalled <= PATIENCE:",
        "tests/methods tests/contract",
    ),
    # randomness
    "names without their types": (
        'f"{type(name).__name__}:{name}" for name in names',
        'f"{name}" for name in names',
        "tests/core",
    ),
    "the same order in each epoch": (
        'generator("batches", self.seed_of(client), epoch)',
        'generator("batches", self.seed_of(client))',
        "tests/client tests/core tests/engines/test_workers.py",
    ),
    "every client draws alike": (
        '*self.seed, client, f"local training',
        '*self.seed, f"local training',
        "tests/client tests/core",
    ),
    # clients
    "half an epoch rounded down": (
        'math.ceil(float(job.config.get("effort", 1)) * self.epochs - 1e-9)',
        'int(float(job.config.get("effort", 1)) * self.epochs)',
        "tests/core tests/client tests/methods",
    ),
    "rates that do not fall": ("self.lr)) * self.decay", "self.lr))", "tests/core tests/driver tests/client"),
    "labels out of range": (
        "if least < 0 or most >= classes:",
        "if least < 0 or most > classes:",
        "tests/client tests/server",
    ),
    "an audit that trains": (
        "self._module.eval(), self._batches(data.train",
        "self._module.train(), self._batches(data.train",
        "tests/client tests/methods tests/contract",
    ),
    "losses not weighted by the batch": (
        "losses.append(found.detach() * holdings.length(batch))\n                seen",
        "losses.append(found.detach())\n                seen",
        "tests/client tests/engines",
    ),
    # the gate and the guards
    "infinite displacements": ('_require_bounded("displacement", reply.displacement)', "pass", DRIVER),
    "no examples": ("if not _count(reply.examples, 1):", "if not _count(reply.examples, 0):", DRIVER),
    "unasked replies": (
        "if client not in jobs:\n                raise",
        "if False:\n                raise",
        DRIVER,
    ),
    "nobody is missing": (
        'missing[client] = Failure(Reason.ABSENT, "did not answer")',
        "pass",
        "tests/driver tests/contract",
    ),
    "a majority is refused": ("if 2 * len(both.keys() & {*retained}) <= len(retained):", "if True:", DRIVER),
    "targets may be long": ("longest = self.guards.target_norm * typical", "longest = 0.0", DRIVER),
    "repeated updates": ("elif model != now[1]:", "elif False:", DRIVER),
    "more data, no longer update": (
        "min(max(1.0, replies[client].examples / usual), LARGER)",
        "1.0",
        "tests/driver tests/honest",
    ),
    "one client fewer": (
        "math.ceil(self.share * len(clients) - 1e-9)",
        "math.floor(self.share * len(clients))",
        DRIVER,
    ),
    "stop at the value": ("target) < self.value", "target) <= self.value", DRIVER),
    # files
    "no sync": (
        "file.flush()\n                os.fsync(file.fileno())\n            try:",
        "file.flush()\n            try:",
        "tests/runs",
    ),
    "unsorted manifest": ("manifest if manifest.as_bytes() == content else None", "manifest", "tests/runs"),
    "damaged tensors": (
        'if metadata.pop("sha256") != _checksum(tensors, metadata):',
        'if not metadata.pop("sha256"):',
        "tests/runs",
    ),
    "rows after the checkpoint": ("content = content[: listed.size if listed else 0]", "pass", "tests/runs"),
    "keys readable by others": ("mode=0o600", "mode=0o644", "tests/runs tests/erasure"),
    # documents and the desk
    "another key signs": ("ours = signer == id_of(public)", "ours = True", "tests/test_signing.py"),
    "expired requests": (
        "at < request.expires, Refusal.EXPIRED",
        "True, Refusal.EXPIRED",
        "tests/test_signing.py",
    ),
    "clocks ahead": ("at >= request.issued - CLOCK_SKEW", "True", "tests/test_signing.py"),
    "a moved ledger entry": ('or body["previous"] != (last.sha256 if last else GENESIS)', "", ERASURE),
    "a shortened ledger": ("head_at(self._entries, length) == head", "True", ERASURE),
    "purge before installation": (
        'if case.state is RequestState.CERTIFIED and case.last("installed") is None:',
        "if False:",
        ERASURE,
    ),
    "files survive a purge": ("_delete(place)\n        _delete_earlier", "_delete_earlier", ERASURE),
    # evidence and data
    "alarms need no correction": ("MINIMUM = 600", "MINIMUM = 6", "tests/evidence"),
    "pools that overlap": ("if int(times.max()) > 1:", "if False:", "tests/data"),
}


def place_of(text: str) -> Path:
    """Return the only source file that holds a text."""
    found = [path for path in sorted((ROOT / "src").rglob("*.py")) if text in path.read_text()]
    counts = [path.read_text().count(text) for path in found]
    if counts != [1]:
        raise SystemExit(f"{text!r} occurs {sum(counts)} times in {[str(path) for path in found]}")
    return found[0].relative_to(ROOT)


def caught(text: str, wrong: str, tests: str, copy: Path) -> bool:
    """Report whether any of the tests fails with the fault."""
    place = place_of(text)
    right = (ROOT / place).read_text()
    (copy / place).write_text(right.replace(text, wrong))
    environment = {**os.environ, "PYTHONPATH": str(copy / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests.split()]
    try:
        return (
            subprocess.run(command, cwd=copy, env=environment, capture_output=True, check=False).returncode
            == 1
        )
    finally:
        (copy / place).write_text(right)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="a part of the names")
    chosen = {name: fault for name, fault in FAULTS.items() if parser.parse_args().only in name}
    for text, _, _ in chosen.values():
        place_of(text)
    missed = []
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for name in ("src", "tests", "pyproject.toml", "scripts", "examples", "docs", "experiments"):
            source = ROOT / name
            (shutil.copytree if source.is_dir() else shutil.copy)(source, copy / name)
        for name, fault in chosen.items():
            began = time.monotonic()
            found = caught(*fault, copy)
            missed += [] if found else [name]
            print(f"{'caught' if found else 'MISSED'}  {time.monotonic() - began:4.0f} s  {name}", flush=True)
    print(f"{len(chosen) - len(missed)} of {len(chosen)} caught")
    if missed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
