"""Every layer under the things people do to layers: vmap, compile, autocast, fx, export, copies."""

import copy
import io
import math
import pickle

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, stack_module_state, vmap

from normscope import norms

MAKERS = {
    "batch": lambda **kw: norms.BatchNorm2d(3, **kw),
    "batch, momentum=None": lambda **kw: norms.BatchNorm2d(3, momentum=None, **kw),
    "noisy": lambda **kw: norms.NoisyBatchNorm2d(3, seed=1, **kw),
    "l1": lambda **kw: norms.LpNorm2d(3, p=1, **kw),
    "l2, momentum=None": lambda **kw: norms.LpNorm2d(3, p=2, momentum=None, **kw),
    "linf": lambda **kw: norms.LpNorm2d(3, p=math.inf, **kw),
    "l2 centered": lambda **kw: norms.LpNorm2d(3, p=2, centered=True, **kw),
    "noise": lambda **kw: norms.CovariateNoise(3, seed=1),
    "rms": lambda **kw: norms.RMSNorm(3, **kw),
    "instance": lambda **kw: norms.InstanceNorm(3, **kw),
}
every_layer = pytest.mark.parametrize("name", MAKERS)


def images(n=6, seed=0, dtype=torch.float64):
    draws = torch.randn(n, 3, 4, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (1.5 * draws + 0.5).to(dtype)


def assert_same_state(a, b, tolerance=1e-12):
    for (key, p), q in zip(a.state_dict().items(), b.state_dict().values(), strict=True):
        assert (p.double() - q.double()).abs().max() <= tolerance, key


def step(layer, x, run=None):
    """Output, input gradient and parameter gradients of one training step of `layer`, called as `run`."""
    x = x.detach().clone().requires_grad_()
    y = (layer if run is None else run)(x)
    grads = torch.autograd.grad(y.double().sin().sum(), (x, *layer.parameters()))
    return y.detach(), *grads


def assert_close(a, b, tolerance):
    for p, q in zip(a, b, strict=True):
        assert p.dtype == q.dtype
        assert (p - q).abs().max() <= tolerance * max(1.0, q.abs().max().item())


@every_layer
def test_vmap_over_members_with_their_own_state_equals_each_alone(name):
    """Stacked parameters and buffers, running statistics updated per member, gradients per member."""
    members = [MAKERS[name](dtype=torch.float64) for _ in range(3)]
    for i, member in enumerate(members):
        with torch.no_grad():
            for parameter in member.parameters():
                parameter.add_(0.3 * i)
            if hasattr(member, "noise_state"):
                member.noise_state[0] += i
    alone = [copy.deepcopy(member) for member in members]
    parameters, buffers = stack_module_state(members)
    base = copy.deepcopy(members[0])

    def loss(parameters, buffers, x):
        return functional_call(base, (parameters, buffers), (x,)).sin().sum()

    for t in range(3):
        x = images(seed=t)
        grads = vmap(grad(loss), in_dims=(0, 0, None))(parameters, buffers, x)
        for i, member in enumerate(alone):
            alone_loss = member(x).sin().sum()
            for key, parameter in member.named_parameters():
                (expected,) = torch.autograd.grad(alone_loss, parameter, retain_graph=True)
                assert (grads[key][i] - expected).abs().max() <= 1e-10
    for i, member in enumerate(alone):
        for key, buffer in member.named_buffers():
            assert (buffers[key][i].double() - buffer.double()).abs().max() <= 1e-12, key


@every_layer
def test_gradients_to_second_order(name):
    layer = MAKERS[name](dtype=torch.float64)
    state = copy.deepcopy(layer.state_dict())

    def function(x, *parameters):
        buffers = {key: state[key].clone() for key, _ in layer.named_buffers()}
        names = [key for key, _ in layer.named_parameters()]
        return functional_call(layer, {**dict(zip(names, parameters, strict=True)), **buffers}, (x,))

    inputs = [images(2)[:, :, :2, :2].clone().requires_grad_()]
    inputs += [p.detach().clone().requires_grad_() for p in layer.parameters()]
    assert torch.autograd.gradcheck(function, inputs)
    assert torch.autograd.gradgradcheck(function, inputs)


@every_layer
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_compiled_as_one_graph_equals_eager(name, backend):
    layer = MAKERS[name](dtype=torch.float64)
    eager = copy.deepcopy(layer)
    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True, backend=backend)
    for t in range(3):
        assert_close(step(layer, images(seed=t), compiled), step(eager, images(seed=t)), 1e-12)
    assert_same_state(layer, eager)
    layer.eval()
    assert_close([compiled(images())], [eager.eval()(images())], 1e-12)


def test_two_orders_of_lp_compile_in_one_process():
    torch._dynamo.reset()
    for p in (1, 2, math.inf):
        layer = norms.LpNorm2d(3, p=p)
        x = images(dtype=torch.float32)
        expected = copy.deepcopy(layer)(x)
        assert_close([torch.compile(layer, fullgraph=True, backend="aot_eager")(x)], [expected], 1e-6)


@every_layer
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["fp16", "bf16"])
def test_autocast_keeps_statistics_in_float32(name, dtype):
    layer = MAKERS[name]()
    wide = copy.deepcopy(layer)
    x = images(dtype=dtype)
    with torch.autocast("cpu", dtype=dtype):
        y, *grads = step(layer, x)
    assert y.dtype == grads[0].dtype == dtype
    expected, *wide_grads = step(wide, x.float())
    ulp = torch.finfo(dtype).eps
    assert (y.float() - expected).abs().max() <= 2 * ulp * expected.abs().max()
    for ours, theirs in zip(grads, wide_grads, strict=True):
        assert (ours.float() - theirs).abs().max() <= 4 * ulp * max(1.0, theirs.abs().max())
    assert all(b.dtype == torch.float32 for b in layer.buffers() if b.is_floating_point())
    # Were the statistics taken in half precision, they would be off by an ulp of half, 1e-3 or more.
    assert_same_state(layer, wide, tolerance=1e-6)


def test_autocast_second_order_and_half_parameters():
    layer, x = norms.BatchNorm2d(3, dtype=torch.bfloat16), images(dtype=torch.bfloat16).requires_grad_()
    (first,) = torch.autograd.grad(layer(x).float().sin().sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.float().square().sum(), x)
    exact = images(dtype=torch.bfloat16).double().requires_grad_()
    (g,) = torch.autograd.grad(norms.batch_norm(exact).sin().sum(), exact, create_graph=True)
    (expected,) = torch.autograd.grad(g.square().sum(), exact)
    assert second.dtype == torch.bfloat16
    assert (second.double() - expected).abs().max() <= 0.05 * expected.abs().max()


@every_layer
def test_channels_last_is_kept_and_changes_nothing(name):
    layer = MAKERS[name](dtype=torch.float64)
    other = copy.deepcopy(layer)
    x = images()
    rows = x.contiguous(memory_format=torch.channels_last)
    y = layer(rows)
    if name != "instance":  # torch.nn.GroupNorm decides that one
        assert y.is_contiguous(memory_format=torch.channels_last)
    assert_close([y], [other(x)], 1e-12)
    assert_close(step(layer, rows), step(other, x), 1e-12)


@every_layer
def test_fx_traces_a_leaf_that_follows_the_mode(name):
    model = nn.Sequential(nn.Conv2d(3, 3, 1), MAKERS[name](), nn.ReLU())
    before = copy.deepcopy(model.state_dict())
    traced = torch.fx.symbolic_trace(model)
    assert [node.target for node in traced.graph.nodes if node.op == "call_module"] == ["0", "1", "2"]
    assert all(torch.equal(a, b) for a, b in zip(before.values(), model.state_dict().values(), strict=True))
    twin = copy.deepcopy(model)
    x = images(dtype=torch.float32)
    assert torch.equal(traced(x), twin(x))
    assert_same_state(traced, twin)
    assert torch.equal(traced.eval()(x), twin.eval()(x))


@every_layer
@pytest.mark.parametrize("training", [True, False])
def test_export_runs_and_carries_the_buffers(name, training):
    layer = MAKERS[name]().train(training)
    twin = copy.deepcopy(layer)
    x = images(dtype=torch.float32)
    program = torch.export.export(layer, (x,)).module(check_guards=False)
    for _ in range(2):
        assert_close([program(x)], [twin(x)], 1e-6)
    for (key, a), b in zip(twin.named_buffers(), program.buffers(), strict=True):
        assert torch.allclose(a, b), key


@every_layer
def test_export_in_training_with_any_batch_size(name):
    layer = MAKERS[name]()
    twin = copy.deepcopy(layer)
    x = images(dtype=torch.float32)
    program = torch.export.export(layer, (x,), dynamic_shapes=({0: torch.export.Dim("n", min=2)},))
    larger = images(9, dtype=torch.float32)
    assert_close([program.module(check_guards=False)(larger)], [twin(larger)], 1e-6)


@every_layer
def test_deepcopy_and_pickle_go_on_as_the_original(name):
    layer = MAKERS[name]()
    layer(images(dtype=torch.float32))
    saved = io.BytesIO()
    torch.save(layer.state_dict(), saved)
    saved.seek(0)
    restored = MAKERS[name]()
    restored.load_state_dict(torch.load(saved, weights_only=True))
    copies = [copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), restored]
    x = images(seed=1, dtype=torch.float32)
    expected = layer(x)
    for other in copies:
        assert torch.equal(other(x), expected)
        assert_same_state(other, layer, tolerance=0.0)


@every_layer
def test_repr_says_what_it_is(name):
    layer = MAKERS[name]()
    assert repr(layer).replace("\n  ", "").startswith(f"{type(layer).__name__}(3")
