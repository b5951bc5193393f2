"""What people look at: progress, tables and figures; tables and figures are made from run folders alone."""

from .comparison import comparison_markdown, comparison_table
from .html import write_report
from .page import page, verdict
from .progress import Display
from .tables import markdown, stages, table

__all__ = [
    "Display",
    "comparison_markdown",
    "comparison_table",
    "markdown",
    "page",
    "stages",
    "table",
    "verdict",
    "write_report",
]
