"""The first forward: modules are found in what holds them, and what is not lent is refused before it changes."""

import collections
import functools
import types
import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import normscope as ns

X = torch.randn(16, 6, generator=torch.Generator().manual_seed(0))
Y = torch.randint(3, (16,), generator=torch.Generator().manual_seed(1))


class Holder:
    def __init__(self, held):
        self.held = held


class Slotted:
    __slots__ = ("held",)

    def __init__(self, held):
        self.held = held


class Net(nn.Module):
    """A BatchNorm that no module holds, called by what `hold` makes of it."""

    def __init__(self, hold, norm):
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)
        self.call = hold(norm)

    def forward(self, x):
        return self.last(F.silu(self.call(self.first(x))))


class Calling(Holder):
    def __call__(self, x):
        held = self.held
        while not callable(held):
            held = held[0] if isinstance(held, (list, tuple)) else held.held
        return held(x)


FOUND = {
    "object": Calling,
    "object in an object": lambda norm: Calling(Holder(norm)),
    "slots": lambda norm: Calling(Slotted(norm)),
    "list in an object": lambda norm: Calling([(norm,)]),
    "partial": functools.partial,
    "closure": lambda norm: lambda x: norm(x),
    "method": lambda norm: norm.forward,
    "dict key": lambda norm: (lambda keys: lambda x: next(iter(keys))(x))({norm: 1}),
    "chain of maps": lambda norm: (lambda maps: lambda x: maps["n"](x))(collections.ChainMap({"n": norm})),
    "namespace": lambda norm: (lambda space: lambda x: space.n(x))(types.SimpleNamespace(n=norm)),
    "weak set": lambda norm: (lambda held: lambda x: next(iter(held))(x))(weakref.WeakSet([norm])),
}


def state(norm):
    return [t.clone() for t in norm.state_dict().values()], [id(t) for t in (*norm.parameters(), *norm.buffers())]


def unchanged(before, after):
    return before[1] == after[1] and all(map(torch.equal, before[0], after[0]))


@pytest.mark.parametrize("name", FOUND)
def test_a_module_is_found_in_what_holds_it(name):
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(8)
    net = Net(FOUND[name], norm)
    before = state(norm)
    alone = nn.Sequential(net.first, nn.BatchNorm1d(8), nn.SiLU(), net.last)
    alone[1].requires_grad_(False)
    expected = ns.measure(alone, F.cross_entropy, (X, Y)).lambda_max
    assert ns.measure(net, F.cross_entropy, (X, Y)).lambda_max == pytest.approx(expected, rel=1e-3)
    assert unchanged(before, state(norm))


class OfTheClass(nn.Module):
    norm = None

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 3)

    def forward(self, x):
        return self.linear(type(self).norm[0](x))


def test_buffers_of_a_module_that_nothing_leads_to_are_put_back():
    norm = nn.BatchNorm1d(6)
    OfTheClass.norm = (norm,)
    before = state(norm)
    assert ns.measure(OfTheClass(), F.cross_entropy, (X, Y)).lambda_max > 0
    assert unchanged(before, state(norm))


def test_parameters_that_an_object_holds_too_are_measured_all_the_same():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    expected = ns.measure(net, F.cross_entropy, (X, Y)).lambda_max
    net.average = Holder(list(net[2].parameters()))
    assert ns.measure(net, F.cross_entropy, (X, Y)).lambda_max == expected


def test_a_counter_in_a_closure_belongs_to_the_program():
    calls = []
    net = nn.Linear(6, 3)
    net.register_forward_hook(lambda *_: calls.append(1))
    ns.measure(net, F.cross_entropy, (X, Y))
    assert calls


class Momentum(nn.Module):
    """A momentum encoder, beside a frozen backbone of `width` x `width`."""

    def __init__(self, width, written, way=lambda weight: weight.mul_(0.9)):
        super().__init__()
        self.query, self.head = nn.Linear(6, 6), nn.Linear(6, 3)
        self.key = nn.Linear(6, 6).requires_grad_(False)
        self.backbone = nn.Linear(width, width).requires_grad_(False)
        self.written, self.way = written, way

    def forward(self, x):
        with torch.no_grad():
            self.way(getattr(self, self.written).weight)
        return self.head(self.query(x) + self.key(x))


def test_a_momentum_encoder_beside_a_large_frozen_part_is_copied():
    net = Momentum(1200, "key")
    before = net.key.weight.clone()
    assert ns.measure(net, F.cross_entropy, (X, Y)).lambda_max > 0
    assert torch.equal(net.key.weight, before)


def add(weight):
    weight += 1.0


@pytest.mark.parametrize("way", [lambda weight: weight.mul_(0.9), add], ids=["method", "operator"])
def test_a_write_into_a_large_frozen_part_is_refused_before_it_is_made(way):
    net = Momentum(1200, "backbone", way)
    before = net.backbone.weight.clone()
    with pytest.raises(ValueError, match=r"writes into backbone\.weight, a tensor of 1,440,000 values"):
        ns.measure(net, F.cross_entropy, (X, Y))
    monitor = ns.Monitor(net, F.cross_entropy, every=1)
    F.cross_entropy(nn.Module.__call__(nn.Sequential(net.query, net.head), X), Y).backward()
    with pytest.warns(UserWarning, match="writes into backbone"):
        monitor.step(X, Y, torch.optim.SGD(net.query.parameters(), 0.1))
    assert torch.equal(net.backbone.weight, before)


def reassign(weight):
    weight.data = weight.data * 0.9


@pytest.mark.parametrize("part", ["key", "backbone"])
def test_memory_that_a_forward_gives_to_a_frozen_part_is_taken_back(part):
    """A momentum encoder of MoCo: its forward assigns `.data`, here of a copied part and of a large one."""
    net, still = Momentum(1200, part, reassign), Momentum(1200, part, lambda weight: None)
    still.load_state_dict(net.state_dict())
    weight = getattr(net, part).weight
    before, address, version = weight.clone(), weight.data_ptr(), weight._version
    sgd = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], 0.1)
    F.cross_entropy(still(X), Y).backward()
    for own, other in zip(net.parameters(), still.parameters(), strict=True):
        own.grad = None if other.grad is None else other.grad.clone()
    losses = []
    for measure in ("light", ["landscape"]):
        monitor = ns.Monitor(net, F.cross_entropy, measure=measure, on_error="raise")
        losses.append(monitor.step(X, Y, sgd).loss)
    assert losses[0] == losses[1]
    assert torch.equal(weight, before)
    assert (weight.data_ptr(), weight._version) == (address, version)


def test_every_pass_of_a_measurement_has_the_same_frozen_part():
    net = Momentum(1200, "key", reassign)
    seen = []
    net.key.register_forward_hook(lambda module, *_: seen.append(float(module.weight.sum())))
    ns.measure(net, F.cross_entropy, (X, Y))
    assert len(seen) > 5
    assert max(seen) - min(seen) <= 1e-6 * abs(seen[0])


class InTwoCalls(Momentum):
    """Its layers are called one by one from outside; the write comes after the first call."""

    def forward(self, batch):
        raise AssertionError

    @staticmethod
    def outputs(model, batch):
        query = model.query(batch[0])
        with torch.no_grad():
            model.way(model.backbone.weight)
        return model.head(query)


def in_the_backward_pass(model, batch):
    query = model.query(batch[0])
    query.register_hook(lambda grad: model.backbone.weight.data.mul_(0.9) and None)
    return model.head(query)


@pytest.mark.parametrize("forward", [InTwoCalls.outputs, in_the_backward_pass], ids=["second call", "backward"])
def test_writes_after_the_first_call_of_a_layer_are_refused_too(forward):
    net = InTwoCalls(1200, "backbone")
    before = net.backbone.weight.clone()
    with pytest.raises(ValueError, match=r"writes into backbone\.weight"):
        ns.measure(net, F.cross_entropy, (X, Y), forward=forward)
    monitor = ns.Monitor(net, F.cross_entropy, forward=forward, measure=["landscape"])
    with pytest.warns(UserWarning, match="writes into backbone"):
        monitor.step((X, Y), lr=0.1)
    assert torch.equal(net.backbone.weight, before)


def test_buffers_of_a_module_that_forward_calls_beside_the_model_are_put_back():
    net, norm = nn.Linear(6, 6), nn.BatchNorm1d(6)
    before = state(norm)

    def forward(model, batch):
        return norm(model(norm(batch[0])))

    ns.measure(net, F.cross_entropy, (X, Y), forward=forward)
    ns.Monitor(net, F.cross_entropy, forward=forward, measure=["landscape"], on_error="raise").step((X, Y), lr=0.1)
    assert unchanged(before, state(norm))


class Lazy(nn.Module):
    """A first forward that creates a buffer; the flag lies in what `make` gives."""

    def __init__(self, make):
        super().__init__()
        self.linear, self.flag = nn.Linear(6, 3), make(False)

    def forward(self, x):
        if not self.flag.held:
            self.register_buffer("scale", torch.full((6,), 2.0))
            self.flag.held = True
        return self.linear(x * self.scale)


@pytest.mark.parametrize("make", [Holder, Slotted])
def test_a_flag_of_a_first_forward_is_undone_with_what_the_forward_created(make):
    net = Lazy(make)
    assert ns.measure(net, F.cross_entropy, (X, Y)).lambda_max > 0
    assert not net.flag.held
    assert not hasattr(net, "scale")
    assert net(X).shape == (16, 3)


def test_layers_made_inside_a_forward_are_no_fault():
    class Making(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(6, 3)

        def forward(self, x):
            if not hasattr(self, "norm"):
                self.norm = nn.BatchNorm1d(6)
            return nn.Tanh()(self.linear(nn.BatchNorm1d(6, affine=False)(self.norm(x))))

    net = Making()
    assert ns.measure(net, F.cross_entropy, (X, Y)).lambda_max > 0
    assert not hasattr(net, "norm")
