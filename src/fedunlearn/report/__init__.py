"""What people look at: progress, tables and figures; tables and figures are made from run folders alone."""

from .html import write_report
from .page import page, verdict
from .progress import Display
from .tables import markdown, stages, table

__all__ = [
    "Display",
    "markdown",
    "page",
    "stages",
    "table",
    "verdict",
    "write_report",
]
