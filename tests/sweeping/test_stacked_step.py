"""A member of a stack equals the same network trained alone, by a plain loop over torch.optim.SGD."""

import copy
import itertools

import pytest
import torch
from torch import nn

import normscope as ns
from normscope.stackable import NotStackable, check_alike, check_runs
from normscope.sweeping.lowering import ConvAsProduct, MaskedDropout, draw_alike, lower
from normscope.sweeping.stacked_step import Program, seed_of_step, stack

STEPS = 20
# (lr, momentum, weight decay) of each member.
RATES = [(0.003, 0.9, 0.0), (0.01, 0.0, 5e-4), (0.001, 0.95, 1e-3)]


def _dropout(seed):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(192, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 10)
    )


MAKERS = {
    "mlp": lambda s: ns.models.MLP(192, 10, width=24, norm="batch", gamma=0.5 + s, seed=s),
    "cnn": lambda s: ns.models.CNN(3, 16, channels=(6, 8), norm="batch", gamma=0.5 + s, seed=s),
    "vgg11": lambda s: ns.models.VGG(11, width=0.06, norm="batch", seed=s),
    "resnet": lambda s: ns.models.PreActResNet18(width=3, norm="batch", seed=s),
    "group": lambda s: ns.models.CNN(3, 16, channels=(6, 8), norm="group", padding=1, seed=s),
    "rms": lambda s: ns.models.MLP(192, 10, width=24, norm="rms", seed=s),
    "l1": lambda s: ns.models.MLP(192, 10, width=24, norm="l1", seed=s),
    "noisy": lambda s: ns.models.MLP(192, 10, width=24, norm="noisy", seed=s),
    "none": lambda s: ns.models.MLP(192, 10, width=24, norm="none", seed=s),
    "dropout": _dropout,
}


def stream(name):
    size = 32 if name == "vgg11" else 16 if name in ("cnn", "group", "resnet") else 8
    draw = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        yield (
            torch.randn(12, 3, size, size, generator=draw, dtype=torch.float64),
            torch.randint(10, (12,), generator=draw),
        )


def alone(model, rates, name, loss_fn):
    """Written without the sweep's code: torch's optimizer, torch's modes."""
    lr, momentum, decay = rates
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum, weight_decay=decay)
    losses = []
    for step, (x, y) in enumerate(stream(name)):
        torch.manual_seed(seed_of_step(7, step))
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


@pytest.mark.parametrize(
    ("name", "lowered"),
    [(name, False) for name in MAKERS] + [(name, True) for name in ("cnn", "vgg11", "resnet", "group")],
)
def test_a_member_equals_training_it_alone(name, lowered):
    models = [MAKERS[name](seed).double() for seed in range(3)]
    loss_fn = ns.losses.cross_entropy if name == "dropout" else ns.losses.half_mse
    check_alike(models)
    members = stack(models, RATES, torch.device("cpu"))
    draws = name == "dropout"
    program = Program(models[0], loss_fn, lowered=lowered, compiled=False, draws=draws, stream_seed=7)
    losses = torch.stack([program.step(members, x, y, step)[0] for step, (x, y) in enumerate(stream(name))], 1)
    x, y = next(stream(name))
    tested, right = program.evaluate(members, x, y)
    for row, model in enumerate(models):
        apart = losses[row] - alone(model, RATES[row], name, loss_fn)
        assert apart.abs().max() <= 1e-12 * losses[row].abs().max()
        assert losses[row].isfinite().all()
        for key, value in (*model.named_parameters(), *model.named_buffers()):
            found = (members.parameters | members.buffers)[key][row]
            if not value.is_floating_point():
                assert torch.equal(found, value), key
                continue
            assert (found - value).abs().max() <= 1e-12 * value.abs().max().clamp(min=1e-3), key
        output = model.eval()(x)
        torch.testing.assert_close(tested[row], loss_fn(output, y), rtol=1e-11, atol=0)
        assert right[row] == (output.argmax(1) == y).sum()


def test_dropout_with_a_mask_of_its_own_draws_what_torchs_draws():
    plain, masked = nn.Sequential(nn.Dropout(0.3)), nn.Sequential(nn.Dropout(0.3))
    draw_alike(masked)
    assert type(masked[0]) is MaskedDropout
    for dtype in (torch.float32, torch.float64):
        x = torch.randn(7, 33, dtype=dtype)
        found = []
        for model in (plain, masked):
            torch.manual_seed(5)
            found.append(model(x))
        assert torch.equal(*found)
    assert torch.equal(masked.eval()(x), x)


def test_members_share_dropout_masks_and_the_masks_change_from_step_to_step():
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(64, 1, bias=False)).double()
    members = stack([model, model], [(0.0, 0.0, 0.0)] * 2, torch.device("cpu"))
    program = Program(model, lambda out, y: out.sum(), lowered=False, compiled=False, draws=True)
    x, y = torch.ones(1, 64, dtype=torch.float64), torch.zeros(1)
    before = torch.get_rng_state()
    first, again, other = (program.step(members, x, y, step)[0] for step in (0, 0, 1))
    assert first[0] == first[1] == again[0] != other[0]
    assert torch.equal(before, torch.get_rng_state())


def test_neighbours_and_group_size_change_no_bit():
    models = [MAKERS["mlp"](seed) for seed in range(4)]
    x, y = (t.float() if t.is_floating_point() else t for t in next(stream("mlp")))

    def after(rows, rates):
        members = stack([models[row] for row in rows], rates, torch.device("cpu"))
        program = Program(models[0], ns.losses.half_mse, lowered=False, compiled=False)
        for step in range(10):
            program.step(members, x, y, step)
        return {key: value[0] for key, value in (members.parameters | members.buffers).items()}

    plain = after([0, 1], [(0.01, 0.9, 0.0)] * 2)
    beside_nan = after([0, 1, 2, 3], [(0.01, 0.9, 0.0), (1e30, 0.9, 0.0), (0.01, 0.9, 0.0), (1e9, 0.0, 0.0)])
    assert all(torch.equal(plain[key], beside_nan[key]) for key in plain)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mlp", "cnn", "dropout"])
def test_compiled_equals_eager(name):
    models = [MAKERS[name](seed).double() for seed in range(3)]
    found = []
    for compiled in (False, True):
        members = stack(models, RATES, torch.device("cpu"))
        program = Program(
            models[0], ns.losses.half_mse, lowered=True, compiled=compiled, draws=name == "dropout", stream_seed=7
        )
        losses = [program.step(members, x, y, step)[0] for step, (x, y) in enumerate(stream(name))]
        assert program.compiled == compiled
        found.append((torch.stack(losses), members))
    (losses, members), (compiled_losses, compiled_members) = found
    torch.testing.assert_close(compiled_losses, losses, rtol=1e-11, atol=1e-13)
    for key, value in members.parameters.items():
        torch.testing.assert_close(compiled_members.parameters[key], value, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("stride", "padding"),
    [*itertools.product([1, 2, (2, 1)], [0, 1, (2, 1), "valid"]), (1, "same")],
)
@pytest.mark.parametrize(("kernel", "dilation"), [(3, 1), ((2, 3), 2), ((3, 2), (1, 2)), (1, 1)])
def test_a_lowered_convolution_is_the_convolution(stride, padding, kernel, dilation):
    conv = nn.Conv2d(3, 5, kernel, stride=stride, padding=padding, dilation=dilation, bias=kernel != 1).double()
    twin = copy.deepcopy(conv)
    lower(twin)
    assert type(twin) is ConvAsProduct
    x = torch.randn(2, 3, 9, 8, dtype=torch.float64, requires_grad=True)
    z = x.detach().clone().requires_grad_()
    want, found = conv(x), twin(z)
    torch.testing.assert_close(found, want, rtol=1e-12, atol=1e-12)
    weight = torch.randn_like(want)
    (want * weight).sum().backward()
    (found * weight).sum().backward()
    torch.testing.assert_close(z.grad, x.grad, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(twin.weight.grad, conv.weight.grad, rtol=1e-12, atol=1e-12)


def test_what_is_not_lowered():
    class Own(nn.Conv2d):
        pass

    left = nn.Sequential(
        nn.Conv2d(4, 4, 3, groups=2), nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect"), Own(4, 4, 3)
    )
    lower(left)
    assert not any(type(module) is ConvAsProduct for module in left.modules())


class _Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)

    def forward(self, x):
        return self.first(x) if x.sum() > 0 else x


def test_a_module_that_cannot_be_stacked_is_named():
    model = nn.Sequential(nn.Linear(4, 4), _Branching())
    members = stack([model, model], [(0.1, 0.0, 0.0)] * 2, torch.device("cpu"))
    program = Program(model, ns.losses.half_mse, lowered=False, compiled=False)
    x, y = torch.randn(3, 4), torch.randint(4, (3,))
    with pytest.raises(NotStackable, match=r"^1 \(_Branching\): "):
        check_runs(program.training, lambda: program.moved(members, x, y))
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in program.training.modules())


@pytest.mark.parametrize(
    ("one", "other", "words"),
    [
        (nn.Dropout(0.1), nn.Dropout(0.2), r"0 \(Dropout\): p is 0.1 in one cell and 0.2"),
        (nn.Linear(3, 2), nn.Linear(3, 4), r"0 \(Linear\): its weight has shape"),
        (nn.ReLU(), nn.Tanh(), "0 is a ReLU in one cell and a Tanh"),
        (nn.Identity(), nn.Sequential(nn.ReLU()), "different modules"),
        (nn.Linear(3, 2), nn.Linear(3, 2, bias=False), "its bias has shape"),
        (nn.BatchNorm1d(3), nn.BatchNorm1d(3).eval(), "training is True"),
    ],
)
def test_members_that_differ_in_more_than_values_are_found_out(one, other, words):
    check_alike([nn.Sequential(one), nn.Sequential(copy.deepcopy(one))])
    with pytest.raises(NotStackable, match=words):
        check_alike([nn.Sequential(one), nn.Sequential(other)])
