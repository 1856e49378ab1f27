"""The attacks on files and with command lines, in small."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import command_lines
import files


@pytest.mark.slow
@pytest.mark.parametrize(("attack", "count"), [(files.attack, 300), (command_lines.attack, 120)])
def test_no_traceback_no_import_no_hang(attack, count, tmp_path):
    held = attack(count, 3, tmp_path)
    assert held.failures == []
    assert held.counts["ok"] > 5
    assert held.counts["refused"] > 20
