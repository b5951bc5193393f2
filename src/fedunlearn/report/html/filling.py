"""Templates and what fills them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...core import FedUnlearnError


def rendered(template: str, page: Mapping[str, Any]) -> str:
    """A page as HTML; the template escapes everything that comes from files."""
    try:
        import jinja2
    except ImportError:
        raise FedUnlearnError("the HTML report needs jinja2: pip install 'fedunlearn[report]'") from None
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("fedunlearn.report.html"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    return environment.get_template(template).render(page)
