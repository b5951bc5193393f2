"""What people look at: progress, tables and figures; tables and figures are made from run folders alone."""

from .html import write_report
from .markdown_page import page
from .progress import Display
from .tables import markdown, shown, stages, table, verdict

__all__ = [
    "Display",
    "markdown",
    "page",
    "shown",
    "stages",
    "table",
    "verdict",
    "write_report",
]
