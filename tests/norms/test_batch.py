"""BatchNorm against torch.nn, against the papers' formulas, and against its own invariances."""

import copy
import itertools
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.autograd import gradcheck, gradgradcheck

import reference
from normscope.norms import BatchNorm1d, BatchNorm2d, BatchNorm3d, batch_norm, lp_norm
from normscope.norms.batch_norm_gradient import BatchNormGrad, gradients_last

PAIRS = {"1d": (BatchNorm1d, nn.BatchNorm1d), "2d": (BatchNorm2d, nn.BatchNorm2d), "3d": (BatchNorm3d, nn.BatchNorm3d)}
SHAPES = [
    ("1d", (7, 3)),
    ("1d", (4, 3, 5)),
    ("1d", (2, 1)),
    ("2d", (4, 3, 5, 6)),
    ("2d", (1, 2, 3, 3)),
    ("3d", (2, 3, 4, 3, 2)),
]
# Relative to the largest entry, or to 1 where that is smaller. float32: sums of up to 10^3 terms lose some sqrt(10^3)
# ulp of 6e-8.
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-6}


def random(*shape, dtype=torch.float64, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def close(ours, theirs, tolerance):
    assert ours.dtype == theirs.dtype
    assert ours.shape == theirs.shape
    assert (ours - theirs).abs().max() <= tolerance * max(1.0, theirs.abs().max().item())


@pytest.mark.parametrize("dtype", TOLERANCE, ids=["float64", "float32"])
@pytest.mark.parametrize(
    "flags",
    [
        dict(zip(("affine", "track_running_stats", "momentum", "eps"), values, strict=True))
        for values in itertools.product([True, False], [True, False], [0.1, None], [1e-5, 1e-2])
    ],
    ids=lambda f: "-".join(f"{k[:3]}={v}" for k, v in f.items()),
)
@pytest.mark.parametrize(("dims", "shape"), SHAPES)
def test_equals_torch_over_steps_and_modes(dims, shape, flags, dtype):
    ours, theirs = (cls(shape[1], dtype=dtype, **flags) for cls in PAIRS[dims])
    if flags["affine"]:
        with torch.no_grad():
            theirs.weight.copy_(random(shape[1], seed=5))
            theirs.bias.copy_(random(shape[1], seed=6))
    ours.load_state_dict(theirs.state_dict())
    tolerance = TOLERANCE[dtype]
    for step in range(3):
        for training in (True, False):
            results = []
            for layer in (ours.train(training), theirs.train(training)):
                x = (2 * random(*shape, dtype=dtype, seed=step) + 1).requires_grad_()
                y = layer(x)
                inputs = (x, *layer.parameters())
                results.append(
                    (y, *torch.autograd.grad(y, inputs, random(*shape, dtype=dtype, seed=9)), *layer.buffers())
                )
            for a, b in zip(*results, strict=True):
                close(a, b, tolerance)


@pytest.mark.parametrize("eps", [0.0, 1e-5, 0.3])
@pytest.mark.parametrize(("dims", "shape"), SHAPES[:2] + SHAPES[3:])
def test_equals_the_papers_loops(dims, shape, eps):
    x, w, b, g = random(*shape), random(shape[1], seed=1), random(shape[1], seed=2), random(*shape, seed=3)
    leaves = [t.clone().requires_grad_() for t in (x, w, b)]
    y = batch_norm(*leaves, eps=eps)
    expected, _, _ = reference.batch_norm(x.numpy(), w.numpy(), b.numpy(), eps)
    close(y, torch.from_numpy(expected), 1e-12)
    slow = reference.batch_norm_backward(x.numpy(), w.numpy(), eps, g.numpy())
    # Once by the kernel, once by the closed form that create_graph takes: both are our backward.
    for create_graph in (False, True):
        grads = torch.autograd.grad(y, leaves, g, retain_graph=True, create_graph=create_graph)
        for ours, theirs in zip(grads, slow, strict=True):
            close(ours, torch.as_tensor(theirs), 1e-11)


@pytest.mark.parametrize("eps", [0.0, 1e-5, 0.3])
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("shape", [(5, 2), (4, 2, 3), (3, 2, 2, 2), (2, 2, 2, 1, 2)])
def test_gradcheck_and_gradgradcheck(shape, affine, eps):
    inputs = [random(*shape).requires_grad_()]
    if affine:
        inputs += [random(2, seed=s).requires_grad_() for s in (1, 2)]

    def function(*tensors):
        return batch_norm(*tensors, eps=eps)

    assert gradcheck(function, inputs)
    assert gradgradcheck(function, inputs)


@pytest.mark.parametrize("kept", [nullcontext, gradients_last])
@pytest.mark.parametrize("eps", [0.0, 0.3])
def test_closed_form_backward_is_right_as_the_only_path(eps, kept):
    """The map (g, x, w) -> (dL/dx, dL/dw, dL/db) by itself, with no kernel of torch's in it."""
    g, x, w = (
        random(4, 2, 3).requires_grad_(),
        random(4, 2, 3, seed=1).requires_grad_(),
        random(2, seed=2).requires_grad_(),
    )

    def closed_form(g, x, w):
        var, mean = torch.var_mean(x.detach(), dim=(0, 2), correction=0)
        return BatchNormGrad.apply(g, x, w, mean, (var + eps).rsqrt(), eps, None)

    for ours, theirs in zip(
        closed_form(g, x, w),
        reference.batch_norm_backward(*(t.detach().numpy() for t in (x, w)), eps, g.detach().numpy()),
        strict=True,
    ):
        close(ours.detach(), torch.as_tensor(theirs), 1e-12)
    # Central differences move the statistics, so they are taken anew; autograd must give the same.
    with kept():
        assert gradcheck(closed_form, (g, x, w))


@pytest.mark.parametrize("written", ["by autograd", "in no_grad", "in data"])
@pytest.mark.parametrize("which", [0, 1], ids=["input", "weight"])
def test_a_gradient_written_into_keeps_its_derivatives(which, written):
    """As in torch: gradients clipped in place after a penalty was made of them."""
    x = random(6, 3).requires_grad_()
    found = []
    for layer in (BatchNorm1d(3).double(), nn.BatchNorm1d(3).double()):
        grads = torch.autograd.grad(layer(x).sin().sum(), [x, layer.weight], create_graph=True)
        penalty = sum(g.clone().pow(3).sum() for g in grads)
        if written == "by autograd":
            penalty = penalty + grads[which].mul_(2.0).sum()
        else:
            with torch.no_grad():
                (grads[which] if written == "in no_grad" else grads[which].data).mul_(0.5)
        found.append(torch.autograd.grad(penalty, [x, layer.weight]))
    for ours, theirs in zip(*found, strict=True):
        close(ours, theirs, 1e-12)


def loss(x, w, b):
    y = batch_norm(x, w, b, eps=0.1)
    return (y.sin() * torch.arange(1.0, y.numel() + 1, dtype=y.dtype).view_as(y)).sum()


def test_third_derivative_equals_central_differences():
    x, w, b, v, u = (random(*s, seed=i) for i, s in enumerate([(5, 2, 2), (2,), (2,), (5, 2, 2), (5, 2, 2)]))

    def second(x):
        x = x.detach().requires_grad_()
        (grad,) = torch.autograd.grad(loss(x, w, b), x, create_graph=True)
        (hv,) = torch.autograd.grad((grad * v).sum(), x, create_graph=True)
        return x, hv

    leaf, hv = second(x)
    (third,) = torch.autograd.grad((hv * u).sum(), leaf)
    h = 1e-5
    numeric = ((second(x + h * u)[1] - second(x - h * u)[1]) / (2 * h)).detach()
    # d/dx <u, H v> and dH[u] v are the same by the symmetry of third derivatives.
    close(third, numeric, 1e-7)


@pytest.mark.parametrize("order", ["jvp", "grad of jvp", "jvp of grad", "jvp of jvp"])
def test_every_nesting_of_torch_func_equals_central_differences(order):
    from torch.func import grad, jvp

    x, w, b, v = random(5, 2, 2), random(2, seed=1), random(2, seed=2), random(5, 2, 2, seed=3)

    def f(x):
        return loss(x, w, b)

    def directional(x):
        return jvp(f, (x,), (v,))[1]

    h = 1e-5
    if order == "jvp":
        found, numeric = directional(x), (f(x + h * v) - f(x - h * v)) / (2 * h)
    elif order == "jvp of jvp":
        found = jvp(directional, (x,), (v,))[1]
        numeric = (directional(x + h * v) - directional(x - h * v)) / (2 * h)
    else:
        found = grad(directional)(x) if order == "grad of jvp" else jvp(grad(f), (x,), (v,))[1]
        numeric = (grad(f)(x + h * v) - grad(f)(x - h * v)) / (2 * h)
    close(found, numeric, 1e-7)


class TestInvariances:
    """S-BN-4 at eps = 0, to 1e-12."""

    x, w, g = random(64, 8), random(6, 8, seed=1), random(64, 6, seed=2)

    def gradient(self, w, bias=0.0):
        w = w.clone().requires_grad_()
        y = (self.x @ w.T + bias).requires_grad_()
        y.retain_grad()
        batch_norm(y, eps=0.0).backward(self.g)
        return w.grad, y.grad, y.detach()

    @pytest.mark.parametrize("a", [1e-3, 7.0, 1e4])
    def test_scale_of_the_weights_does_not_matter(self, a):
        close(batch_norm(self.x @ (a * self.w).T, eps=0.0), batch_norm(self.x @ self.w.T, eps=0.0), 1e-12)
        close(self.gradient(a * self.w)[0] * a, self.gradient(self.w)[0], 1e-12)

    def test_bias_before_the_layer_has_no_gradient(self):
        _, grad_y, _ = self.gradient(self.w, bias=3.0)
        assert grad_y.sum(0).abs().max() <= 1e-12 * grad_y.abs().sum(0).max()

    def test_gradient_is_orthogonal_to_output_and_weights(self):
        grad_w, grad_y, y = self.gradient(self.w)
        yh = batch_norm(y, eps=0.0)
        assert (grad_y * yh).sum(0).abs().max() <= 1e-12 * (grad_y * yh).abs().sum(0).max()
        assert (grad_w * self.w).sum(1).abs().max() <= 1e-12 * (grad_w * self.w).abs().sum(1).max()


def test_eps_zero_trains_where_torch_refuses():
    x = random(8, 3)
    layer = BatchNorm1d(3, eps=0.0, dtype=torch.float64)
    assert (layer(x).var(0, correction=0) - 1).abs().max() <= 1e-12


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_large_mean_in_float32_is_no_worse_than_torch(compiled):
    x = (random(64, 4, 8, 8) + 1e4).float()
    exact = batch_norm(x.double())
    layers = BatchNorm2d(4), nn.BatchNorm2d(4)
    errors = []
    for layer in layers:
        run = torch.compile(layer, backend="aot_eager") if compiled else layer
        errors.append((run(x).double() - exact).abs().max())
    assert errors[0] <= errors[1]


def test_large_mean_in_float32_under_torch_func_is_no_worse_than_torch():
    x, g = (random(64, 4, 8, 8) + 1e4).float(), random(64, 4, 8, 8, seed=1).float()

    def vjp(function, x, g):
        y, back = torch.func.vjp(function, x)
        return y, back(g)[0]

    exact = vjp(lambda x: batch_norm(x), x.double(), g.double())
    ours = vjp(lambda x: batch_norm(x), x, g)
    theirs = vjp(lambda x: nn.functional.batch_norm(x, None, None, training=True), x, g)
    for a, b, e in zip(ours, theirs, exact, strict=True):
        assert (a.double() - e).abs().max() <= (b.double() - e).abs().max()


def test_state_dicts_travel_both_ways():
    ours, theirs = BatchNorm2d(3), nn.BatchNorm2d(3)
    for source, target in ((ours, theirs), (theirs, ours)):
        source(random(4, 3, 2, 2, dtype=torch.float32))
        target.load_state_dict(source.state_dict())
        assert list(source.state_dict()) == list(target.state_dict())
        for a, b in zip(source.state_dict().values(), target.state_dict().values(), strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize("training", [True, False])
def test_nan_propagates_as_in_torch(training):
    x = random(6, 3, dtype=torch.float32)
    x[2, 1] = float("nan")
    ours, theirs = BatchNorm1d(3).train(training), nn.BatchNorm1d(3).train(training)
    a, b = ours(x), theirs(x)
    assert torch.equal(a.isnan(), b.isnan())
    assert a.isnan().any()
    for p, q in zip(ours.buffers(), theirs.buffers(), strict=True):
        assert torch.equal(p.isnan(), q.isnan())


BAD = [
    (BatchNorm1d, (1, 3), torch.float32, ValueError, "more than one value per channel"),
    (BatchNorm2d, (1, 3, 1, 1), torch.float32, ValueError, "more than one value per channel"),
    (BatchNorm2d, (4, 3, 2, 2), torch.int64, TypeError, "x.float()"),
    (BatchNorm2d, (4, 3), torch.float32, ValueError, "Use BatchNorm1d"),
    (BatchNorm1d, (4, 3, 2, 2), torch.float32, ValueError, "Use BatchNorm2d"),
    (BatchNorm3d, (4,), torch.float32, ValueError, "channels are dimension 1"),
    (BatchNorm2d, (4, 5, 2, 2), torch.float32, ValueError, "num_features=5"),
]


@pytest.mark.parametrize(("cls", "shape", "dtype", "error", "advice"), BAD)
def test_bad_input_is_one_message_without_partial_effect(cls, shape, dtype, error, advice):
    layer = cls(3)
    before = copy.deepcopy(layer.state_dict())
    with pytest.raises(error) as caught:
        layer(torch.ones(shape, dtype=dtype))
    message = str(caught.value)
    assert cls.__name__ in message
    assert str(tuple(shape)) in message
    assert advice in message
    assert all(torch.equal(a, b) for a, b in zip(before.values(), layer.state_dict().values(), strict=True))


@pytest.mark.parametrize("function", [batch_norm, lambda x, w=None: lp_norm(x, w, p=1)], ids=["batch_norm", "lp_norm"])
def test_the_pure_functions_check_their_input_too(function):
    for shape, error in (((1, 3), "more than one value"), ((4,), "takes inputs of shape"), ((4, 2), "3 channels")):
        with pytest.raises(ValueError, match=error):
            function(torch.ones(shape), torch.ones(3))
    with pytest.raises(TypeError, match=r"x\.float\(\)"):
        function(torch.ones(4, 3, dtype=torch.int32))


def test_a_dtype_torch_refuses_leaves_the_counter_alone():
    layer = BatchNorm1d(3)
    with pytest.raises(RuntimeError):
        layer(random(4, 3))
    assert layer.num_batches_tracked == 0


@pytest.mark.parametrize("momentum", [0.2, None])
def test_without_a_counter_the_average_moves_as_torchs_does(momentum):
    layers = BatchNorm1d(3, momentum=momentum), nn.BatchNorm1d(3, momentum=momentum)
    for layer in layers:
        layer.num_batches_tracked = None
        layer(random(8, 3, dtype=torch.float32))
    assert torch.equal(layers[0].running_mean, layers[1].running_mean)


def test_negative_eps_is_refused():
    with pytest.raises(ValueError, match="must not be negative; got -1"):
        BatchNorm1d(3, eps=-1.0)
