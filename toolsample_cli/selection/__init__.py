"""Which groups are worth training on and how much each task is wanted again: one pure rule a method.

`METHODS` is the table behind `filter --method`; `decide` applies one of them to a frame of statistics.
"""

from __future__ import annotations

from toolsample_cli.selection.base import Method, Verdict
from toolsample_cli.selection.decide import METHODS, decide, unvisited_importance
from toolsample_cli.selection.standing import Standing

__all__ = ["METHODS", "Method", "Standing", "Verdict", "decide", "unvisited_importance"]
