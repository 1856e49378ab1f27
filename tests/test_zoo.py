"""The zoo's stored run, its page, and the parts of its runner that judge."""

import copy
import importlib
import json
import sys

import pytest
import torch
from torch import nn

import normscope as ns
from docs_pages import ROOT

FOLDER = ROOT / "benchmarks/zoo"
STORED = ROOT / "benchmarks/results/zoo.json"


@pytest.fixture
def stored():
    if not STORED.exists():
        pytest.skip("benchmarks/zoo/run.py has not been run yet")
    return json.loads(STORED.read_text(encoding="utf-8"))


@pytest.fixture
def zoo(monkeypatch):
    """Imports a module of benchmarks/zoo, for this test alone."""
    monkeypatch.syspath_prepend(str(FOLDER))
    before = set(sys.modules)
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if str(FOLDER) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def test_the_page_is_made_of_the_stored_run(zoo, stored):
    assert (ROOT / "docs/evidence/zoo.md").read_text(encoding="utf-8") == zoo("page").page(stored)


def test_nothing_that_must_not_be_is_in_the_stored_run(zoo, stored):
    assert zoo("page").failures(stored) == []


def test_the_stored_run_is_of_the_list_that_was_drawn(zoo, stored):
    drawn = json.loads((FOLDER / "drawn.json").read_text(encoding="utf-8"))
    names = [(row["package"], row["name"], row["size"], row["why"]) for row in stored["models"]]
    assert names == [(row["package"], row["name"], row["size"], row["why"]) for row in drawn["models"]]
    kept = zoo("page").kept(stored)
    assert len(kept) >= 40
    assert len({row["package"] for row in kept}) >= 8


def test_what_must_not_be_is_found(zoo):
    """Each of a crash, a refusal without a way on, a change, a wrong swap and a wrong fold."""
    failures = zoo("page").failures
    good = {
        "package": "ours",
        "name": "net",
        "verbs": {
            "predict": {"outcome": "refused", "message": "Measure it.", "changed": []},
            "measure": {
                "outcome": "answered",
                "changed": [],
                "then_trains_alike": [],
                "witness": {"at_its_vector": 1.0, "power_iteration": 0.9},
            },
            "monitor": {"outcome": "answered", "bit_exact": True, "detached": []},
            "swap": {"outcome": "answered", "to": {"layer": {"outcome": "answered", "same_kind": True, "equal": True}}},
            "fold": {"outcome": "answered", "equal": True, "changed": []},
        },
    }
    assert failures({"models": [good]}) == []
    for verb, key, value in (
        ("predict", "outcome", "silent"),
        ("measure", "changed", ["weight is another object"]),
        ("measure", "then_trains_alike", ["weight"]),
        ("measure", "witness", {"at_its_vector": 0.9}),
        ("measure", "witness", {"power_iteration": 1.2}),
        ("monitor", "bit_exact", False),
        ("monitor", "detached", ["weight"]),
        ("fold", "equal", False),
    ):
        bad = copy.deepcopy(good)
        bad["verbs"][verb] |= {key: value, "outputs_off": 1.0}
        assert len(failures({"models": [bad]})) == 1, (verb, key)
    for key, value in (
        ("wrong", {"norm": 1.0}),
        ("skipped_in_silence", ["norm"]),
        ("forward", "RuntimeError"),
        ("equal", False),
    ):
        bad = copy.deepcopy(good)
        bad["verbs"]["swap"]["to"]["layer"] |= {key: value, "outputs_off": 1.0}
        assert len(failures({"models": [bad]})) == 1, key
    del bad["verbs"]["fold"]
    assert any("not finished" in one for one in failures({"models": [bad]}))


def test_a_refusal_is_an_error_of_ours_with_a_way_on(zoo):
    outcome_of = zoo("refusals").outcome_of

    def raised(call):
        with pytest.raises(Exception) as caught:  # noqa: PT011
            call()
        return outcome_of(caught.value)["outcome"]

    assert raised(lambda: ns.swap_norms(nn.LayerNorm(3), "rms")) == "refused"
    assert raised(lambda: nn.Linear(2, 2)(torch.ones(1, 3))) == "crash"
    assert raised(lambda: int("x")) == "crash"


def test_every_change_of_a_model_is_seen(zoo):
    state = zoo("state")
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    model.cache = [1]
    kept = state.Kept(model)
    assert kept.differences() == []
    model(torch.randn(4, 2))
    model.cache.append(torch.ones(1))
    model[0].bias = nn.Parameter(model[0].bias.detach().clone())
    with torch.no_grad():
        model[0].weight.add_(0)
    found = "\n".join(kept.differences())
    for said in (".cache[1] is new", "0._parameters[bias] is another object", "0._parameters[weight] was written"):
        assert said in found
    assert "and 2 more" in found
    kept = state.Kept(model)
    torch.randn(1)
    assert kept.differences() == ["the generator of torch has moved"]


@pytest.mark.parametrize(
    ("layer", "shape", "kind"),
    [
        (nn.LayerNorm(6), (4, 5, 6), ("layer", 2)),
        (nn.RMSNorm(6), (4, 6), ("rms", 1)),
        (nn.BatchNorm2d(6), (4, 6, 3, 3), ("batch", 1)),
        (nn.InstanceNorm2d(6, affine=True), (4, 6, 3, 3), ("instance", 1)),
        (nn.GroupNorm(2, 6), (4, 6, 3, 3), ("group", 1)),
        (nn.PReLU(6), (4, 6, 3, 3), None),
    ],
)
def test_a_normalizer_is_known_by_what_it_computes(zoo, layer, shape, kind):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)) + 0.5
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.3)
        assert zoo("references").kind_of(layer, x, layer(x)) == kind
