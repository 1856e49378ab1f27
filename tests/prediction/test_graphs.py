"""Networks of all shapes through the walker: what goes through, and what is refused by name."""

import gc
import math
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from networks import Dense, ResNet50, Twice
from torch import Tensor, nn
from torch.nn import functional as F

import normscope as ns
from normscope.prediction import UnknownOperation, elementwise_module


def lam(model: nn.Module, shape: tuple[int, ...] = (20,), **options: object) -> float:
    return ns.predict(model, shape, **options).lambda_max


def test_a_hand_written_resnet50():
    found = ns.predict(ResNet50(), (3, 224, 224), loss="cross_entropy")
    assert len([row for row in found.layers if row["type"] in ("Conv2d", "Linear")]) == 54
    assert 0 < found.lambda_max < math.inf
    assert 0 < found.lambda_infinite <= found.lambda_max
    assert any("maxima" in note for note in found.notes)


def test_two_calls_give_the_same_bits():
    net = Dense()
    first, second = (ns.predict(net, (3, 8, 8)).to_json() for _ in range(2))
    assert first == second


def test_the_model_and_the_generators_are_left_alone():
    net = Dense()
    before = {key: value.clone() for key, value in net.state_dict().items()}
    state = torch.get_rng_state()
    ns.predict(net, (3, 8, 8))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())
    assert all(p.grad is None for p in net.parameters())


def test_a_layer_used_twice_is_noted():
    found = ns.predict(Twice(), (50,))
    assert any("'again'" in note or "again uses weights a second time" in note for note in found.notes)
    assert sum(row["layer"] == "again" for row in found.layers) == 2


class Functional(nn.Module):
    """The CNN of the models in functions."""

    def __init__(self, like: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList([layer for layer in like if any(True for _ in layer.parameters())])

    def forward(self, x: Tensor) -> Tensor:
        for i in range(0, len(self.layers) - 1, 2):
            conv, bn = self.layers[i], self.layers[i + 1]
            x = F.conv2d(x, conv.weight, conv.bias, stride=2)
            x = F.batch_norm(x, None, None, bn.weight, bn.bias, training=True).relu()
        x = x.view(x.size(0), -1)
        return F.linear(x, self.layers[-1].weight, self.layers[-1].bias)


def test_what_is_said_of_several_layers_is_said_once():
    stack = [layer for _ in range(3) for layer in (nn.Linear(60, 60), nn.ReLU(), nn.BatchNorm1d(60))]
    notes = ns.predict(nn.Sequential(*stack, nn.Linear(60, 5)), (60,)).notes
    assert [note for note in notes if "normalizes after an activation" in note] == [
        "2 and 2 more: normalizes after an activation; channels were taken to have the same variance."
    ]


def test_functions_are_their_modules():
    net = ns.models.CNN(3, 16, 10, norm="batch", channels=(40, 40))
    assert lam(Functional(net), (3, 16, 16)) == lam(net, (3, 16, 16))


class Asserting(nn.Module):
    """fx cannot trace the assertion; export can."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        assert x.shape[0] > 0
        if x.shape[-1] == 20:
            x = x * 1.0
        return self.inner(x)


def test_what_fx_cannot_trace_goes_through_export():
    inner = ns.models.MLP(20, 5, width=40, norm="batch")
    found = ns.predict(Asserting(inner), (20,), batch_size=16)
    assert found.lambda_max == pytest.approx(lam(inner, (20,), batch_size=16))
    assert any("torch.export" in note for note in found.notes)


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(20, 20)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) if x.sum() > 0 else x


def test_data_dependent_branches_are_refused():
    with pytest.raises(UnknownOperation, match="Branching could not be read.*ns.measure"):
        ns.predict(Branching(), (20,))


class Cube(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.pow(3)


def test_a_custom_operation_is_refused_by_name_and_can_be_declared():
    net = nn.Sequential(nn.Linear(20, 60), Cube(), nn.Linear(60, 5))
    with pytest.raises(UnknownOperation, match="'pow'.*elementwise_module"):
        ns.predict(net, (20,))

    class Declared(Cube):
        pass

    elementwise_module(Declared)
    found = ns.predict(nn.Sequential(net[0], Declared(), net[2]), (20,))
    q = found.layers[0]["q"]
    assert found.layers[1]["qh"] == pytest.approx(15 * q**3)


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (nn.Softmax(1), r"'1' \(Softmax\) has no moment map"),
        (nn.MultiheadAttention(60, 2), "MultiheadAttention"),
        (nn.LSTM(60, 60), "LSTM"),
        (ns.norms.NoisyBatchNorm1d(60), "NoisyBatchNorm1d"),
    ],
)
def test_modules_without_a_map_are_named(layer, words):
    with pytest.raises(UnknownOperation, match=words):
        ns.predict(nn.Sequential(nn.Linear(20, 60), layer, nn.Linear(60, 5)), (20,))


class Sum(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.first, self.second, self.last = nn.Linear(20, 60), nn.Linear(60, 60), nn.Linear(60, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.first(x))
        z = self.first(x)
        h = {
            "double": lambda: h + h,
            "scaled": lambda: 2 * h,
            "same": lambda: z + torch.relu(z),
            "branch": lambda: h + self.second(h),
            "gate": lambda: h * self.second(h),
        }[self.kind]()
        return self.last(h)


def test_sums():
    a, b = Sum("double"), Sum("scaled")
    b.load_state_dict(a.state_dict())
    assert lam(a) == pytest.approx(lam(b))
    rows = {row["layer"]: row for row in ns.predict(Sum("branch"), (20,)).layers}
    assert rows["last"]["qh"] == pytest.approx(rows["second"]["qh"] + rows["second"]["q"])
    assert rows["last"]["qh_xy"] == pytest.approx(rows["second"]["qh_xy"] + rows["second"]["q_xy"])
    assert rows["first"]["qt"] > rows["second"]["qt"] / 2
    with pytest.raises(ValueError, match="not independent"):
        ns.predict(Sum("same"), (20,))
    with pytest.raises(ValueError, match="multiplies two tensors"):
        ns.predict(Sum("gate"), (20,))


def test_what_is_computed_and_dropped_has_no_part():
    assert not any("second time" in note for note in ns.predict(Sum("double"), (20,)).notes)

    class InPlace(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(20, 5)

        def forward(self, x: Tensor) -> Tensor:
            y = self.linear(x)
            y.mul_(2.0)
            return y

    with pytest.raises(UnknownOperation, match="in place without using the result"):
        ns.predict(InPlace(), (20,))


def test_concatenated_channels_keep_their_own_variances_under_a_normalizer():
    """BatchNorm makes the parts of a concatenation equal: as many channels of one kind give the same lambda."""

    class Cat(nn.Module):
        def __init__(self, scale: float) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(20, 30, bias=False), nn.Linear(20, 30, bias=False)
            self.rest = nn.Sequential(nn.BatchNorm1d(60, eps=0.0 + 1e-12), nn.ReLU(), nn.Linear(60, 5))
            self.scale = scale

        def forward(self, x: Tensor) -> Tensor:
            return self.rest(torch.cat([self.a(x), self.scale * self.b(x)], 1))

    one, two = Cat(1.0), Cat(10.0)
    two.load_state_dict(one.state_dict())
    rows = [ns.predict(net, (20,)).layers for net in (one, two)]
    assert rows[0][-1]["qh_xy"] == pytest.approx(rows[1][-1]["qh_xy"])


@pytest.mark.parametrize("norm", ["layer", "group", "rms"])
def test_find_norms_single_samples(norm):
    net = ns.models.MLP(50, 5, width=300, norm=norm)
    found = ns.predict(net, (50,), "half_mse")
    x = torch.randn(128, 50, generator=torch.Generator().manual_seed(0))
    measured = ns.measure(net, ns.losses.half_mse, (x, torch.zeros(128, 5)), hessian=False).lambda_max
    assert found.lambda_max == pytest.approx(measured, rel=0.3)


def test_dropout_and_eval_mode():
    net = nn.Sequential(nn.Linear(20, 60), nn.ReLU(), nn.Dropout(0.5), nn.Linear(60, 5))
    q = ns.predict(net, (20,)).layers[1]["qh"]
    assert q == pytest.approx(2 * ns.predict(net.eval(), (20,)).layers[1]["qh"])


def test_running_statistics_are_used_in_eval_mode():
    net = ns.models.MLP(20, 5, width=60, norm="batch").eval()
    found = ns.predict(net, (20,))
    assert any("eval mode" in note for note in found.notes)
    plain = ns.models.MLP(20, 5, width=60)
    assert found.layers[-1]["qh"] == pytest.approx(ns.predict(plain, (20,)).layers[-1]["qh"], rel=1e-3)


def test_parameters_chooses_what_is_trained():
    net = ns.models.MLP(20, 5, width=60, norm="batch")
    last = ns.predict(net, (20,), parameters=lambda name, p: name.startswith("10."))
    assert last.lambda_max == pytest.approx(last.lambda_infinite, rel=0.01)
    assert sum(row["mean"] for row in last.layers) == pytest.approx(last.layers[-1]["mean"])


def test_deep_batch_norm_stacks_are_warned_of():
    found = ns.predict(ns.models.MLP(50, 5, width=60, depth=30, norm="batch"), (50,), stats="frozen")
    assert any("Squared gradients grow by 1.4" in warning for warning in found.warnings)
    assert not ns.predict(ns.models.MLP(50, 5, width=60, depth=4, norm="batch"), (50,)).warnings


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_left_as_it_was(enabled):
    was = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        ns.predict(nn.Linear(50, 3), (50,))
        assert gc.isenabled() == enabled
        with pytest.raises(ValueError, match="takes 50 features"):
            ns.predict(nn.Linear(50, 3), (40,))
        assert gc.isenabled() == enabled
    finally:
        (gc.enable if was else gc.disable)()


def test_many_threads_predict_one_network_and_others():
    """fx patches the class of all modules while it reads: threads met each other's proxies."""
    nets = [ns.models.MLP(20, 3, width=40, depth=depth, norm="batch") for depth in (2, 3, 3)]
    expected = [ns.predict(net, (20,)).lambda_max for net in nets]
    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(lambda i: ns.predict(nets[i % 3], (20,)).lambda_max, [*range(9), 0, 0, 0]))
    finally:
        sys.setswitchinterval(switch)
    assert found == [*(expected * 3), *(expected[:1] * 3)]
    assert gc.isenabled()


def test_other_threads_call_their_modules_while_a_graph_is_read():
    """Handed to the tracer, their calls were refused as none of the network's modules."""
    other, found = nn.Sequential(nn.Linear(5, 4), nn.Flatten()), []

    class Waits(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = nn.Linear(20, 3)

        def forward(self, x: Tensor) -> Tensor:
            with ThreadPoolExecutor(1) as pool:
                found.append(pool.submit(other, torch.ones(2, 5)).result())
            return self.last(x)

    ns.predict(Waits(), (20,))
    assert torch.equal(found[0], other(torch.ones(2, 5)))
