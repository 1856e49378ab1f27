"""Tensors that train and are no parameters of the model: named in a note, or refused where the optimizer has them."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import normscope as ns
from normscope.isolation.lending import untouched

X = torch.randn(16, 6, generator=torch.Generator().manual_seed(0))
Y = torch.randint(3, (16,), generator=torch.Generator().manual_seed(1))
HELD = "held constant, though it requires gradients"


class Calls(nn.Module):
    """A linear layer, and a function of its output that is no module."""

    def __init__(self, function):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.function = nn.Linear(6, 4), function

    def forward(self, x):
        return self.function(self.layer(x).tanh())


def weight():
    return torch.randn(4, 3, generator=torch.Generator().manual_seed(2), requires_grad=True)


def held_in_a_closure():
    w = weight()
    return Calls(lambda z: z @ w)


def held_as_a_plain_attribute():
    model = Calls(lambda z: z @ model.w)
    model.w = weight()
    return model


def held_in_a_list():
    model = Calls(lambda z: z @ model.w[0])
    model.w = [weight()]
    return model


def held_by_an_object():
    class Holder:
        w = weight()

    return Calls(lambda z: z @ Holder.w)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (held_in_a_closure, "1 tensor, of shape (4, 3)"),
        (held_by_an_object, "1 tensor, of shape (4, 3)"),
        (held_as_a_plain_attribute, "1 tensor, of shape The model.w (4, 3)"),
        (held_in_a_list, "1 tensor, of shape The model.w (4, 3)"),
    ],
)
@pytest.mark.parametrize("matrix", ["ggn", "hessian"])
def test_a_weight_that_is_no_parameter_is_named_and_stays(make, named, matrix):
    model = make()
    found = ns.measure(model, F.cross_entropy, (X, Y), matrix=matrix)
    (note,) = [note for note in found.notes if HELD in note]
    assert named in note
    registered = nn.Sequential(model.layer, nn.Tanh(), nn.Linear(4, 3, bias=False))
    registered[2].weight.data = weight().detach().T
    whole = ns.measure(registered, F.cross_entropy, (X, Y), matrix=matrix)
    assert whole.lambda_max > 1.02 * found.lambda_max
    assert not [note for note in whole.notes if HELD in note]


def test_the_monitor_names_it_too():
    model = held_in_a_closure()
    monitor = ns.Monitor(model, F.cross_entropy, measure=["landscape", "curvature"], on_error="raise")
    sgd = torch.optim.SGD(model.parameters(), 0.1)
    F.cross_entropy(model(X), Y).backward()
    monitor.step(X, Y, sgd)
    (note,) = [note for note in monitor.notes if HELD in note]
    assert "1 tensor, of shape (4, 3)" in note


def test_what_the_optimizer_trains_outside_the_model_is_refused_where_the_loss_depends_on_it():
    w = weight()
    model = Calls(lambda z: z @ w)
    with pytest.raises(ValueError, match=r"optimizer trains 1 tensor, of shape \(4, 3\).* Register it in the model"):
        ns.measure(model, F.cross_entropy, (X, Y), optimizer=torch.optim.SGD([*model.parameters(), w], 0.1))
    assert w.grad is None


def test_what_the_optimizer_trains_beside_the_model_is_named():
    model, other = Calls(lambda z: z), nn.Linear(5, 2)
    sgd = torch.optim.SGD([*model.parameters(), *other.parameters()], 0.1)
    said = "The optimizer also trains 2 tensors, of shapes (2, 5) and (2,), which are not in the model"
    assert [note for note in ns.measure(model, F.cross_entropy, (X, Y), optimizer=sgd).notes if said in note]
    monitor = ns.Monitor(model, F.cross_entropy, on_error="raise")
    F.cross_entropy(model(X), Y).backward()
    monitor.step(X, Y, sgd)
    assert [note for note in monitor.notes if said in note]


class Weighted(nn.Module):
    """A loss with a learnable weight for each class."""

    def __init__(self):
        super().__init__()
        self.weights = nn.Parameter(torch.ones(4))

    def forward(self, outputs, targets):
        return F.cross_entropy(outputs * self.weights, targets)


def test_parameters_of_the_loss_are_named():
    found = ns.measure(Calls(lambda z: z), Weighted(), (X, Y))
    assert [note for note in found.notes if HELD in note and "(4,)" in note]


class Past(nn.Module):
    """Reads its weight from a list in an object, past the layer that holds it."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3, bias=False)
        self.head = nn.Linear(3, 3)
        self.cache = type("Cache", (), {})()
        self.cache.weights = [self.layer.weight]

    def forward(self, x):
        return self.head(x @ self.cache.weights[0].T)


def test_a_parameter_that_is_read_past_its_layer_is_named():
    found = ns.measure(Past(), F.cross_entropy, (X, Y))
    assert [note for note in found.notes if HELD in note and "layer.weight (3, 6)" in note]


def leaf_of_the_forward(model, batch):
    x = batch[0].clone().requires_grad_()
    (slope,) = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
    return model(x).square().mean() + slope.square().mean()


@pytest.mark.parametrize("matrix", ["ggn", "hessian"])
def test_no_note_on_leaves_that_the_forward_makes_on_batches_and_on_frozen_parts(matrix):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3))
    notes = ns.measure(net, forward=leaf_of_the_forward, batches=(X, Y), matrix="hessian").notes
    notes += ns.measure(net, F.cross_entropy, (X.clone().requires_grad_(), Y), matrix=matrix).notes
    notes += ns.measure(net, F.cross_entropy, (X, Y), parameters=lambda name, _: name[0] == "2", matrix=matrix).notes
    head = torch.optim.SGD(net[2].parameters(), 0.1)
    notes += ns.measure(net, F.cross_entropy, (X, Y), optimizer=head, matrix=matrix).notes
    monitor = ns.Monitor(net, F.cross_entropy, on_error="raise", measure=["landscape", "curvature"])
    F.cross_entropy(net(X), Y).backward()
    monitor.step(X, Y, head)
    assert not [note for note in (*notes, *monitor.notes) if "held constant" in note]


def test_the_copy_of_a_plain_tensor_is_its_own_and_the_tensor_stays():
    model = held_as_a_plain_attribute()
    w, before = model.w, model.w.detach().clone()
    with untouched(model) as lent:
        assert model.w is not w
        assert model.w.requires_grad
        F.cross_entropy(model(X), Y).backward()
        lent.reset()
    assert model.w is w
    assert w.grad is None
    assert torch.equal(w, before)
