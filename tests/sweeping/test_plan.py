"""A plan: its hash, its cells, and every mistake at once."""

import json
import math
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from normscope.sweeping import Cell, Plan, PlanError, grid, sweep
from normscope.sweeping.trainer import Trainer

BASE = {"model": "MLP", "data": "digits", "learning_rates": [0.01, 0.1], "data_options": {"seed": 0}}
EXAMPLES = Path(__file__).parent.parent.parent / "examples"


def build(seed, gamma=1.0):
    from normscope.models import MLP

    return MLP(64, 10, width=8, gamma=gamma, seed=seed)


def not_a_module(seed, gamma):
    return "network"


def test_the_hash_is_that_of_the_description():
    plan = Plan(**BASE)
    assert plan.hash == Plan.from_dict(dict(reversed(BASE.items()))).hash
    assert plan.hash == Plan(**BASE | {"learning_rates": (0.01, 1e-1)}).hash
    changed = {
        "momentum": 0.9,
        "epochs": 4,
        "values": [1.5],
        "arguments": {"width": 3},
        "threads": 2,
        "loss": "half_sse",
    }
    hashes = {Plan(**BASE | {key: value}).hash for key, value in changed.items()}
    assert len(hashes | {plan.hash}) == len(changed) + 1


def test_every_key_changes_the_hash():
    """All fields of a plan, so that a new one cannot be forgotten."""
    changed = {
        "model": "DLN", "data": "mnist", "learning_rates": [0.1], "values": [2.0], "axis": "sigma_w", "seeds": [1],
        "arguments": {"width": 3}, "data_options": {}, "loss": "half_sse", "momentum": 0.9, "weight_decay": 1e-4,
        "batch_size": 64, "epochs": 4, "explode": 1e5, "stream_seed": 1, "threads": 2, "dtype": "float64",
        "tf32": False, "compile": "never", "mode": "looped", "bisect": 0.1,
    }  # fmt: skip
    assert set(changed) == {field.name for field in fields(Plan)}
    hashes = {Plan(**BASE | {key: value}).hash for key, value in changed.items()}
    assert len(hashes | {Plan(**BASE).hash}) == len(changed) + 1


@pytest.mark.parametrize(
    "way",
    [
        {"learning_rates": [0.1, 0.01]},
        {"learning_rates": np.array([0.01, 0.1])},
        {"momentum": 0, "weight_decay": 0, "bisect": 0, "explode": 1000000},
        {"seeds": [np.int64(0)], "values": [1], "epochs": np.int64(5)},
    ],
)
def test_the_way_a_description_is_written_does_not_change_the_hash(way):
    assert Plan(**BASE | way).hash == Plan(**BASE).hash


def test_a_description_does_not_follow_the_callers_dict():
    arguments = {"width": 8}
    plan = Plan(**BASE, arguments=arguments)
    before = plan.canonical()
    arguments["width"] = 9
    assert plan.canonical() == before


def test_the_source_of_a_users_factory_is_part_of_the_hash(tmp_path):
    path = tmp_path / "net.py"
    path.write_text("from normscope.models import MLP\ndef build(seed, gamma): return MLP(64, 10, width=4)\n")
    first = Plan(**BASE | {"model": f"{path}:build"}).hash
    path.write_text(path.read_text().replace("width=4", "width=5"))
    assert Plan(**BASE | {"model": f"{path}:build"}).hash != first


def test_a_plan_kept_while_its_factorys_file_changes_finds_no_old_results(tmp_path):
    path = tmp_path / "net.py"
    text = "from normscope.models import MLP\ndef build(seed, gamma): return MLP(64, 10, width=4, seed=seed)\n"
    path.write_text(text)
    plan = Plan(**BASE | {"model": f"{path}:build", "epochs": 1})
    first = sweep(plan, tmp_path, device="cpu", quiet=True)
    path.write_text(text.replace("width=4", "width=5"))
    other = sweep(plan, tmp_path, device="cpu", quiet=True)
    assert first.plan.hash != other.plan.hash
    assert first.outcomes[0].initial_loss != other.outcomes[0].initial_loss


def test_a_module_that_fails_to_import_is_said_as_a_mistake(tmp_path, monkeypatch):
    (tmp_path / "no_python.py").write_text("def build(:")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        PlanError,
        match=r"model: no_python was imported and raised SyntaxError: invalid syntax \(no_python.py, line 1\)\.$",
    ):
        sweep(Plan(**BASE | {"model": "no_python:build"}), tmp_path / "out", device="cpu", quiet=True)


def test_a_factory_that_is_not_there_is_said_when_it_is_built_and_not_by_the_hash(tmp_path):
    plan = Plan(**BASE | {"model": "no_such_module:build"})
    assert len(plan.hash) == 64
    with pytest.raises(PlanError, match="There is no module no_such_module"):
        Trainer(plan)


def test_a_factory_may_be_handed_in_where_it_can_be_imported_again():
    assert Plan(**BASE | {"model": build}).model.endswith("test_plan:build")
    with pytest.raises(PlanError, match="must be importable"):
        Plan(**BASE | {"model": lambda seed, gamma: None})


def test_cells_are_the_grid_and_the_most_unstable_come_first():
    plan = Plan(**BASE | {"values": [0.5, 1.0, 2.0], "seeds": [0, 1, 2]})
    cells = plan.cells()
    assert len(cells) == len(set(cells)) == 18
    assert cells[0] == Cell(0.1, 2.0, 0)
    order = [cell.lr * cell.value**2 for cell in cells]
    assert order == sorted(order, reverse=True)


def test_axes():
    sigma = Plan(**BASE | {"axis": "sigma_w", "values": [3.0]})
    assert sigma.member_arguments(3.0, 1) == {"seed": 1, "sigma_w2": 9.0}
    momentum = Plan(**BASE | {"axis": "momentum", "values": [0.5]})
    assert momentum.member_arguments(0.5, 1) == {"seed": 1}
    assert momentum.optimizer(Cell(0.1, 0.5, 1)) == (0.1, 0.5, 0.0)
    decay = Plan(**BASE | {"axis": "weight_decay", "values": [0.5], "momentum": 0.9})
    assert decay.optimizer(Cell(0.1, 0.5, 1)) == (0.1, 0.9, 0.5)


def test_grids():
    assert grid(count=3, **{"from": 0.1, "to": 10.0}) == (0.1, 1.0, 10.0)
    assert len(set(grid(count=21, log10_from=-3.5, log10_to=0.5))) == 21
    assert grid(count=1, log10_from=0, log10_to=1) == (1.0,)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"learning_rates": []}, "learning_rates is empty"),
        ({"learning_rates": [-0.1, math.inf, math.nan]}, "positive and finite; got -0.1, inf, nan"),
        ({"learning_rates": [0.1, 0.1]}, "0.1 is there more than once"),
        ({"learning_rates": 0.1}, "a list of numbers"),
        ({"learning_rates": {"from": -1, "to": 1, "count": 3}}, "ends are positive"),
        ({"learning_rates": {"from": 1, "count": 3}}, "a grid is {from, to, count}"),
        ({"learning_rates": {"from": 1, "to": 2, "count": 0}}, "at least one number"),
        ({"values": [0.0]}, r"values \(of gamma\) must be positive"),
        ({"values": ["1"]}, "got '1'"),
        ({"seeds": [0.5]}, "seeds must be integers"),
        ({"seeds": [True]}, "seeds must be integers"),
        ({"loss": "half_mes"}, "Did you mean 'half_mse'"),
        ({"data": "minst"}, "Did you mean 'mnist'"),
        ({"momentum": 1.0}, r"momentum must lie in \[0, 1\)"),
        ({"explode": 1.0}, "explode is a finite multiple"),
        ({"explode": math.inf}, "explode is a finite multiple"),
        ({"learning_rates": {"log10_from": 0, "log10_to": 400, "count": 3}}, "between 1e-300 and 1e300"),
        ({"learning_rates": {"from": "a", "to": 1, "count": 2.5}}, "got from='a', count=2.5"),
        ({"learning_rates": [10**400]}, "positive and finite"),
        ({"seeds": [2**63]}, "from 0 to"),
        ({"axis": ["gamma"]}, r"axis is a name; got \['gamma'\]"),
        ({"model": "MPL"}, "Did you mean 'MLP'"),
        ({"batch_size": 0}, "batch_size is an integer from 1"),
        ({"epochs": 2.5}, "epochs is an integer"),
        ({"tf32": 1}, "tf32 is true or false"),
        ({"arguments": {"gamma": 1.0}}, "arguments must not hold gamma: it comes from values"),
        ({"arguments": {"width": math.nan}}, "arguments must be plain"),
        ({"arguments": 3}, "arguments is a table"),
        ({"lerning_rates": []}, "Did you mean 'learning_rates'"),
    ],
)
def test_mistakes_are_named(change, words):
    with pytest.raises(PlanError, match=words):
        Plan.from_dict(BASE | change)


def test_all_mistakes_are_named_at_once():
    wrong = {"learning_rates": [-1.0], "seeds": [], "loss": "mse", "epochs": 0, "colour": "red"}
    with pytest.raises(PlanError) as found:
        Plan.from_dict(BASE | wrong)
    assert len(found.value.mistakes) == 5
    with pytest.raises(PlanError) as found:
        Plan.from_dict({})
    assert len(found.value.mistakes) == 3


def test_what_only_building_shows_is_named_before_anything_trains(tmp_path):
    plan = Plan(**BASE | {"model": f"{tmp_path}/net.py:build", "data": f"{tmp_path}/data.py:load"})
    with pytest.raises(PlanError) as found:
        sweep(plan, tmp_path / "out", device="cpu", quiet=True)
    assert "data: There is no file" in str(found.value)
    assert "model: There is no file" in str(found.value)
    assert not (tmp_path / "out").exists()
    for change, words in [
        ({"arguments": {"width": 8, "dept": 3}}, "dept"),
        ({"arguments": {"d_in": 63}}, "shapes cannot be multiplied"),
        ({"model": not_a_module}, "must return a torch.nn.Module; got str"),
        ({"data_options": {}}, "seed"),
        ({"data": "gaussian"}, "128x10 and 784"),
    ]:
        with pytest.raises(PlanError, match=words):
            Trainer(Plan(**BASE | change))


def test_the_journal_is_not_written_by_a_plan_that_cannot_be_trained(tmp_path):
    with pytest.raises(PlanError):
        sweep({"model": "MLP"}, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_examples_are_plans():
    for path in EXAMPLES.glob("sweep_*.toml"):
        plan = Plan.from_toml(path)
        assert Plan.from_dict(json.loads(json.dumps(plan.canonical() and {**_plain(plan)}))).hash == plan.hash
    assert len(Plan.from_toml(EXAMPLES / "sweep_mnist.toml").cells()) == 2100


def _plain(plan):
    from dataclasses import asdict

    return asdict(plan)


def test_a_file_that_is_no_toml(tmp_path):
    path = tmp_path / "plan.toml"
    path.write_text("model = ")
    with pytest.raises(PlanError, match="is not a TOML file"):
        Plan.from_toml(path)
