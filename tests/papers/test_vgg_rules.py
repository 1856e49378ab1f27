"""The rules for VGG on made-up runs: a world as the paper has it reproduces everything, the opposite one little."""

import numpy as np
import pytest

from normscope.papers import Store, all_entries, all_experiments, judge
from normscope.papers.experiment import Run
from normscope.report.sections.claims import claim_charts

STEPS = list(range(0, 15_000, 100))
# How rough the landscape is, how soon the network learns, how much its moments move: as the paper has it.
ROUGH = {"none": 4.0, "batch": 1.0, "noisy": 1.1, "l1": 1.0, "l2": 1.1, "linf": 1.2, "noise": 4.0}
SLOW = {"none": 4000.0, "batch": 1000.0, "noisy": 1200.0, "l1": 900.0, "l2": 1000.0, "linf": 1100.0, "noise": 1e9}
MOVES = {"none": 0.05, "batch": 0.03, "noisy": 1 / 3, "l1": 0.1, "l2": 0.1, "linf": 0.1, "noise": 1.0}
TEST = {"none": 0.80, "batch": 0.83, "none, augmented": 0.88, "batch, augmented": 0.92}
ENTRIES = ("fig-1", "fig-2", "fig-4", "fig-6", "fig-10", "fig-11", "fig-14", "vgg-loss", "vgg-rates")
OPPOSITE = {
    "none": "batch",
    "batch": "none",
    "noisy": "noise",
    "noise": "batch",
    "l1": "none",
    "l2": "none",
    "linf": "none",
}


def _curves(cell, kind, seed, lr):
    rng = np.random.default_rng(seed)
    t = np.array(STEPS)
    rough, slow = ROUGH[kind], SLOW[kind]
    learned = 1 - np.exp(-t / slow) if kind != "noise" else 0 * t
    accuracy = 0.1 + (0.899 if lr < 0.5 or kind != "none" else 0.5) * learned
    loss = 2.3 * np.exp(-t / slow) + 1e-3
    band = rough * (1 + 0.1 * rng.random(len(t)))
    beta = 2 / lr * (3.0 if kind == "none" else 1.1) * np.ones(len(t))
    moves = [MOVES[kind]] * len(t)
    moments = {"mean_change": moves, "variance_change": moves, "mean_drift": moves, "variance_drift": moves}
    histogram = [{"step": 0, "edges": [-1.0, 1.0], "counts": [1, 2, 1]}]
    ended = TEST.get(cell, 0.5) + 0.001 * rng.standard_normal()
    seen = {0: 4.3, 5_000: 1.36, 15_000: 0.63}
    return {
        "diverged_at": None,
        "step": STEPS,
        "lr": lr,
        "loss": list(loss),
        "loss_min": list(loss),
        "loss_max": list(loss + band),
        "grad_norm": [1.0] * len(t),
        "change_max": [10 * rough] * len(t),
        "beta": list(beta),
        "factors": [0.5, 1.0, 2.0, 4.0],
        "change": [[rough, 2 * rough, 4 * rough, 10 * rough]] * len(t),
        "shift": {"5": [1.0] * len(t), "10": [1.0] * len(t)},
        "cosine": {n: [0.5 if kind == "none" else 0.3] * len(t) for n in ("5", "10")},
        "moments": dict.fromkeys(("2", "9", "13"), moments),
        "histograms": dict.fromkeys(("3", "11"), histogram),
        "accuracy": list(accuracy),
        "evaluated": list(seen),
        "test_accuracy": [0.1, 0.5, ended],
        "train_accuracy": [0.1, 0.9, 0.999 if kind != "noise" else 0.1],
        "penalty": [all_of - float(np.interp(step, t, loss)) for step, all_of in seen.items()],
    }


def _world(folder, kinds):
    """Three seeds of every cell; `kinds` says as which normalizer each behaves."""
    store, vgg, rates = Store(folder / "reproduce"), all_experiments()["vgg"], all_experiments()["vgg-rates"]
    for seed in range(3):
        for cell, changed in vgg.cells.items():
            kind, lr = kinds(changed["norm"]), changed.get("lr", 0.1)
            name = cell.replace(changed["norm"], kind, 1)
            store.add(vgg, "paper", Run(cell, seed, _curves(name, kind, seed, lr), 0.0, {}))
        for cell in rates.cells:
            lrs = rates.settings["paper"]["rates"]
            edge = 0.5 if kinds(cell) == "none" else 2.0
            shares = [(0.5 if lr == 0.1 else 0.4) if lr <= edge else 0.1 for lr in lrs]
            curves = {"rate": lrs, "accuracy": shares, "diverged_at": [None] * len(lrs)}
            store.add(rates, "paper", Run(cell, seed, curves, 0.0, {}))
    return store


def _verdicts(store):
    judged = [one for name in ENTRIES for one in judge(all_entries()[name], store)]
    return {one.name: one.verdict for one in judged if not one.statement.key.startswith("dln")}


def test_the_papers_world_reproduces_everything(tmp_path):
    store = _world(tmp_path, lambda norm: norm)
    found = _verdicts(store)
    assert {name: verdict for name, verdict in found.items() if verdict != "reproduced"} == {}
    drawn = claim_charts([all_entries()[name] for name in ENTRIES], store)
    assert set(drawn) == set(ENTRIES)


def test_the_opposite_world_reproduces_next_to_nothing(tmp_path):
    found = _verdicts(_world(tmp_path, OPPOSITE.__getitem__))
    # What both worlds share: losses and accuracies at the end; there l_p and BatchNorm are both as bad as none.
    shared = {"fig-1/plateau", "vgg-loss/not-alone", "vgg-loss/with-l2", "vgg-rates/best"}
    shared |= {"fig-11/comparable", "fig-11/more-shift"}
    assert {name for name, verdict in found.items() if verdict == "reproduced"} <= shared


@pytest.mark.parametrize("cell", ["none", "batch"])
def test_two_seeds_are_not_enough(cell, tmp_path):
    store, vgg = Store(tmp_path / "reproduce"), all_experiments()["vgg"]
    for seed in range(2):
        store.add(vgg, "paper", Run(cell, seed, _curves(cell, cell, seed, 0.1), 0.0, {}))
    assert set(_verdicts(store).values()) == {"not yet run"}


def test_two_networks_that_never_arrive_are_equally_fast(tmp_path):
    store, vgg = Store(tmp_path / "reproduce"), all_experiments()["vgg"]
    for seed in range(3):
        for cell in ("none", "batch"):
            curves = _curves(cell, cell, seed, 0.1) | {"accuracy": [0.1] * len(STEPS)}
            store.add(vgg, "paper", Run(cell, seed, curves, 0.0, {}))
    assert _verdicts(store)["fig-1/faster"] == "not reproduced"
