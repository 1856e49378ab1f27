"""The store of runs: files of schema 1, which had other names, hold the same runs."""

import json

import pytest

from normscope.papers import Store, all_experiments
from normscope.papers.experiment import Run
from normscope.papers.store import StoreError


def rename(path, **names):
    """The text of a stored file with other names for keys and values."""
    text = path.read_text(encoding="utf-8")
    for name, before in names.items():
        assert f'"{name}"' in text
        text = text.replace(f'"{name}"', f'"{before}"')
    return text


def test_settings_and_curves_of_schema_1_are_found_by_their_names_of_today(tmp_path):
    store, experiment = Store(tmp_path), all_experiments()["modes-mnist"]
    cell = next(iter(experiment.cells))
    store.add(experiment, "small", Run(cell, 3, {"measured_at": [1.0], "value": [2.0]}, 0.5, {}))
    path = store.path(experiment)
    text = rename(path, measured_at="looks").replace('"schema":2', '"schema":1')
    path.write_text(text, encoding="utf-8")
    (run,) = Store(tmp_path).runs(experiment, cell, "small")
    assert (run.seed, run.curves) == (3, {"measured_at": [1.0], "value": [2.0]})


def test_a_file_of_schema_1_with_its_old_name_is_read_and_continued_under_the_new_one(tmp_path):
    store, experiment = Store(tmp_path), all_experiments()["eta-stars-mnist"]
    cell = next(iter(experiment.cells))
    store.add(experiment, "small", Run(cell, 0, {"value": [1.0]}, 0.5, {}))
    path = store.path(experiment)
    text = rename(path, **{"eta-stars-mnist": "rungs-mnist"}).replace('"schema":2', '"schema":1')
    path.unlink()
    (tmp_path / "rungs-mnist.json").write_text(text, encoding="utf-8")
    store = Store(tmp_path)
    assert store.path(experiment).name == "rungs-mnist.json"
    assert [run.seed for run in store.runs(experiment, cell, "small")] == [0]
    store.add(experiment, "small", Run(cell, 1, {"value": [2.0]}, 0.5, {}))
    assert store.path(experiment).name == "eta-stars-mnist.json"
    content = json.loads(store.path(experiment).read_text(encoding="utf-8"))
    assert (content["schema"], content["experiment"]) == (2, "eta-stars-mnist")
    assert [run.curves["value"] for run in Store(tmp_path).runs(experiment, cell, "small")] == [[1.0], [2.0]]


def test_a_schema_of_the_future_is_refused(tmp_path):
    store, experiment = Store(tmp_path), all_experiments()["eta-stars-mnist"]
    cell = next(iter(experiment.cells))
    store.add(experiment, "small", Run(cell, 0, {"value": [1.0]}, 0.5, {}))
    path = store.path(experiment)
    path.write_text(path.read_text(encoding="utf-8").replace('"schema":2', '"schema":3'), encoding="utf-8")
    with pytest.raises(StoreError, match="schema 2"):
        Store(tmp_path).runs(experiment, cell, "small")
