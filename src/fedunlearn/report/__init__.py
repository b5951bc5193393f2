"""What people look at: tables and figures, made from run folders alone."""

from .html import write_report
from .markdown_page import page
from .tables import markdown, shown, stages, table, verdict

__all__ = [
    "markdown",
    "page",
    "shown",
    "stages",
    "table",
    "verdict",
    "write_report",
]
