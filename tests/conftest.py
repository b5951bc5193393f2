from __future__ import annotations

import pytest


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Threads of several test processes wait for each other, and forked children must not inherit a pool."""
    import torch  # not at the top: the process that only distributes tests does without it

    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory):
    from support.chromium import Browser

    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()
