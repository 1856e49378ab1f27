"""Reading a graph runs the forward: the model is bit for bit as it was, whatever that writes, also where it raises."""

import copy
import random
import threading
from collections import OrderedDict, deque
from queue import Queue

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import normscope as ns

N = 40


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(20, N), nn.Linear(N, 5)

    def head(self, x: Tensor) -> Tensor:
        return self.b(torch.relu(self.a(x)))

    def write(self, x: Tensor) -> None:
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        self.write(x)
        return self.head(x)


class Momentum(Base):
    """MoCo's: a frozen encoder follows the trained one, and is larger than all that is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.key = copy.deepcopy(self.a).requires_grad_(False)
        nn.init.zeros_(self.key.weight)
        self.larger = nn.Linear(100, 100).requires_grad_(False)
        self.register_buffer("queue", torch.zeros(5, 8))
        self.register_buffer("at", torch.zeros(1, dtype=torch.long))

    def write(self, x: Tensor) -> None:
        with torch.no_grad():
            for ours, its in zip(self.a.parameters(), self.key.parameters(), strict=True):
                its.mul_(0.99).add_(ours, alpha=0.01)
            for parameter in self.larger.parameters():
                parameter.data = 0.5 * parameter.data
        self.queue[:, 0] = 1.0
        self.at += 1


class Clipped(Base):
    """As the critic of a Wasserstein GAN."""

    def write(self, x: Tensor) -> None:
        for parameter in self.parameters():
            parameter.data.clamp_(-1e-3, 1e-3)
        next(self.parameters()).data.numpy()[0] = 7


class Teacher(Base):
    """A network that a list keeps out of the parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = [nn.Sequential(nn.Linear(20, N), nn.BatchNorm1d(N))]

    def write(self, x: Tensor) -> None:
        for parameter in self.hidden[0].parameters():
            parameter.data.add_(1)
        self.hidden[0][1].running_mean += 1
        self.hidden[0].eval()


class Meter:
    __slots__ = ("__dict__", "count", "unset")

    def __init__(self) -> None:
        self.count, self.total, self.values = 0, 0.0, np.zeros(3)


class Attributes(Base):
    """Proxies go into everything that can hold one."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.calls = None, 0
        self.meter, self.recent = Meter(), deque([1, 2], maxlen=2)
        self.nested = {"list": [{"deeper": []}], "tensor": {"of": torch.ones(3)}}
        self.ordered, self.tuple, self.chosen = OrderedDict(a=1, b=2), ([],), {1}

    def write(self, x: Tensor) -> None:
        self.last, self.calls = x, self.calls + 1
        self.new = x
        self.a.weight.seen = x
        self.meter.count += 1
        self.meter.total, self.meter.unset = self.meter.total + x, x
        self.meter.values[0] = 5
        self.recent.append(x)
        self.nested["list"][0]["deeper"].append(x)
        self.nested["tensor"]["of"].add_(1)
        self.ordered.move_to_end("a")
        self.tuple[0].append(x)
        self.chosen.add(2)


class Modes(Base):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(N)

    def write(self, x: Tensor) -> None:
        self.norm.eval()
        self.training = False
        self.a.requires_grad_(False)
        self.a.bias = None
        torch.rand(3), random.random(), np.random.rand()  # noqa: NPY002
        torch.set_grad_enabled(True)

    def head(self, x: Tensor) -> Tensor:
        return self.b(torch.relu(self.norm(self.a(x))))


def raising(kind: type[Base]) -> type[Base]:
    """The forward of `kind`, that then raises, so that torch.export tries after torch.fx."""

    class Raising(kind):
        def head(self, x: Tensor) -> Tensor:
            raise KeyError("nothing to see")

    return Raising


def state(model: nn.Module) -> list[object]:
    """All that a model holds, values and identities."""
    found: list[object] = [model.training, [m.training for m in model.modules()]]
    hidden = getattr(model, "hidden", [])
    for module in (model, *hidden):
        for holder in (dict(module.named_parameters()), dict(module.named_buffers())):
            for name, tensor in holder.items():
                described = (name, id(tensor), tensor._version, tensor.requires_grad, tensor.data_ptr(), vars(tensor))
                found.append((*described, tensor.tolist()))
        found += [sorted(vars(each)) for each in module.modules()]
    for name, value in vars(model).items():
        if not name.startswith("_") and name != "meter":
            found.append((name, id(value), repr(value)))
    if meter := getattr(model, "meter", None):
        found.append((meter.count, meter.total, meter.values.tolist(), hasattr(meter, "unset")))
    found += [torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()]  # noqa: NPY002
    return found


KINDS = (Momentum, Clipped, Teacher, Attributes, Modes)


@pytest.mark.parametrize("kind", [*KINDS, *map(raising, KINDS)])
@pytest.mark.parametrize("batch", [False, True])
def test_a_model_is_as_it_was(kind, batch):
    torch.manual_seed(0)
    model = kind()
    x = torch.randn(16, 20) if batch else None
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    before, grads = state(model), [(id(p.grad), p.grad.tolist()) for p in model.parameters()]
    try:
        ns.predict(model, (20,), batch=x)
        answered = True
    except ns.prediction.UnknownOperation:
        answered = False
    assert answered == (kind in KINDS)
    assert state(model) == before
    assert [(id(p.grad), p.grad.tolist()) for p in model.parameters()] == grads
    assert torch.is_grad_enabled()


def test_what_threads_share_is_theirs():
    """Another thread may fill a queue meanwhile, which is not to be undone."""

    class Shared(Base):
        def __init__(self) -> None:
            super().__init__()
            self.queue = Queue()

        def write(self, x: Tensor) -> None:
            filler = threading.Thread(target=self.queue.put, args=(1,))
            filler.start()
            filler.join()

    model = Shared()
    ns.predict(model, (20,))
    assert model.queue.get_nowait() == 1


def test_parameters_are_chosen_among_the_models_own():
    model = Momentum()
    own = {id(p) for p in model.b.parameters()}
    by_object = ns.predict(model, (20,), parameters=lambda name, p: id(p) in own)
    assert by_object.lambda_max == ns.predict(model, (20,), parameters=lambda name, p: name[0] == "b").lambda_max


def test_two_predictions_are_the_same():
    """The second does not start from what the first has written."""
    model = Momentum()
    assert ns.predict(model, (20,)).to_json() == ns.predict(model, (20,)).to_json()
