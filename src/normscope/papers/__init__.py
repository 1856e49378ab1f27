"""The sources' figures and claims: the runs behind them, the rules, and the verdicts from stored curves."""

from normscope.papers.entry import (
    VERDICTS,
    Curve,
    Entry,
    HeatMap,
    JudgedStatement,
    Part,
    Picture,
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
    "Curve",
    "Entry",
    "Experiment",
    "HeatMap",
    "JudgedStatement",
    "Part",
    "Picture",
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
