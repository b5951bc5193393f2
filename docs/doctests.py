"""Shows the examples in docstrings as code: Markdown would take ``>>>`` for quotations."""

from __future__ import annotations

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"((?:^>>> .*\n(?:(?!\s*$|>>> ).*\n?)*)+)", re.MULTILINE)


class Doctests(griffe.Extension):
    """Puts a fence around each example."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring and ">>> " in obj.docstring.value:
            text = f"{obj.docstring.value}\n"
            obj.docstring.value = EXAMPLE.sub(lambda found: f"```pycon\n{found[1].rstrip()}\n```\n", text)
