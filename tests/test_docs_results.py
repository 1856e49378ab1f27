"""docs/reference: tables of columns, verdicts and files agree with what results really hold."""

import json
import re
from pathlib import Path

import pytest
import torch

import normscope as ns
from normscope.monitor import JSONL, loss_course
from normscope.monitor.probes import activations, health
from normscope.sweeping import Plan

REFERENCE = Path(__file__).parent.parent / "docs/reference"
BATCH = torch.linspace(-1, 1, 96).sin().view(16, 6), torch.arange(16) % 3


def mlp():
    return ns.models.MLP(6, 3, width=8, depth=2, norm="batch", seed=0)


def rows(page, heading=None):
    """The cells of the table rows of a page, or of one of its sections."""
    text = (REFERENCE / f"{page}.md").read_text(encoding="utf-8")
    if heading is not None:
        text = re.split(r"^## ", text.split(f"\n## {heading}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]


def documented(heading):
    return {re.findall(r"`(\w+)`", cells[0])[0] for cells in rows("columns", heading)[2:]}


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    path = tmp_path_factory.mktemp("run") / "run.jsonl"
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    probes = ["critical", "landscape", "health", "activations", "shift", "curvature"]
    loss = ns.losses.cross_entropy
    with ns.Monitor(model, loss, every=1, measure=probes, budget=None, sinks=[JSONL(path)]) as monitor:
        for _ in range(2):
            optimizer.zero_grad()
            loss(model(BATCH[0]), BATCH[1]).backward()
            monitor.step(*BATCH, optimizer)
            optimizer.step()
    return monitor, path


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    arguments = {"d_in": 64, "width": 8, "depth": 2, "norm": "batch"}
    plan = Plan("MLP", "digits", learning_rates=(0.01,), epochs=1, data_options={"seed": 0}, arguments=arguments)
    return ns.sweep(plan, tmp_path_factory.mktemp("sweep"), device="cpu", quiet=True)


def tuned():
    model = mlp()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    return ns.tune(ns.Setup(model, ns.losses.cross_entropy, [BATCH] * 20, sgd, steps=400))


def results():
    """One small result of each kind that has a `save`."""
    model = mlp()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    return {
        "Prediction": ns.predict(mlp(), (6,), batch_size=16),
        "Measurement": ns.measure(mlp(), ns.losses.cross_entropy, BATCH, layers=True),
        "Spectrum": ns.curvature.spectrum(mlp(), ns.losses.cross_entropy, BATCH, starts=1, steps=4),
        "MeanMode": ns.curvature.mean_mode(mlp(), BATCH),
        "Bounds": ns.bounds.check(torch.nn.Linear(6, 4), torch.nn.BatchNorm1d(4), BATCH[0], lambda z: (z**2).sum()),
        "Tuning": tuned(),
        "Training": ns.train(model, ns.losses.cross_entropy, [BATCH] * 2, sgd),
    }


@pytest.fixture(scope="module")
def made():
    return results()


@pytest.mark.parametrize("name", ["Prediction", "Measurement", "Bounds", "Training", "Tuning"])
def test_columns_of_results(name, made):
    assert documented(f"{name}.frame()") == set(made[name].frame().columns)


def test_columns_of_tables(made, watched, swept):
    monitor, _ = watched
    assert documented("Bounds.summary()") == set(made["Bounds"].summary().columns)
    assert documented("Monitor.frame()") == set(monitor.frame().columns)
    assert documented("Monitor.layers()") == set(monitor.layers().columns)
    assert documented("PhaseDiagram.frame()") == set(swept.frame().columns)


def test_every_verdict_is_explained(watched, made):
    monitor, _ = watched
    headings = set(re.findall(r"^## (.+)$", (REFERENCE / "verdicts.md").read_text(), flags=re.MULTILINE))
    said = {verdict.about for verdict in (*monitor.verdicts, made["Measurement"].verdict(0.1))}
    assert said <= headings
    assert headings == {"Verdicts on claims"} | {
        *("learning rate", "step", "gradient", "beta", "critical rate", "statistics", "gamma", "depth", "loss"),
        *("activations", "covariate shift"),
    }


def test_every_formula_of_a_verdict_stands_under_its_heading(watched, made):
    monitor, _ = watched
    sections = dict(
        re.findall(r"^## (.+)\n((?:(?!## ).*\n)*)", (REFERENCE / "verdicts.md").read_text(), flags=re.MULTILINE)
    )
    for verdict in (*monitor.verdicts, made["Measurement"].verdict(0.1)):
        early = verdict.formula == "batches seen < 1/momentum"
        assert early or f"Printed as `{verdict.formula}`" in sections[verdict.about]


def test_thresholds_of_verdicts_are_those_of_the_code():
    text = (REFERENCE / "verdicts.md").read_text(encoding="utf-8")
    assert f"median mean gap <= {health.MEAN_GAP:g}" in text
    assert f"1/{health.VARIANCE_RATIO:g} to {health.VARIANCE_RATIO:g}" in text
    assert f"{100 * health.DEAD_SHARE:g} % or more" in text
    assert f"at most {health.DEAD:g} times" in text
    assert f"the rise is {loss_course.SHARE:g} of the fall or more, and above {loss_course.NOISES:g} times" in text
    assert f"or {loss_course.HALF:g} of a steady fall" in text
    assert f"1/{health.EXPLODED:g} to {health.EXPLODED:g}" in text
    assert f"at most 1/{1 / activations.NOISY_JUMP:g} of a standard deviation" in text


def test_kinds_and_schemas_of_files(made, tmp_path):
    table = {re.findall(r"\w+", cells[0])[0]: cells for cells in rows("files", "Saved results")[2:]}
    for name, result in made.items():
        result.save(tmp_path / "result.json")
        held = json.loads((tmp_path / "result.json").read_text())
        _, kind, schema, _ = table[name]
        assert kind == f"`{held['kind']}`"
        assert int(schema.split()[0]) == held["schema"]


def test_keys_of_files(watched, swept, tmp_path):
    _, path = watched
    run, snapshot = (cells[3] for cells in rows("files", "A run: JSON lines")[2:])
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert set(re.findall(r"`(\w+)`", run)) == set(lines[0]) - {"kind", "schema"}
    assert set(re.findall(r"`(\w+)`", snapshot)) == set(lines[1]) - {"kind"}
    swept.save(tmp_path / "phase.json")
    cells = next(cells for cells in rows("files", "Saved results") if "PhaseDiagram" in cells[0])
    assert set(re.findall(r"`(\w+)`", cells[3])) == set(json.loads((tmp_path / "phase.json").read_text())) - {"schema"}


def test_the_glossary_is_in_alphabetical_order():
    words = [re.sub(r"[`\\*]", "", cells[0]).lower() for cells in rows("glossary", "Words")[2:]]
    assert len(words) > 30
    assert words == sorted(words)
