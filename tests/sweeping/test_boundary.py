"""The boundary on outcomes made by hand, its distance from lines, the refinement, and the diagram on disk."""

import json
import math

import pytest
import sweep_plans
import torch

import normscope as ns
from normscope.report.boundary_table import boundary_rows, words
from normscope.report.drawing import draw
from normscope.report.sections.phase import phase_section
from normscope.report.sweep_folder import write_phase
from normscope.sweeping import Cell, Outcome, PhaseDiagram, measured_line, stored_lines
from normscope.sweeping.boundary import edges, refinement

NAN = math.nan


def made(lr, value, seed, *, survives=True, test=1.0, rose=None):
    curve = (test,) if survives else (NAN,)
    return Outcome(
        Cell(lr, value, seed), 2.0, None if survives else 5, rose, curve, curve, curve, curve, "stacked", "", {}
    )


def ladder(value, survival, tests=None, rises=10.0):
    """survival: for each of the rates 0.01, 0.1, 1, 10 the seeds' fates."""
    rates = (0.01, 0.1, 1.0, 10.0)
    return [
        made(rate, value, seed, survives=fate, test=(tests or (1.0,) * 4)[i], rose=4 if rate >= rises else None)
        for i, (rate, fates) in enumerate(zip(rates, survival, strict=True))
        for seed, fate in enumerate(fates)
    ]


def test_the_boundary_lies_between_the_last_survivor_and_the_first_that_diverges():
    outcomes = ladder(1.0, [(1, 1), (1, 1), (1, 0), (0, 0)], tests=(3.0, 2.0, 1.0, 1.0), rises=0.1)
    (edge,) = edges(outcomes)
    assert (edge.survives, edge.diverges, edge.any_survives, edge.rises, edge.gaps) == (0.1, 1.0, 1.0, 0.1, 0)
    assert edge.eta == pytest.approx(math.sqrt(0.1))
    assert edge.resolution == pytest.approx(0.5)
    assert (edge.any_resolution, edge.rises_resolution) == (pytest.approx(0.5), pytest.approx(0.5))
    # 1.0 has the smaller mean loss, but not every seed survived there.
    assert (edge.best, edge.best_test_loss, edge.best_resolution) == (0.1, 2.0, pytest.approx(0.5))


def test_a_gap_in_survival_is_counted_and_does_not_move_the_boundary():
    (edge,) = edges(ladder(1.0, [(1, 1), (0, 1), (1, 1), (0, 0)]))
    assert (edge.survives, edge.diverges, edge.any_survives, edge.gaps) == (0.01, 0.1, 1.0, 1)


def test_a_rise_by_the_noise_of_batches_at_a_small_rate_is_no_onset():
    outcomes = ladder(1.0, [(1, 1)] * 4, rises=10.0)
    outcomes[0] = made(0.01, 1.0, 0, rose=7)
    (edge,) = edges(outcomes)
    assert edge.rises == 10.0
    (edge,) = edges(ladder(1.0, [(1, 1)] * 4, rises=100.0))
    assert math.isnan(edge.rises)


@pytest.mark.parametrize("fate", [0, 1])
def test_a_grid_that_does_not_reach_the_boundary_has_none(fate):
    (edge,) = edges(ladder(1.0, [(fate, fate)] * 4))
    assert math.isnan(edge.eta)
    assert math.isnan(edge.resolution)
    assert math.isnan(edge.any_resolution)
    assert (edge.survives == 10.0) == bool(fate)
    assert math.isnan(edge.survives) == (not fate)


def diagram(values=(0.5, 1.0, 2.0)):
    fates = ([(1, 1)] * 3 + [(0, 0)], [(1, 1)] * 2 + [(0, 0)] * 2, [(1, 1)] + [(0, 0)] * 3)
    outcomes = [one for value, fate in zip(values, fates, strict=True) for one in ladder(value, fate)]
    plan = sweep_plans.plan(learning_rates=(0.01, 0.1, 1.0, 10.0), values=values)
    return PhaseDiagram(plan, tuple(sorted(outcomes, key=lambda one: one.cell)))


def test_agreement_is_signed_in_decades():
    # Boundaries at sqrt(10), sqrt(0.1), sqrt(0.001).
    line = {0.5: 10**0.5, 1.0: 10**-0.7, 2.0: 10**-0.5}
    found = diagram().agreement({"theory": line, "short": {1.0: 1.0}, "none": {}})
    assert found["theory"].by_value == pytest.approx({0.5: 0.0, 1.0: 0.2, 2.0: -1.0})
    assert found["theory"].median == pytest.approx(0.0)
    assert found["theory"].worst == pytest.approx(-1.0)
    assert found["theory"].best[1.0] == pytest.approx(math.log10(0.01) + 0.7)
    assert (found["short"].n, found["none"].n) == (1, 0)
    assert math.isnan(found["none"].median)
    assert "+0.00 decades" in words(found["theory"])
    assert "outside the grid" in words(found["none"])


def test_a_line_that_is_no_number_has_no_distance():
    (found,) = diagram().agreement({"none": {0.5: math.inf, 1.0: NAN, 2.0: 0.0}}).values()
    assert (found.n, found.by_value, found.best) == (0, {}, {})


def test_refinement_goes_on_with_the_round_that_was_interrupted():
    plan = sweep_plans.plan(learning_rates=(0.01, 0.1, 1.0, 10.0), values=(1.0,), bisect=0.02)
    outcomes = ladder(1.0, [(1, 1), (1, 1), (0, 0), (0, 0)])
    begun, other = refinement(plan, outcomes)
    outcomes.append(made(begun.lr, 1.0, begun.seed))
    # The whole round, so that groups are cut from it as if nothing had happened.
    assert refinement(plan, outcomes) == [begun, other]
    outcomes.append(made(other.lr, 1.0, other.seed, survives=False))
    assert refinement(plan, outcomes)[0].lr == pytest.approx(10**-0.75)


def test_refinement_ends_where_no_rate_lies_between():
    low, high = 0.1, 0.1 * (1 + 1e-12)
    plan = sweep_plans.plan(learning_rates=(low, high), values=(1.0,), seeds=(0,), bisect=1e-15)
    assert refinement(plan, [made(low, 1.0, 0), made(high, 1.0, 0, survives=False)]) == []


def test_refinement_asks_for_the_middle_until_it_is_near_enough():
    plan = sweep_plans.plan(learning_rates=(0.01, 0.1, 1.0, 10.0), values=(1.0,), bisect=0.6)
    outcomes = ladder(1.0, [(1, 1), (1, 1), (1, 0), (0, 0)])
    middle = refinement(plan, outcomes)
    assert middle == [Cell(pytest.approx(math.sqrt(0.1)), 1.0, seed) for seed in (0, 1)]
    outcomes += [made(cell.lr, 1.0, cell.seed, survives=False) for cell in middle]
    assert refinement(plan, outcomes) == []
    everywhere = ladder(1.0, [(1, 1)] * 4)
    assert refinement(plan, everywhere) == []


def test_a_diagram_comes_back_from_disk(tmp_path):
    found, lines = diagram(), {"theory": {0.5: 1.0, 2.0: 0.1}}
    found.save(tmp_path / "phase.json", lines=lines)
    again = PhaseDiagram.load(tmp_path / "phase.json")
    assert sweep_plans.same(found, again)
    assert again.plan.hash == found.plan.hash
    assert stored_lines(tmp_path / "phase.json") == lines
    stored = json.loads((tmp_path / "phase.json").read_text())
    (tmp_path / "phase.json").write_text(json.dumps(stored | {"schema": 0}))
    with pytest.raises(ValueError, match="holds schema 0"):
        PhaseDiagram.load(tmp_path / "phase.json")


def test_the_figure_shows_every_cell_and_line(tmp_path):
    found, lines = diagram(), {"measured": {0.5: 3.0, 1.0: 0.3, 2.0: 0.03}}
    figure = draw(phase_section("a sweep", found, lines).charts[0])
    ax = figure.axes[0]
    there, colours, bars = ax.collections
    assert (there.get_array().count(), colours.get_array().count()) == (12, 6)
    assert [segment[:, 0].tolist() for segment in bars.get_segments()] == [[1.0, 10.0], [0.1, 1.0], [0.01, 0.1]]
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["boundary: all seeds survive", "first rise above the start", "eta*, measured", "eta*/2, measured"]
    assert list(ax.lines[2].get_xdata()) == [3.0, 0.3, 0.03]
    assert list(ax.lines[3].get_xdata()) == [1.5, 0.15, 0.015]
    rows = boundary_rows(found, lines)
    assert [row[-1] for row in rows] == ["+0.02", "+0.02", "+0.02"]
    written = write_phase(found, lines, tmp_path)
    assert all(path.stat().st_size > 1000 for path in written)
    page = written[2].read_text()
    assert "seed 0: test loss 1, accuracy 100.00%" in page
    assert "seed 1: diverged at step 5" in page
    (chart,) = phase_section("a sweep", found, lines).charts
    heat = chart.panels[0].heat
    assert [len(row) for row in heat.values] == [4, 4, 4]
    assert sum(math.isnan(loss) for row in heat.values for loss in row) == 6
    assert list(chart.panels[0].lines[2].x) == [3.0, 0.3, 0.03]


def test_refined_rates_leave_no_gap_at_other_values():
    outcomes = [*ladder(0.5, [(1,), (1,), (0,), (0,)]), *ladder(2.0, [(1,), (1,), (0,), (0,)]), made(0.3, 2.0, 0)]
    found = PhaseDiagram(sweep_plans.plan(values=(0.5, 2.0), axis="momentum_of_mine", epochs=1), tuple(outcomes))
    panel = phase_section("mine", found, {"measured": {0.5: 2.0}}).charts[0].panels[0]
    assert all("not trained" not in cell for row in panel.heat.texts for cell in row)
    halved = {line.name: list(line.x) for line in panel.lines[-2:]}
    assert halved == {"eta*, measured": [2.0], "eta*/2, measured": [1.0]}
    assert [len(cells) for cells in panel.heat.values] == [5, 5]
    assert not any(loss is None for cells in panel.heat.values for loss in cells)
    assert panel.title.endswith("1 epoch")


def test_one_cell_and_no_survivor_can_be_drawn():
    plan = sweep_plans.plan(learning_rates=(1.0,), values=(1.0,), seeds=(0,))
    for survives in (True, False):
        draw(phase_section("one", PhaseDiagram(plan, (made(1.0, 1.0, 0, survives=survives),)), {}).charts[0])


def test_the_measured_line_is_that_of_measure():
    plan = sweep_plans.plan(values=(0.5, 2.0), weight_decay=0.0)
    line = measured_line(plan, device="cpu")
    data = ns.data.digits(seed=0)
    (batch,) = ns.data.batches(data.x_train, data.y_train, batch_size=128, seed=0, steps=1)
    model = ns.models.MLP(64, 10, width=16, depth=3, norm="batch", gamma=2.0, seed=0)
    found = ns.measure(model, ns.losses.half_mse, batch, momentum=0.9, hessian=False)
    assert line[2.0] == pytest.approx(found.eta_star, rel=1e-3)
    assert line[0.5] > 3 * line[2.0]


def test_the_measured_line_of_a_network_with_dropout_is_the_same_again():
    plan = sweep_plans.plan(model="sweep_plans:with_dropout", axis="momentum", values=(0.9,), arguments={"p": 0.5})
    before = torch.get_rng_state()
    assert measured_line(plan, device="cpu") == measured_line(plan, device="cpu")
    assert torch.equal(before, torch.get_rng_state())
