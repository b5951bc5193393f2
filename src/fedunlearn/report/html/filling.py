"""Templates and what fills them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from ...core import FedUnlearnError

SHARED = "fedunlearn.report.html"
"""The package whose templates and styles all pages share."""


def rendered(template: str, page: Mapping[str, Any], package: str = SHARED) -> str:
    """Return a page as HTML from a template of a package, which escapes everything that comes from files."""
    try:
        import jinja2 as _needed  # noqa: F401
    except ImportError:
        raise FedUnlearnError("pages need jinja2: pip install 'fedunlearn[report]'") from None
    return str(_environment(package).get_template(template).render(page))


@cache
def _environment(package: str) -> Any:
    """Keep the templates of a package that are compiled."""
    import jinja2

    return jinja2.Environment(
        loader=jinja2.ChoiceLoader([jinja2.PackageLoader(each) for each in (package, SHARED)]),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
