"""Templates and what fills them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from ...core import FedUnlearnError


def rendered(template: str, page: Mapping[str, Any]) -> str:
    """A page as HTML; the template escapes everything that comes from files."""
    try:
        import jinja2 as _needed  # noqa: F401
    except ImportError:
        raise FedUnlearnError("pages need jinja2: pip install 'fedunlearn[report]'") from None
    return str(_environment().get_template(template).render(page))


@cache
def _environment() -> Any:
    """Keeps the templates that it has compiled."""
    import jinja2

    return jinja2.Environment(
        loader=jinja2.PackageLoader("fedunlearn.report.html"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
