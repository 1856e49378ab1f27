"""Finished rehearsals survive a kill, and are used for the same question only."""

import json
import os
import signal
import subprocess
import sys

import pytest
import torch
from trainings import data, setup

import normscope as ns

SCRIPT = """
import os, signal, sys
sys.path.insert(0, {tests!r})
from trainings import setup
import normscope as ns

def progress(used, most):
    print("one", flush=True)
    if used > 15:
        os.kill(os.getpid(), signal.SIGKILL)

ns.tune(setup(), steps=500, store={store!r}, progress=progress)
"""


def test_a_killed_tuning_goes_on_where_it_stopped(tmp_path):
    store = tmp_path / "rehearsals.jsonl"
    code = SCRIPT.format(tests=os.path.dirname(__file__), store=str(store))
    killed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert killed.returncode == -signal.SIGKILL
    before = killed.stdout.count("one")
    assert 1 <= before == len(store.read_text().splitlines())
    with store.open("a") as file:
        file.write('{"kind": "rehearsal", "schema": 1, "key": "half')
    trained = []
    resumed = ns.tune(setup(), steps=500, store=store, progress=lambda used, most: trained.append(used))
    whole = ns.tune(setup(), steps=500)
    assert resumed.cost.stored == before < len(whole.rehearsals)
    assert (resumed.lr, resumed.lr_range, resumed.reason) == (whole.lr, whole.lr_range, whole.reason)
    assert [each.losses for each in resumed.rehearsals] == [each.losses for each in whole.rehearsals]
    again = ns.tune(setup(), steps=500, store=store)
    assert again.cost.stored == len(whole.rehearsals)
    assert len(store.read_text().splitlines()) == len(whole.rehearsals) + 1


@pytest.mark.parametrize(
    "changed",
    [
        {"lr": 0.1, "norm": False},
        {"clip": 1.0},
        {"accumulate": 2},
        {"kind": torch.optim.Adam},
        {"batches": [data(16)]},
        {"loss_fn": lambda outputs, y: outputs.square().mean()},
        {"autocast": torch.bfloat16},
    ],
)
def test_another_question_trains_anew(tmp_path, changed):
    store = tmp_path / "rehearsals.jsonl"
    ns.tune(setup(), steps=500, store=store)
    assert ns.tune(setup(), steps=500, store=store).cost.stored > 0
    assert ns.tune(setup(**changed), steps=500, store=store).cost.stored == 0


def test_moved_weights_train_anew(tmp_path):
    store, described = tmp_path / "rehearsals.jsonl", setup()
    ns.tune(described, steps=500, store=store)
    with torch.no_grad():
        described.model[0].weight[0, 0] += 1e-6
    assert ns.tune(described, steps=500, store=store).cost.stored == 0


def test_a_store_that_cannot_be_written_is_refused_at_once(tmp_path):
    with pytest.raises(ValueError, match="is a folder"):
        ns.tune(setup(), steps=500, store=tmp_path)
    with pytest.raises(ValueError, match="does not exist"):
        ns.tune(setup(), steps=500, store=tmp_path / "no" / "file.jsonl")


def test_divergence_is_stored_as_json(tmp_path):
    store = tmp_path / "rehearsals.jsonl"
    described = setup(norm=False, loss_fn=lambda outputs, y: outputs.square().square().sum())
    tuning = ns.tune(described, steps=500, store=store)
    assert any(each.diverged_at is not None for each in tuning.rehearsals)
    for line in store.read_text().splitlines():
        json.loads(line, parse_constant=pytest.fail)
    again = ns.tune(described, steps=500, store=store)
    assert [each.losses for each in again.rehearsals] == pytest.approx(
        [each.losses for each in tuning.rehearsals], nan_ok=True
    )
