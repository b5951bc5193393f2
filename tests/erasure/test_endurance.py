"""R14: hundreds of requests in one process: neither memory nor open files grow, and no step becomes slow."""

from __future__ import annotations

import gc
import os
import time
from pathlib import Path

import pytest
from support.desks import TARGET, document, holdings, make, network, opened, production, repeatable
from support.erasures import public_key

from fedunlearn.core.hashes import module_hash
from fedunlearn.engines import Sequential
from fedunlearn.erasure import Desk, RequestState, erase, purge, receive
from fedunlearn.erasure.ledger import Ledger


def resident() -> int:
    """Bytes of memory that this process holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def files() -> int:
    return len(os.listdir("/proc/self/fd"))


def crowded(folder: Path, clients: list[str]) -> Desk:
    """A desk with so many clients, whose answers take two rounds."""
    make(folder, clients=tuple(clients))
    text = (folder / "desk.toml").read_text().replace("rounds = 3", "rounds = 1")
    (folder / "desk.toml").write_text(text)
    for client in clients:
        (folder / "clients" / f"{client}.pub").write_bytes(public_key(client))
    return opened(folder)


def answered(desk: Desk, client: str) -> RequestState:
    """A client comes, asks to be forgotten and leaves; whatever the end, everything is purged."""
    held = {**holdings()}
    held[client] = held.pop(TARGET)
    served = module_hash(production(desk))
    case = receive(desk, document(client, 0, served), served)
    case = erase(desk, case.id, Sequential(network(), held), production(desk))
    return purge(desk, case.id, withdrawn=True).state


def endure(folder: Path, count: int, warm: int) -> tuple[float, int, float]:
    """Growth of memory in percent and of open files after so many requests, and of the time of an entry."""
    clients = [f"ward-{number}" for number in range(count)]
    desk = crowded(folder, clients)
    before, opens, seconds = 0, 0, list[float]()
    whole = Ledger.append

    def timed(ledger: Ledger, *told, **fields):
        began = time.thread_time()
        entry = whole(ledger, *told, **fields)
        seconds.append(time.thread_time() - began)
        return entry

    with repeatable(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(Ledger, "append", timed)
        for number, client in enumerate(clients):
            if number == warm:
                gc.collect()
                before, opens = resident(), files()
            assert answered(desk, client) is RequestState.PURGED
    gc.collect()
    part = len(seconds) // 5
    slower = sorted(seconds[-part:])[part // 2] / sorted(seconds[:part])[part // 2]
    growth = 100 * (resident() / before - 1)
    print(
        f"R14: {count} requests in one process, {len(seconds):,} entries: memory {growth:+.1f} %, "
        f"open files {files() - opens:+d}, an entry takes {slower:.1f} times as long"
    )
    return growth, files() - opens, slower


def test_requests_leave_no_open_files(tmp_path):
    assert endure(tmp_path / "desk", 6, 3)[1] == 0


@pytest.mark.chaos
def test_hundreds_of_requests_leave_nothing_in_memory(tmp_path):
    growth, opens, slower = endure(tmp_path / "desk", 500, 50)
    assert growth < 5
    assert opens == 0
    assert slower < 10
