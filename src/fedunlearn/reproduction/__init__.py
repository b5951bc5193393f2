"""The FedOSD paper (Pan et al., AAAI 2025): its numbers, its claims, and its tables beside ours."""

from .reproduce import beside, collected, draw, named, plan, titles, write_tables

__all__ = ["beside", "collected", "draw", "named", "plan", "titles", "write_tables"]
