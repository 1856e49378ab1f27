"""On a GPU: networks with convolutions, GroupNorm and dropout train as stacks and equal networks trained alone."""

import numpy as np
import pytest
import sweep_plans
import torch

from normscope.sweeping.alone import train_alone
from normscope.sweeping.trainer import Trainer

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
SMALL = {"in_channels": 1, "size": 8, "channels": [6, 8], "padding": 1}
CASES = {
    "mlp": {},
    "cnn": {"model": "CNN", "arguments": SMALL | {"norm": "batch"}},
    "group": {"model": "CNN", "arguments": SMALL | {"norm": "group"}},
    "resnet": {"model": "PreActResNet18", "arguments": {"in_channels": 1, "width": 4, "norm": "batch"}},
    "vgg11": {"model": "sweep_plans:vgg", "arguments": {}},
    "dropout": {"model": "sweep_plans:with_dropout", "arguments": {"p": 0.3}, "axis": "weight_decay"},
}


@pytest.mark.parametrize("name", CASES)
def test_members_on_a_gpu(name):
    plan = sweep_plans.plan(
        **{"learning_rates": (1e-3, 3e-3), "values": (0.5, 1.0), "epochs": 1, "dtype": "float64"} | CASES[name]
    )
    trainer = Trainer(plan, device="cuda")
    assert (trainer.mode, trainer.note) == ("stacked", "")
    (stacked,) = trainer.train(plan.cells())
    for found in stacked:
        twin = train_alone(trainer, found.cell, "", lambda done: None)
        np.testing.assert_allclose(found.train_loss, twin.train_loss, rtol=1e-8)
        np.testing.assert_allclose(found.test_loss, twin.test_loss, rtol=1e-7)


@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_compiled_members_on_a_gpu(name):
    change = {"learning_rates": (1e-3, 1e3), "dtype": "float64", "epochs": 1} | CASES[name]
    eager, compiled = (
        next(iter(Trainer(plan, device="cuda").train(plan.cells())))
        for plan in (sweep_plans.plan(**change, compile=how) for how in ("never", "always"))
    )
    assert all(found.environment["compiled"] for found in compiled)
    for one, other in zip(eager, compiled, strict=True):
        assert one.diverged_at == other.diverged_at
        np.testing.assert_allclose(one.test_loss, other.test_loss, rtol=1e-7)
