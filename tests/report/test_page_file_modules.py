"""Modules that a page loads: only those of the kind of result that it shows."""

import json
import subprocess
import sys

import pytest
from report_results import saved

from normscope.report.result_files import JOURNAL
from normscope.sweeping import running

CODE = """
import json, sys
from pathlib import Path
from normscope.report.result_files import sections_of
from normscope.report.page_file import write_report
write_report(sections_of([Path(sys.argv[1])]), sys.argv[2])
print(json.dumps(sorted(sys.modules)))
"""
OWN = """
import json, sys, torch
import normscope as ns
model = ns.models.MLP(6, 3, width=8, depth=3, norm="batch", seed=0)
found = ns.measure(model, ns.losses.half_mse, (torch.randn(16, 6), torch.randn(16, 3)))
found.report(sys.argv[2])
print(json.dumps(sorted(sys.modules)))
"""
ABOVE = ("normscope.sweeping", "normscope.papers", "normscope.monitor", "matplotlib", "pandas")


@pytest.mark.parametrize("code", [CODE, OWN], ids=["from its file", "by its method"])
def test_the_page_of_a_measurement_loads_no_other_room(code, tmp_path):
    saved(tmp_path)
    command = [sys.executable, "-c", code, str(tmp_path / "measurement.json"), str(tmp_path / "page.html")]
    loaded = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert [name for name in loaded if name.startswith(ABOVE)] == []
    assert "normscope.report.sections.predictions_and_measurements" in loaded


def test_the_journal_has_one_name():
    assert JOURNAL == running.JOURNAL
