"""One decorator registers a rule for functions, methods, exported operations and modules."""

import subprocess
import sys

import pytest
import torch
from networks import Forward
from torch import Tensor, nn

import normscope as ns
from normscope.prediction import UnknownOperation
from normscope.prediction.rules import registry
from normscope.prediction.rules.constants import scale


class Doubling(nn.Module):
    def __init__(self, factor: float = 2.0) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return torch.ldexp(x, torch.tensor(1))


class Child(Doubling):
    pass


@pytest.fixture
def registered(monkeypatch):
    """A rule for doubling, which later tests do not see."""
    for table in ("_FUNCTIONS", "_METHODS", "_EXPORTED", "_MODULES"):
        monkeypatch.setattr(registry, table, dict(getattr(registry, table)))

    @registry.rule("ldexp", exported=["twice"], modules=[Doubling], settings=("factor",))
    def doubled(walk, name, x, other=None, factor=2.0):
        return scale(walk, x, factor)

    return doubled


def between(middle) -> nn.Module:
    torch.manual_seed(0)
    return Forward(lambda self, x: self.b(middle(self.a(x))), a=nn.Linear(20, 60), b=nn.Linear(60, 3))


def test_function_method_and_module_have_one_rule(registered):
    wanted = ns.predict(between(lambda h: 2.0 * h), (20,)).lambda_max
    assert ns.predict(between(lambda h: torch.ldexp(h, torch.tensor(1))), (20,)).lambda_max == wanted
    assert ns.predict(between(lambda h: h.ldexp(torch.tensor(1))), (20,)).lambda_max == wanted
    assert ns.predict(nn.Sequential(*list(between(None).children())[:1], Doubling(), nn.Linear(60, 3)), (20,)).eta_star
    assert registry.rule_of_exported("twice") is registry.rule_of_function(torch.ldexp) is registered


def test_settings_are_the_modules_own(registered):
    def of(factor: float) -> float:
        torch.manual_seed(0)
        return ns.predict(nn.Sequential(nn.Linear(20, 60), Doubling(factor), nn.Linear(60, 3)), (20,)).lambda_max

    assert of(4.0) > of(2.0)


def test_subclasses_defined_elsewhere_have_no_rule(registered):
    assert registry.rule_of_module(Doubling()) is not None
    assert registry.rule_of_module(Child()) is None
    assert registry.rule_of_module(nn.SyncBatchNorm(3)) is not None
    assert registry.rule_of_module(ns.norms.NoisyBatchNorm1d(3)) is None


def test_without_the_rule_the_operation_is_refused_by_name():
    with pytest.raises(UnknownOperation, match="ldexp.*has no moment map"):
        ns.predict(between(lambda h: torch.ldexp(h, torch.tensor(1))), (20,))


def test_predict_loads_no_curvature():
    code = (
        "import sys, normscope; normscope.predict; "
        "assert not [name for name in sys.modules if name.startswith('normscope.curvature')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
