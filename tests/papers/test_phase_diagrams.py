"""The rules for the mean-field paper on made-up diagrams, and the stored diagram read back as it was swept."""

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from normscope.papers import Store, all_entries, all_experiments, judge
from normscope.papers.entry import stored
from normscope.papers.experiment import Run
from normscope.papers.experiments.phases import PHASES, plan_of
from normscope.papers.phase_diagrams import diagram
from normscope.report.sections.claims import claim_charts
from normscope.sweeping import PhaseDiagram, Plan, stored_lines

ROOT = Path(__file__).parents[2]
SWEPT = ROOT / "results/phase-mnist-mlp.json"
GAMMAS = [0.1, 0.2, 0.4, 0.7, 1.0, 1.6, 3.0, 5.0]
RATES = [float(rate) for rate in 10 ** np.arange(-4, 1, 0.05)]


def _eta(gamma):
    """A boundary as the corrected theory has it at width 1000, momentum 0.9."""
    return 3.8 / (1000 * gamma**2 / (2 * math.pi) + 1)


def _diagram(boundary, test_loss):
    """A grid of rates that diverges from `boundary` on."""
    rows = {"value": GAMMAS, "rate": [RATES] * len(GAMMAS)}
    gone = [[3 if rate > boundary(gamma) else None for rate in RATES] for gamma in GAMMAS]
    loss = [
        [math.nan if dead else test_loss(gamma, rate) for rate, dead in zip(RATES, row, strict=True)]
        for gamma, row in zip(GAMMAS, gone, strict=True)
    ]
    return (
        rows | {"diverged_at": gone, "rose_at": gone} | dict.fromkeys(("first_loss", "train_loss", "test_loss"), loss)
    )


def _world(folder, boundary, test_loss, printed):
    store = Store(folder / "reproduce")
    for data in ("mnist", "cifar10"):
        for seed in range(3):
            for cell in ("mlp", "cnn"):
                eta_stars = {
                    "value": GAMMAS,
                    "printed": [printed(gamma) for gamma in GAMMAS],
                    "corrected": [_eta(gamma) for gamma in GAMMAS],
                    "measured": [_eta(gamma) for gamma in GAMMAS],
                }
                store.add(PHASES[data], "paper", Run(cell, seed, _diagram(boundary, test_loss), 0.0, {}))
                store.add(all_experiments()[f"eta-stars-{data}"], "paper", Run(cell, seed, eta_stars, 0.0, {}))
    return store


def _modes(store, mean, left, convolutional=2.0):
    """Made-up modes beside a world's diagrams: a data mode on top on CIFAR-10 alone."""
    for data, data_mode in (("mnist", 2.0), ("cifar10", 0.5)):
        curves = {
            "value": GAMMAS,
            "mean_mode": [mean * _eta(gamma) for gamma in GAMMAS],
            "data_mode": [data_mode * mean * _eta(gamma) for gamma in GAMMAS],
            "measured_at": [1.0],
            "measured": [0.5 * _eta(1.0)],
            "several": [0.6 * _eta(1.0)],
            "left": [left * _eta(1.0)],
            "highest": [2.0],
        }
        for seed in range(3):
            store.add(all_experiments()[f"modes-{data}"], "paper", Run("mlp", seed, curves, 0.0, {}))
            alike = curves | {"data_mode": [convolutional * mean for mean in curves["mean_mode"]]}
            store.add(all_experiments()[f"modes-{data}"], "paper", Run("cnn", seed, alike, 0.0, {}))
    return {one.statement.key: one.verdict for one in judge(all_entries()["mf-modes"], store)}


@pytest.mark.parametrize(
    ("mean", "left", "wrong"),
    [(1.0, 1.0, {}), (1.8, 1.8, {"boundary": "not reproduced"}), (1.0, 0.6, {"left": "not reproduced"})],
)
def test_the_modes_are_judged_by_the_boundary_and_by_what_is_left(tmp_path, mean, left, wrong):
    store = _world(tmp_path, _eta, _best_at(0.5), _eta)
    expected = dict.fromkeys(("top", "convolutional", "boundary", "survives", "left"), "reproduced") | wrong
    assert _modes(store, mean, left) == expected


def test_a_data_mode_on_top_of_the_convolutional_network_is_seen(tmp_path):
    store = _world(tmp_path, _eta, _best_at(0.5), _eta)
    assert _modes(store, 1.0, 1.0, convolutional=0.5)["convolutional"] == "not reproduced"


def _affine(folder, trained, held):
    """Made-up runs: distances of divergence from eta* by gamma, with gamma and beta trained and held."""
    store, ones = Store(folder / "affine"), np.ones(5)
    for data, cells in (("mnist", ("cnn", "mlp")), ("cifar10", ("cnn",))):
        curves = {"gamma": [0.1, 0.23, 0.52, 1.2, 3.3]}
        for start, apart in (("", trained), ("held_", held)):
            row = {
                "predicted": ones,
                "measured": ones,
                "diverges": 10 ** np.array(apart),
                "left": 10 ** np.array(apart),
            }
            curves |= {start + name: [float(number) for number in numbers] for name, numbers in row.items()}
        for cell in cells:
            for seed in range(3):
                store.add(all_experiments()[f"affine-{data}"], "paper", Run(cell, seed, curves, 0.0, {}))
    return {one.statement.key: one.verdict for one in judge(all_entries()["mf-affine"], store)}


def test_gamma_and_beta_are_judged_by_what_holding_them_changes(tmp_path):
    moved, still = [-0.2, 0.0, 0.4, 0.4, 0.3], [0.0, 0.05, 0.05, 0.1, 0.1]
    assert set(_affine(tmp_path / "theirs", moved, still).values()) == {"reproduced"}
    found = _affine(tmp_path / "not", moved, moved)
    assert set(found.values()) == {"not reproduced", "reproduced"}
    assert [key for key, verdict in found.items() if verdict == "reproduced"] == ["little"]


def test_the_table_of_distances_has_every_panel_and_line(tmp_path):
    """A boundary 0.3 decades above theory that is right: +0.3 for divergence in every range of gamma."""
    store = _world(tmp_path, lambda gamma: 10**0.3 * _eta(gamma), _best_at(0.5), _eta)
    entry = all_entries()["mf-distances"]
    head, *rows = entry.table(stored(entry, store, "paper"))
    assert len(rows) == 4 * 3 * 2
    for row in rows:
        found = dict(zip(head, row, strict=True))
        assert float(found["median size"]) == pytest.approx(0.3, abs=0.04)
        assert float(found["gamma < 0.3"]) == pytest.approx(0.3, abs=0.04)
        assert found["n"] == "3"
    _modes(store, 1.0, 1.0)
    assert len(entry.table(stored(entry, store, "paper"))) == 1 + 4 * 4 * 2
    fewer = stored(entry, store, "paper")
    for name, cell in fewer.curves:
        if name.startswith("modes"):
            del fewer.curves[name, cell][2]
    # n is of the line and of the training both.
    assert [row[-1] for row in entry.table(fewer)[1:9]] == ["3"] * 6 + ["2"] * 2
    assert entry.table(stored(entry, Store(tmp_path / "empty"), "paper")) == []


ENTRIES = ("mf-fig-2-mlp-mnist", "mf-fig-2-cnn-mnist", "mf-fig-2-mlp-cifar10", "mf-fig-2-cnn-cifar10")


def _verdicts(store, names=ENTRIES):
    return {one.name: one.verdict for name in names for one in judge(all_entries()[name], store)}


def _best_at(share):
    return lambda gamma, rate: gamma * (1 + math.log10(rate / (share * _eta(gamma))) ** 2)


def test_the_papers_world_reproduces_everything(tmp_path):
    store = _world(tmp_path, _eta, _best_at(0.5), lambda gamma: 1.5 * _eta(gamma))
    assert set(_verdicts(store).values()) == {"reproduced"}
    assert set(claim_charts([all_entries()[name] for name in ENTRIES], store)) == set(ENTRIES)


def test_the_opposite_world_reproduces_nothing(tmp_path):
    """Divergence at a rate that does not depend on gamma, best rates far below, printed theory as good as ours."""
    losses = _best_at(0.01)
    store = _world(tmp_path, lambda gamma: 1e-3, lambda gamma, rate: losses(gamma, rate) / gamma**2, _eta)
    found = _verdicts(store)
    # The rung that is measured has the corrected theory's very numbers here.
    assert {name for name, verdict in found.items() if verdict == "reproduced"} == {f"{e}/measured" for e in ENTRIES}


@pytest.mark.parametrize(
    ("factor", "verdict"), [(1.0, "reproduced"), (10**0.15, "reproduced in part"), (10**0.3, "not reproduced")]
)
def test_a_boundary_elsewhere_flips_the_verdict(factor, verdict, tmp_path):
    store = _world(tmp_path, lambda gamma: factor * _eta(gamma), _best_at(0.5), _eta)
    assert _verdicts(store, ENTRIES[:1])["mf-fig-2-mlp-mnist/corrected"] == verdict


def test_a_printed_line_elsewhere_flips_its_verdict(tmp_path):
    """Four times the boundary is more than half a decade; the corrected line is then the closer one."""
    found = _verdicts(_world(tmp_path, _eta, _best_at(0.1), lambda gamma: 4 * _eta(gamma)), ENTRIES[:1])
    assert found["mf-fig-2-mlp-mnist/three-orders"] == "reproduced in part"
    assert found["mf-fig-2-mlp-mnist/closer"] == "reproduced"
    assert found["mf-fig-2-mlp-mnist/best-rate"] == "not reproduced"


def test_a_seed_that_diverges_earlier_moves_the_boundary(tmp_path):
    """White is where at least one run exploded."""
    store = _world(tmp_path, _eta, _best_at(0.5), _eta)
    early = _diagram(lambda gamma: _eta(gamma) / 4, _best_at(0.5))
    store.add(PHASES["mnist"], "paper", Run("mlp", 3, early, 0.0, {}))
    at = diagram(stored(all_entries()["mf-fig-2-mlp-mnist"], store, "paper"), "mnist", "mlp")
    assert at.distance("corrected").median == pytest.approx(-math.log10(4), abs=0.03)


def test_the_plan_of_a_seed_is_the_stored_sweeps():
    plan = plan_of(PHASES["mnist"].plan("mlp", "paper"), 0)
    assert replace(plan, seeds=(0, 1, 2, 3, 4)).hash == Plan.from_toml(ROOT / "examples/sweep_mnist.toml").hash
    vanilla = plan_of(PHASES["mnist"].plan("vanilla", "paper"), 0)
    assert (vanilla.axis, vanilla.arguments["norm"], len(vanilla.cells())) == ("sigma_w", "none", 210)
    cnn = plan_of(PHASES["cifar10"].plan("cnn", "paper"), 2)
    assert (cnn.seeds, len(cnn.cells()), cnn.arguments["size"]) == ((2,), 420, 32)


def test_the_stored_diagram_is_read_as_it_was_swept():
    swept = PhaseDiagram.load(SWEPT)
    at = diagram(
        stored(all_entries()["mf-fig-2-mlp-mnist"], Store(ROOT / "results/reproduce"), "paper"), "mnist", "mlp"
    )
    assert at.seeds == [0, 1, 2, 3, 4]
    for mine, theirs in zip(at.edges, swept.boundary(), strict=True):
        assert mine.eta == pytest.approx(theirs.eta, rel=1e-5)
        assert mine.rises == pytest.approx(theirs.rises, rel=1e-5)
        assert mine.best == pytest.approx(theirs.best, rel=1e-5)
    # The sweep's lines are those of its first seed; the entry's are medians over five.
    for name, line in (("measured", "measured"), ("corrected", "predicted")):
        said = swept.agreement(stored_lines(SWEPT))[line]
        assert at.distance(name).median == pytest.approx(said.median, abs=0.02)


def test_a_changed_sweep_flips_the_verdict(tmp_path):
    folder = tmp_path / "results"
    shutil.copytree(ROOT / "results/reproduce", folder / "reproduce", ignore=shutil.ignore_patterns("figures"))
    content = json.loads(SWEPT.read_text())
    name = "mf-fig-2-mlp-mnist/closer"
    (folder / SWEPT.name).write_text(json.dumps(content))
    assert _verdicts(Store(folder / "reproduce"), ENTRIES[:1])[name] == "reproduced"
    for cell in content["cells"]:
        cell["diverged_at"] = 5 if cell["lr"] > 1e-3 else None
    (folder / SWEPT.name).write_text(json.dumps(content))
    assert _verdicts(Store(folder / "reproduce"), ENTRIES[:1])[name] != "reproduced"
