"""Attributes that a module may hold and that measuring has to bear, and what must be the same after it."""

import itertools
import random
import sys
import threading
import weakref
from collections import Counter, OrderedDict, UserDict, UserList, defaultdict, deque
from types import SimpleNamespace

import numpy as np
import torch
from torch import nn


def _refuse(*_, **__):
    raise RuntimeError("an override was called")


_METHODS = (
    "update", "clear", "copy", "pop", "popitem", "setdefault", "append", "extend", "insert", "add", "remove", "discard",
    "__setitem__", "__delitem__", "__getitem__", "__iter__", "__len__", "__bool__", "__eq__", "__copy__",
    "__deepcopy__", "__reduce__", "__reduce_ex__", "keys", "values", "items", "__contains__",
)  # fmt: skip


def frozen(kind):
    """A subclass of a container all of whose methods raise."""
    return type(
        f"Frozen{kind.__name__.title()}", (kind,), dict.fromkeys(_METHODS, _refuse) | {"__hash__": object.__hash__}
    )


class Raises:
    """Answers no question."""

    __bool__ = __len__ = __eq__ = __iter__ = __copy__ = __deepcopy__ = __getstate__ = _refuse
    __hash__ = None

    def __getattr__(self, name):
        raise RuntimeError(f"asked for {name}")


class Liar:
    """Says that it is of another class, or raises when it is asked for that."""

    @property
    def __class__(self):
        raise RuntimeError("asked for its class")


class Key:
    """Counts how often it is asked for its hash and compared."""

    def __init__(self):
        self.asked = 0

    def __hash__(self):
        self.asked += 1
        return 1

    def __eq__(self, other):
        self.asked += 1
        return self is other


class Plain(nn.Module):
    """BatchNorm and dropout, and a `first` thing to do in the forward."""

    def __init__(self):
        super().__init__()
        self.linear, self.norm, self.head = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)
        self.dropout = nn.Dropout(0.2)

    def forward(self, x):
        self.touch(x)
        return self.head(self.dropout(torch.relu(self.norm(self.linear(x)))))

    def touch(self, x):
        pass


class Slots(Plain):
    __slots__ = ("cache", "count", "empty")

    def __init__(self):
        super().__init__()
        self.cache, self.count = torch.zeros(3), 0

    def touch(self, x):
        self.cache.add_(1)
        self.count = self.count + 1
        self.empty = x


class BadProperty(Plain):
    @property
    def broken(self):
        raise RuntimeError("a property that raises")

    @property
    def missing(self):
        raise AttributeError("one that says it is not there")


class BadGetattr(Plain):
    def __getattr__(self, name):
        if name in ("linear", "norm", "head", "dropout"):
            return super().__getattr__(name)
        raise RuntimeError(f"no {name} here")


class Counting(Plain):
    """Counts what is set and deleted; every module has it in the attribute that it counts in."""

    sets = 0

    def __setattr__(self, name, value):
        Counting.sets += 1
        super().__setattr__(name, value)

    def __delattr__(self, name):
        Counting.sets += 1
        super().__delattr__(name)


class Unregistered(Plain):
    """Layers in plain containers, behind a weak reference and in a tuple."""

    def __init__(self):
        super().__init__()
        self.plain = [nn.Linear(3, 3), nn.BatchNorm1d(3)]
        self.named = {"a": {"deeper": [nn.BatchNorm1d(3)]}}
        self.pair = (nn.BatchNorm1d(3), torch.zeros(2))
        self.other = SimpleNamespace(count=0, seen=[])
        self.behind = weakref.ref(self.plain[1])

    def touch(self, x):
        self.pair[1].add_(1)
        self.other.count += 1
        self.other.seen.append(self.other.count)

    def forward(self, x):
        z = super().forward(x)
        for layer in (*self.plain, self.named["a"]["deeper"][0], self.pair[0]):
            z = layer(z)
        return z


class FirstForward(Plain):
    """Registers hooks, a buffer, a layer and an attribute in the first forward, and marks that deep down."""

    def __init__(self):
        super().__init__()
        self.state = SimpleNamespace(installed=False, flags={"done": []})

    def touch(self, x):
        if not self.state.installed:
            self.norm.register_forward_hook(lambda module, args, output: output * 1.5)
            self.register_buffer("table", torch.arange(6.0))
            self.scale = nn.Parameter(torch.ones(()), requires_grad=False)
            self.extra = nn.Identity()
            self.state.installed = True
            self.state.flags["done"].append("hooks")
        assert len(self.norm._forward_hooks) == 1
        assert self.state.flags["done"] == ["hooks"]


class Containers(Plain):
    """Every kind of container, and in each a tensor that the forward writes into."""

    def __init__(self):
        super().__init__()
        self.listed, self.queue = [torch.zeros(2), [torch.zeros(2)]], deque([torch.zeros(2)], maxlen=400)
        self.ordered = OrderedDict(a=torch.zeros(2), b=1)
        self.default = defaultdict(list, a=[torch.zeros(2)])
        self.user, self.user_list = UserDict(a=torch.zeros(2)), UserList([torch.zeros(2)])
        self.counter, self.seen = Counter("aab"), {1, 2}
        self.modules_of = nn.ModuleDict({"a": nn.Identity()})
        self.more = nn.ModuleList([nn.Identity()])
        self.array, self.arrays = np.zeros(2), [np.zeros(2)]
        self.counts, self.over = itertools.count(), iter([1, 2, 3] * 1000)

    def touch(self, x):
        tensors = (self.listed[0], self.listed[1][0], self.queue[0], self.ordered["a"], self.default["a"][0])
        for tensor in (*tensors, self.user["a"], self.user_list[0]):
            tensor.add_(1)
        self.array += 1
        self.arrays[0] += 1
        self.listed.append(3)
        self.queue.append(len(self.queue))
        self.ordered["c"] = 2
        self.ordered.move_to_end("a")
        self.default["b"].append(1)
        self.counter["c"] += 1
        self.seen.add(len(self.seen))
        self.user["n"] = 1
        next(self.counts)
        next(self.over)


class Replaced(Plain):
    """Accelerate's way: the forward is an attribute, and the first one of its calls replaces it."""

    def __init__(self):
        super().__init__()
        inner = self.linear.forward

        def first(x):
            self.linear.forward = inner
            return inner(x)

        self.linear.forward = first


class Tensor2(torch.Tensor):
    """A tensor of another class."""


def holding(**attributes):
    def make():
        model = Plain()
        for name, attribute in attributes.items():
            vars(model)[name] = attribute()
        return model

    return make


def _odd_buffer():
    model = Plain()
    model.register_buffer("odd", torch.zeros(2).as_subclass(Tensor2))
    return model


def _frozen_list_of_tensors():
    made = frozen(list)()
    list.append(made, torch.zeros(2))
    return made


def _frozen_dict():
    made = frozen(dict)()
    dict.update(made, {"hidden": 3, "tensor": torch.zeros(2)})
    return made


class Source(random.Random):
    getstate = setstate = _refuse


class Drawing(Plain):
    """Draws from generators of its own, some of classes with methods that raise."""

    def __init__(self):
        super().__init__()
        self.torchs = torch.Generator().manual_seed(1)
        self.numpys, self.old = np.random.default_rng(1), np.random.RandomState(1)
        self.pythons, self.system = [Source(3)], random.SystemRandom()

    def touch(self, x):
        torch.rand((), generator=self.torchs)
        self.numpys.random()
        self.old.rand()
        self.pythons[0].random()
        self.system.random()


MODELS = {
    "plain": Plain,
    "frozen dict": holding(config=_frozen_dict),
    "frozen list": holding(config=_frozen_list_of_tensors),
    "frozen set": holding(config=lambda: frozen(set)()),
    "frozen deque": holding(config=lambda: frozen(deque)()),
    "frozen ordered": holding(config=lambda: frozen(OrderedDict)()),
    "raises": holding(config=Raises, many=lambda: [Raises()], liar=Liar, deeper=lambda: {"a": (Raises(),)}),
    "counting keys": holding(config=lambda: {Key(): 1}),
    "outside": holding(lock=threading.Lock, file=lambda: sys.__stderr__, reference=lambda: weakref.ref(Plain)),
    "odd buffer": _odd_buffer,
    "slots": Slots,
    "bad property": BadProperty,
    "bad getattr": BadGetattr,
    "counting": Counting,
    "unregistered": Unregistered,
    "first forward": FirstForward,
    "containers": Containers,
    "replaced forward": Replaced,
    "drawing": Drawing,
}


def _generator():
    yield from range(5)


REFUSED = {
    "generator": holding(source=_generator),
    "zip": holding(source=lambda: zip([1, 2], [3, 4], strict=True)),
    "in a list": holding(source=lambda: [{"a": map(str, [1])}]),
}
