"""Models that predict cannot answer for: one message each, with the operation, its place and a way that works."""

import functools

import pytest
import torch
from test_side_effects import state
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import normscope as ns
from normscope.prediction import UnknownOperation

N = 40


class Net(nn.Module):
    def __init__(self, run, **modules: nn.Module) -> None:
        super().__init__()
        self.run, self.a, self.b, self.c = run, nn.Linear(20, N), nn.Linear(N, 5), nn.Linear(N, N)
        self.p, self.s = nn.Parameter(torch.ones(N)), nn.Parameter(torch.tensor(1.0))
        self.register_buffer("fixed", torch.randn(N, generator=torch.Generator().manual_seed(0)))
        for name, module in modules.items():
            setattr(self, name, module)

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self, x)


class Block(nn.Module):
    """A forward of its own below the network's."""

    def __init__(self, run) -> None:
        super().__init__()
        self.run = run

    def forward(self, h: Tensor) -> Tensor:
        return self.run(h)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, g):
        return 2 * g


OPERATIONS = {
    "glu": lambda net, x: net.b(F.glu(torch.cat([net.a(x), net.c(torch.relu(net.a(x)))], 1))),
    "softmax": lambda net, x: net.b(net.a(x).softmax(-1)),
    "matmul": lambda net, x: net.b(torch.relu(net.a(x)) @ net.c.weight),
    "einsum": lambda net, x: net.b(torch.einsum("ni,oi->no", net.a(x), net.c.weight)),
    "add": lambda net, x: net.b(torch.relu(net.a(x) + net.p)),
    "mul": lambda net, x: net.b(torch.relu(net.a(x) * net.s.exp())),
    "gt": lambda net, x: net.b(torch.where(net.a(x) > 0, 1.0, 0.0)),
    "normalize": lambda net, x: net.b(F.normalize(net.a(x))),
    "topk": lambda net, x: net.b(net.a(x).topk(N).values),
    "randn_like": lambda net, x: net.b(net.a(x) + torch.randn_like(net.a(x))),
    "chunk": lambda net, x: net.b(torch.cat(net.a(x).chunk(2, 1), 1)),
    "unbind": lambda net, x: torch.stack([net.b(row) for row in net.a(x)]),
    "fft": lambda net, x: net.b(torch.fft.fft(net.a(x)).real),
    "detach": lambda net, x: net.b(net.a(x).detach()),
    "long": lambda net, x: net.b(F.embedding(x.long(), net.c.weight).mean(1)),
    "autograd function": lambda net, x: net.b(Doubled.apply(net.a(x))),
    "in place": lambda net, x: net.b((lambda h: (h.__setitem__((slice(None), 0), 0.0), h)[1])(net.a(x))),
    "'clamp' \\(in 'block'\\)": lambda net, x: net.b(net.block(net.a(x))),
    "division by zero": lambda net, x: net.a(x) * (1 / len([])),
    "no attribute 'nowhere'": lambda net, x: net.nowhere(x),
}


@pytest.mark.parametrize("words", OPERATIONS)
def test_operations_are_named(words):
    model = Net(OPERATIONS[words], block=Block(lambda h: h.clamp(-1, 1)))
    before = state(model)
    with pytest.raises(UnknownOperation, match=f"(?s){words}.*ns.measure") as refused:
        ns.predict(model, (20,))
    assert "object has no attribute" not in str(refused.value) or words.startswith("no attribute")
    assert state(model) == before


ANSWERED = {
    "a loop": lambda net, x: net.b(functools.reduce(lambda h, _: torch.relu(net.c(h)), range(2), net.a(x))),
    "a buffer's moments": lambda net, x: net.b(torch.relu((net.a(x) - net.fixed.mean()) / net.fixed.std())),
    "a checkpoint": lambda net, x: checkpoint(lambda h: net.b(torch.relu(h)), net.a(x), use_reentrant=False),
    "a shape": lambda net, x: net.b(net.a(x) if x.shape[0] > 2 else x),
}


@pytest.mark.parametrize("named", ANSWERED)
def test_what_only_looks_odd_is_answered(named):
    assert ns.predict(Net(ANSWERED[named]), (20,)).lambda_max > 0


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (lambda net, x: net.e(x).mean(1), "'e', Embedding"),
        (lambda net, x: F.embedding(x, net.e.weight).mean(1), "'e', embedding"),
        (lambda net, x: net.e(x).mean(1) if x.shape[0] > 2 else x, "'e', embedding"),
        (lambda net, x: net.e(x if x.dtype == torch.long else x.round()).mean(1), "'e', Embedding"),
    ],
)
def test_token_models(run, words):
    model = Net(run, e=nn.Embedding(100, 5))
    said = rf"predict needs one float input; this model's first input is an integer index \({words}\).*ns.measure"
    with pytest.raises(UnknownOperation, match=f"(?i){said}"):
        ns.predict(model, (16,))


class Branch(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        return h if h.sum() > 0 else -h


def test_an_unreadable_graph_is_placed():
    model = nn.Sequential(nn.Linear(20, N), nn.Sequential(Branch()), nn.Linear(N, 5))
    with pytest.raises(UnknownOperation, match=r"at '1.0' \(Branch; test_refusals.py, line \d+: return h if h.sum"):
        ns.predict(model, (20,))


def test_nothing_is_printed(capfd):
    with pytest.raises(UnknownOperation):
        ns.predict(nn.Sequential(nn.Linear(20, N), Branch()), (20,))
    assert capfd.readouterr() == ("", "")


def test_what_is_returned():
    returned = {
        "tuple of 2": lambda net, x: (net.b(net.a(x)), x),
        "dict with the keys logits, loss": lambda net, x: {"logits": net.b(net.a(x)), "loss": None},
        "tensor that its input has no part in": lambda net, x: torch.zeros(3),
    }
    for words, run in returned.items():
        with pytest.raises(UnknownOperation, match=f"returns a {words}; predict needs one tensor.*Wrap the network"):
            ns.predict(Net(run), (20,))
        # By torch.export too.
        with pytest.raises(UnknownOperation, match=f"returns a {words}"):
            ns.predict(Net(lambda net, x, run=run: run(net, x) if x.shape[0] > 2 else x), (20,))


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(20, 5)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.a(x) + y


class Optional(Two):
    def forward(
        self, x: Tensor, mask: Tensor | None = None, *rest: Tensor, scale: float = 2.0, **more: Tensor
    ) -> Tensor:
        h = self.a(x)
        return (h * mask if mask is not None else h) * scale


def test_several_inputs():
    with pytest.raises(UnknownOperation, match="more than one input .'y' beside the first.*ns.measure"):
        ns.predict(Two(), (20,))
    model = Optional()
    plain = nn.Linear(20, 5)
    plain.load_state_dict(model.a.state_dict())
    assert ns.predict(model, (20,), "half_mse").lambda_max == pytest.approx(
        4 * ns.predict(plain, (20,), "half_mse").lambda_max
    )


def quantized() -> nn.Module:
    return torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(20, 5)), {nn.Linear}, dtype=torch.qint8)


def scripted() -> nn.Module:
    return torch.jit.script(nn.Linear(20, 5))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: nn.DataParallel(nn.Linear(20, 5)), r"DataParallel cuts each batch.*ns.predict\(model.module"),
        (lambda: nn.Sequential(nn.DataParallel(nn.Linear(20, 5))), "DataParallel at '0'"),
        (scripted, "TorchScript.*Predict the module that it was made from"),
        (lambda: nn.Sequential(scripted()), "TorchScript at '0'"),
        (quantized, "'0' .Linear. is of torch.ao.*quantized.*ns.measure"),
        (lambda: nn.Linear(20, 5, dtype=torch.complex64), "'weight' holds complex values.*ns.measure"),
        (lambda: nn.LazyLinear(5), "lazy layers.*Run one forward first"),
    ],
)
def test_wrapped_and_converted_models(make, words):
    with pytest.raises(ValueError, match=words):
        ns.predict(make(), (20,))


def test_compiled_models_are_read_through():
    net = nn.Sequential(nn.Linear(20, N), nn.ReLU(), nn.Linear(N, 5))
    expected = ns.predict(net, (20,)).lambda_max
    compiled_inside = nn.Sequential(torch.compile(net[0]), net[1], net[2])
    assert ns.predict(torch.compile(net), (20,)).lambda_max == expected
    assert ns.predict(compiled_inside, (20,)).lambda_max == pytest.approx(expected)
    net.compile()
    assert ns.predict(net, (20,)).lambda_max == expected


def test_a_forward_in_the_place_of_the_classs():
    """torch.fx would read the class's, and answer for another network."""
    net = nn.Sequential(nn.Linear(20, 5))
    before = ns.predict(net, (20,), "half_mse").lambda_max
    net.forward = lambda x: 3 * net[0](x)
    assert ns.predict(net, (20,), "half_mse").lambda_max == pytest.approx(9 * before)


def test_no_module():
    with pytest.raises(TypeError, match=r"model is a torch.nn.Module; got dict"):
        ns.predict({}, (20,))
