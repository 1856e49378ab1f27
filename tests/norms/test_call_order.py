"""Graphs that torch.fx cannot trace, read by torch.export; operations on a layer's weights, shown as its calls."""

import copy
import dataclasses

import foreign
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from normscope.norms import BatchNorm2d, fold_norms

# float32 as "equal within 1e-5 relative"; what is summed are some hundred values.
CLOSE = 1e-5


def ready(model):
    """Eval mode, with statistics and scales that matter."""
    draws = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for layer in model.modules():
            if isinstance(layer, nn.modules.batchnorm._BatchNorm):
                for tensor in (layer.weight, layer.bias, layer.running_mean, layer.running_var):
                    tensor.copy_(torch.rand(tensor.shape, generator=draws) + 0.5)
    return model.eval()


def check(model, example, *, left=(), read_by="torch.fx", given=True):
    """Folds, compares; the model is as it was."""
    x = example if isinstance(example, tuple) else (example,)
    state, before = copy.deepcopy(model.state_dict()), model(*x)
    result = fold_norms(model, example if given else None)
    error = (result.model(*x) - before).abs().max() / before.abs().max()
    assert error < CLOSE
    assert (result.read_by, set(result.left)) == (read_by, set(left))
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert torch.equal(model(*x), before)
    return result


def images(*shape):
    return torch.randn(shape or (2, 3, 8, 8), generator=torch.Generator().manual_seed(1))


class Checked(nn.Module):
    """A forward that asks for the shape, which torch.fx cannot follow."""

    def __init__(self, norm=nn.BatchNorm2d, conv=nn.Conv2d):
        super().__init__()
        self.conv, self.norm = conv(3, 4, 3, padding=1, bias=False), norm(4)
        self.head = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5))

    def forward(self, x):
        if x.shape[1] != 3:
            raise ValueError("three channels")
        return self.head(self.norm(self.conv(x)).mean((2, 3)))


@pytest.mark.parametrize("norm", [nn.BatchNorm2d, BatchNorm2d, foreign.BatchNormAct2d])
def test_export_reads_what_fx_cannot(norm):
    result = check(ready(Checked(norm)), images(), read_by="torch.export")
    assert result.folded == ("norm", "head.1")


def test_without_an_example_the_error_asks_for_one():
    with pytest.raises(ValueError, match="torch.fx, which cannot trace Checked.*Pass example="):
        fold_norms(ready(Checked()))


def test_several_inputs_and_outputs_by_name():
    class Two(Checked):
        def forward(self, x, *, y=None):
            return {"logits": super().forward(x if y is None else x + y)}

    model = ready(Two())
    result = fold_norms(model, {"x": images(), "y": images()})
    assert (result.folded, result.read_by) == (("norm", "head.1"), "torch.export")
    torch.testing.assert_close(result.model(images())["logits"], model(images())["logits"])


def test_a_result_of_a_class():
    @dataclasses.dataclass
    class Output:
        logits: torch.Tensor

    torch.export.register_dataclass(Output)

    class Wrapped(Checked):
        def forward(self, x):
            return Output(super().forward(x))

    assert fold_norms(ready(Wrapped()), images()).folded == ("norm", "head.1")


def test_where_neither_can_read_it_both_are_quoted():
    class Values(Checked):
        def forward(self, x):
            return super().forward(x) if float(x.sum()) > 0 else x

    with pytest.raises(ValueError, match="torch.fx says .*, torch.export says .*part"):
        fold_norms(ready(Values()), images())


WIRES = {
    "conv used twice": lambda m, x: m.norm(m.conv(x)) + m.conv(x),
    "norm used twice": lambda m, x: m.norm(m.conv(x)) + m.norm(m.conv(2 * x)),
    "another reader": lambda m, x: (lambda h: m.norm(h) + h)(m.conv(x)),
    "weight read": lambda m, x: m.norm(m.conv(x)) + F.conv2d(x, m.conv.weight, padding=1),
    "something between": lambda m, x: m.norm(m.conv(x).relu()),
    "other code reads the statistics": lambda m, x: F.batch_norm(
        m.conv(x), m.norm.running_mean, m.norm.running_var, m.norm.weight, m.norm.bias
    ),
}


@pytest.mark.parametrize("name", WIRES)
def test_export_too_leaves_what_folding_would_change(name):
    class Wired(Checked):
        def forward(self, x):
            assert x.shape[1] == 3
            return WIRES[name](self, x)

    assert check(ready(Wired()), images(), left=["norm", "head.1"], read_by="torch.export").folded == ()


@pytest.mark.parametrize("own", [True, False])
def test_a_convolution_that_pads_is_folded_where_it_would_read_a_bias(own):
    class Same(nn.Conv2d):
        def forward(self, x):
            return F.conv2d(F.pad(x, (1, 1, 1, 1)), self.weight, self.bias if own else None)

    model = ready(nn.Sequential(Same(3, 4, 3, bias=False), nn.BatchNorm2d(4)))
    assert check(model, images(), left=[] if own else ["1"]).folded == (("1",) if own else ())


def test_an_activation_inside_a_norm_stays():
    model = ready(nn.Sequential(nn.Conv2d(3, 4, 1), foreign.BatchNormAct2d(4, drop=0.5), nn.Conv2d(4, 2, 1)))
    result = check(model, images(), given=False)
    assert result.folded == ("1",)
    assert [type(part) for part in result.model[1]] == [nn.Identity, nn.Dropout, nn.ReLU]
    assert result.model(images()).isfinite().all()


def test_a_frozen_batch_norm_is_folded_in_either_mode():
    model = nn.Sequential(nn.Conv2d(3, 4, 1), foreign.FrozenBatchNorm2d(4))
    assert check(model.train(), images(), given=False).folded == ("1",)
    assert check(ready(nn.Sequential(nn.Conv2d(3, 4, 1), foreign.StaysFrozen(4))), images()).folded == ("1",)


def test_what_only_looks_frozen_is_left():
    class Odd(foreign.FrozenBatchNorm2d):
        def forward(self, x):
            return super().forward(x) ** 2

    result = check(nn.Sequential(nn.Conv2d(3, 4, 1), Odd(4)), images(), left=["1"])
    assert "Odd has a forward of its own" in result.left["1"]


def test_what_tracing_keeps_is_not_in_the_copy():
    class Keeps(nn.Sequential):
        def forward(self, x):
            self.last = super().forward(x)
            return self.last

    result = fold_norms(ready(Keeps(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))))
    assert "last" not in vars(result.model)
    assert result.model[0].bias is not None


def test_a_convolution_that_is_not_folded_gets_no_bias():
    model = ready(nn.Sequential(nn.Conv2d(3, 4, 1, bias=False), nn.ReLU(), nn.BatchNorm2d(4)))
    assert check(model, images(), left=["2"]).model[0].bias is None
