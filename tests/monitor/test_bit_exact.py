"""A watched run equals one alone, bit for bit: every normalizer, on both networks, in every way to train.

What is compared is in `exact.Run`: weights, gradients, buffers, outputs in eval mode, the optimizer's state, all random
generators, modes, attributes of modules, torch's global flags; and identities and version counters around snapshots.
"""

import copy
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from exact import NETWORKS, Cell, Run, Watched, differences, found_wrong, full
from torch import nn
from torch._dynamo.utils import counters

from normscope.compiling import why_not_compiled
from normscope.monitor import PRESETS
from normscope.norms import NORM_NAMES, make_norm

ALL = [(network, norm) for network in NETWORKS for norm in NORM_NAMES]


def matrix(*quick: tuple[str, str]) -> pytest.MarkDecorator:
    """All cells; those in `quick` are in the default suite, in fewer steps. SGD and AdamW take turns."""
    marked = []
    for i, (network, norm) in enumerate(ALL):
        cell = Cell(network, norm, ("sgd", "adamw")[i % 2])
        marked.append(pytest.param(cell, marks=pytest.mark.slow, id=f"{network}-{norm}"))
        if (network, norm) in quick:
            marked.append(pytest.param(cell.short(), id=f"{network}-{norm}-short"))
    return pytest.mark.parametrize("cell", marked)


class Breaks:
    """A measurement that moves everything it can reach, and then raises."""

    name = "breaks"
    forward_only = False

    def measure(self, probe):
        probe.at.move_to(probe.theta, probe.descent, 3.0)
        probe.at.gradient()
        model = probe.at.task.model
        model.eval()
        for tensor in (*probe.at.lent.leaves, *model.buffers()):
            tensor.data.zero_()
        model.left_behind = torch.ones(2)
        draws = (torch.rand(3), random.random(), np.random.rand())  # noqa: NPY002
        raise RuntimeError(f"planted {len(draws)}")


@matrix(("vgg", "noisy"), ("resnet", "batch"))
def test_float32_and_a_measurement_that_raises(cell):
    alone, watched = Run(cell), Run(cell, full(cell))
    assert found_wrong(alone, watched) == []
    broken = ["critical", "landscape", Breaks(), "health", "activations", "shift"]
    with pytest.warns(UserWarning, match="breaks was not measured at step 0, and the run goes on. RuntimeError: plant"):
        raising = Run(cell, full(cell, measure=broken, on_error="warn"))
    assert [set(r.errors) for r in raising.monitor.records if r.step % cell.every == 0] == [{"breaks"}] * len(
        range(0, cell.steps, cell.every)
    )
    assert found_wrong(alone, raising) == []
    # What is measured after it is measured as if nothing had happened.
    for ours, theirs in zip(raising.monitor.records, watched.monitor.records, strict=True):
        assert set(theirs.results) in (set(PRESETS["full"]), {"activations"})
        assert differences(ours.plain()["results"], theirs.plain()["results"]) == []


@matrix(("vgg", "batch"))
def test_bfloat16_inside_the_region_and_outside(cell):
    cell = replace(cell, autocast=torch.bfloat16)
    alone = Run(cell)
    inside, outside = Run(cell, full(cell), inside=True), Run(cell, full(cell, autocast=torch.bfloat16))
    assert found_wrong(alone, inside) == []
    assert found_wrong(alone, outside) == []
    # A cast that was remembered would give the same loss at every point.
    first = inside.monitor.records[0].results["landscape"]
    assert len({first.loss, *first.losses}) == 5
    for ours, theirs in zip(inside.monitor.records, outside.monitor.records, strict=True):
        assert differences(ours.plain()["results"], theirs.plain()["results"]) == []


@matrix(("vgg", "layer"))
def test_accumulated_and_clipped(cell):
    cell = replace(cell, accumulate=2, clip=True)
    assert found_wrong(Run(cell), Run(cell, full(cell))) == []


class Small(nn.Module):
    """What a compiler has to see of a network, and no more."""

    def __init__(self, norm: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 4, 3, stride=8)
        self.norm = make_norm(norm, 4, dim=2)
        self.dropout = nn.Dropout(0.2)
        self.head = nn.Linear(36, 10)

    def forward(self, x):
        h = self.dropout(torch.relu(self.norm(self.conv(x[:, :, :24, :24]))))
        return self.head(h.flatten(1))


def compiled_alone_and_watched(model, trained, cell):
    """One compiled network trains twice, alone and watched, and no snapshot makes a graph."""
    initial = copy.deepcopy(model.state_dict())
    alone = Run(cell, model=model, trained=trained)
    graphs = dict(counters["stats"])
    assert graphs["unique_graphs"]
    model.load_state_dict(initial)
    for parameter in model.parameters():
        parameter.grad = None
    watched = Run(cell, full(cell), model=model, trained=trained)
    assert dict(counters["stats"]) == graphs
    return found_wrong(alone, watched)


@pytest.fixture
def machine_code():
    if why_not_compiled():
        pytest.skip(why_not_compiled())


@pytest.fixture
def fresh_compiler():
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


@matrix(("vgg", "batch"))
def test_compiled_networks(cell, fresh_compiler):
    """Traced, differentiated and guarded as ever; the last stage, the machine code of a big graph, takes minutes."""
    cell = replace(cell, tidy=True)
    model = Watched(cell)
    assert compiled_alone_and_watched(model, torch.compile(model, backend="aot_eager"), cell) == []


@pytest.mark.slow
@pytest.mark.parametrize("norm", NORM_NAMES)
def test_compiled_to_machine_code(norm, fresh_compiler, machine_code):
    cell = Cell("vgg", norm)
    model = Small(norm)
    assert compiled_alone_and_watched(model, torch.compile(model), cell) == []


@pytest.mark.slow
def test_a_whole_network_compiled_to_machine_code(fresh_compiler, machine_code):
    cell = Cell("vgg", "batch", tidy=True)
    model = Watched(cell)
    assert compiled_alone_and_watched(model, torch.compile(model), cell) == []


@pytest.mark.gpu
@pytest.mark.parametrize("autocast", [None, torch.bfloat16])
@pytest.mark.parametrize("norm", ["batch", "noisy"])
@pytest.mark.parametrize("network", NETWORKS)
def test_on_a_gpu(network, norm, autocast, monkeypatch):
    if not torch.cuda.is_available():
        pytest.skip("There is no CUDA device here.")
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    try:
        cell = Cell(network, norm, autocast=autocast, device="cuda")
        alone = Run(cell)
        assert differences(alone.state, Run(cell).state) == []
        assert found_wrong(alone, Run(cell, full(cell, autocast=autocast))) == []
        assert found_wrong(alone, Run(cell, full(cell), inside=True)) == []
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("what", ["weights", "buffers", "grads", "random/torch", "optimizer/state"])
def test_the_comparison_sees_one_bit(what):
    """A comparison that cannot fail shows nothing."""
    run = Run(replace(Cell(), steps=1))
    other = dict(run.state)
    name = next(name for name, value in run.state.items() if name.startswith(f"/{what}") and torch.is_tensor(value))
    other[name] = run.state[name].clone()
    other[name].view(-1).view(torch.uint8)[0] ^= 1
    assert differences(run.state, other) == [name]
