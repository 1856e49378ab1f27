"""The sources' figures and claims: the runs behind them, the rules, and the verdicts from stored curves."""

from normscope.papers.entry import (
    VERDICTS,
    Entry,
    Heat,
    Judged,
    Line,
    Panel,
    Part,
    Runs,
    Statement,
    judge,
    stored,
)
from normscope.papers.experiment import Experiment, Place, Run
from normscope.papers.registry import all_entries, all_experiments
from normscope.papers.running import reproduce
from normscope.papers.store import Store

__all__ = [
    "VERDICTS",
    "Entry",
    "Experiment",
    "Heat",
    "Judged",
    "Line",
    "Panel",
    "Part",
    "Place",
    "Run",
    "Runs",
    "Statement",
    "Store",
    "all_entries",
    "all_experiments",
    "judge",
    "reproduce",
    "stored",
]
