"""Tables, figures and reports, made from run folders alone."""

from .conclusions import verdict
from .html import write_report
from .markdown_page import write_markdown_page
from .runs import Collection, Run, collect, read_run
from .tables import comparison_tables, markdown, round_table, stage_table

__all__ = [
    "Collection",
    "Run",
    "collect",
    "comparison_tables",
    "markdown",
    "read_run",
    "round_table",
    "stage_table",
    "verdict",
    "write_markdown_page",
    "write_report",
]
