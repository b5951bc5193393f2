from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--scramble", action="store_true", help="replace every sentence by its code")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("scramble"):
        from support.codes import scramble

        scramble()
        # Filters of tests go by sentences.
        config.addinivalue_line("filterwarnings", "ignore::fedunlearn.FedUnlearnWarning")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without sentences, tests of the wording have nothing to look at."""
    if config.getoption("scramble"):
        wording = [item for item in items if item.get_closest_marker("wording")]
        config.hook.pytest_deselected(items=wording)
        items[:] = [item for item in items if item not in wording]


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
