"""A federation on Flower: the same driver in a ServerApp, the same client code in a ClientApp.

Nothing else in the package imports Flower.
"""

import logging
from importlib.metadata import PackageNotFoundError, version

from ...core import FedUnlearnError

SUPPORTED = "1.41"
"""The series of Flower that the tests run; Flower changes its interfaces often."""

try:
    _found = version("flwr")
except PackageNotFoundError:
    raise FedUnlearnError(
        "Flower is not installed: pip install 'fedunlearn[flower]'", code="package"
    ) from None
if not _found.startswith(f"{SUPPORTED}."):
    raise FedUnlearnError(
        f"Flower {_found} is installed, and this version of fedunlearn works with {SUPPORTED}: "
        f"pip install 'flwr=={SUPPORTED}.*'",
        code="package",
    )

from .client import Site, introduce, require_request, serve  # noqa: E402
from .federation import ExistingApp, FlowerFederation, Patience, connect, connect_existing  # noqa: E402
from .local import LocalGrid  # noqa: E402
from .recording import Recording  # noqa: E402

# What is logged about rounds goes where Flower writes: ``flwr log RUN --show`` prints it.
logging.getLogger("fedunlearn").parent = logging.getLogger("flwr")
logging.getLogger("fedunlearn").setLevel(logging.INFO)

__all__ = [
    "ExistingApp",
    "FlowerFederation",
    "LocalGrid",
    "Patience",
    "Recording",
    "Site",
    "connect",
    "connect_existing",
    "introduce",
    "require_request",
    "serve",
]
