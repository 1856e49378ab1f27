"""The stored random networks on which the stated ranges were judged: what was counted, and that it is stated now."""

import json
import sys
from pathlib import Path

import pytest

import normscope as ns

ROOT = Path(__file__).parents[2]
STORED = json.loads((ROOT / "benchmarks" / "results" / "calibration.json").read_text(encoding="utf-8"))
ROWS = STORED["rows"]


@pytest.fixture(scope="module")
def calibration():
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        import calibration

        yield calibration
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))


def test_ranges_hold_what_was_held_out():
    """Not the draw that they were fitted on; at most one of 25 outside."""
    assert STORED["draw"] == 2
    answered = [row for row in ROWS if not row["refused"]]
    assert len(answered) >= 60
    assert STORED["outside"] == sum(not row["inside"] for row in answered) <= len(answered) / 25
    for row in answered:
        low, high = row["range"]
        assert high <= 3 * low
        assert row["inside"] == (low <= row["ratio"] <= high)


@pytest.mark.parametrize("row", ROWS[::12], ids=lambda row: str(row["index"]))
def test_the_rows_are_what_is_predicted_now(calibration, row):
    assert row.items() >= calibration.drawn(STORED["draw"], row["index"]).items()
    shape = calibration.shape_of(row)
    found = [
        ns.predict(calibration.built(row, seed), shape, row["loss"], row["batch"], stats=row["stats"])
        for seed in range(calibration.SEEDS)
    ]
    assert [each.lambda_max for each in found] == pytest.approx(row["predicted"], rel=1e-4)
    assert list(found[-1].calibrated_range) == row["range"]
    assert bool(found[-1].refusal) == row["refused"]
