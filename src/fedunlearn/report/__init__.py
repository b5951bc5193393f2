"""Tables, figures and reports, made from run folders alone."""

from .audits import evidence_tables
from .conclusions import verdict
from .evidence import read_evidence
from .folders import collect, read_run
from .html import write_report
from .runs import Collection, Run
from .summary import LEGEND
from .tables import comparison_tables, markdown, round_table, stage_table

__all__ = [
    "LEGEND",
    "Collection",
    "Run",
    "collect",
    "comparison_tables",
    "evidence_tables",
    "markdown",
    "read_evidence",
    "read_run",
    "round_table",
    "stage_table",
    "verdict",
    "write_report",
]
