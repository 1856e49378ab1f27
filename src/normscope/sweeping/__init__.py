"""Sweeps: train hundreds of networks at once, resumable, on this machine or on a Ray cluster; phase diagrams."""

from normscope.sweeping.boundary import Distance, Edge
from normscope.sweeping.checks import PlanError
from normscope.sweeping.diagram import PhaseDiagram, stored_lines
from normscope.sweeping.evidence_lines import measured_line, predicted_line
from normscope.sweeping.journal import Journal
from normscope.sweeping.journal_file import JournalError
from normscope.sweeping.outcome import Outcome
from normscope.sweeping.plan import Cell, Plan, grid
from normscope.sweeping.running import sweep

__all__ = [
    "Cell",
    "Distance",
    "Edge",
    "Journal",
    "JournalError",
    "Outcome",
    "PhaseDiagram",
    "Plan",
    "PlanError",
    "grid",
    "measured_line",
    "predicted_line",
    "stored_lines",
    "sweep",
]
