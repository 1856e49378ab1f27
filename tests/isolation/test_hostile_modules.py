"""Whatever a module holds and wherever a measurement breaks: the parameters stay the optimizer's."""

import warnings

import pytest
import torch
from hostile import MODELS, REFUSED, Counting, Plain
from torch.nn import functional as F

import normscope as ns
from normscope.isolation import lending
from normscope.isolation.containers import DICT, Kept

X = torch.randn(16, 4, generator=torch.Generator().manual_seed(0))
Y = torch.randint(3, (16,), generator=torch.Generator().manual_seed(1))
STEPS = 20


class Training:
    """A run whose parameters and buffers are looked at by identity, and whose end by its bits."""

    def __init__(self, make):
        torch.manual_seed(0)
        self.model = make()
        hidden = [p for layer in vars(self.model).get("plain", []) for p in layer.parameters()]
        self.optimizer = torch.optim.SGD([*self.model.parameters(), *hidden], lr=0.05, momentum=0.9)
        self.places = [
            (holder, key, value)
            for module in self.model.modules()
            for holder in (module._parameters, module._buffers)
            for key, value in holder.items()
        ]
        torch.manual_seed(1)

    def step(self, look=None):
        self.optimizer.zero_grad()
        F.cross_entropy(self.model(X), Y).backward()
        if look is not None:
            look(self)
        self.optimizer.step()

    def check(self):
        """Before any forward of its own has registered more."""
        assert all(holder[key] is value for holder, key, value in self.places)
        held = {id(p) for group in self.optimizer.param_groups for p in group["params"]}
        assert {id(p) for p in self.model.parameters() if p.requires_grad} <= held
        assert not any("forward" in vars(m) for m in self.model.modules() if m is not self.model.linear)

    def state(self):
        held = [p for group in self.optimizer.param_groups for p in group["params"]]
        found = [(p.detach().clone(), p.grad.clone()) for p in held]
        buffers = [b.clone() for b in self.model.buffers()]
        return found, buffers, torch.get_rng_state()


def same(a, b):
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))


def trained(make, look=None, at=0):
    run = Training(make)
    for step in range(STEPS):
        run.step(look if step == at else None)
    return run


@pytest.fixture(scope="module")
def alone():
    found = {}

    def of(name, make):
        if name not in found:
            found[name] = trained(make).state()
        return found[name]

    return of


def measured(run):
    ns.measure(run.model, F.cross_entropy, (X, Y), hessian=False, solver=ns.curvature.Solver(max_products=3))
    run.check()


def watched(run):
    monitor = ns.Monitor(run.model, F.cross_entropy, every=1, budget=None, measure="full", on_error="raise")
    monitor.step(X, Y, run.optimizer)
    run.check()


def before_any_forward(verb):
    def make_and_measure(make):
        run = Training(make)
        verb(run)
        for _ in range(STEPS):
            run.step()
        return run

    return make_and_measure


@pytest.mark.parametrize("verb", [measured, watched])
@pytest.mark.parametrize("name", MODELS)
def test_training_goes_on_as_without(name, verb, alone):
    assert same(trained(MODELS[name], verb).state(), alone(name, MODELS[name]))


@pytest.mark.parametrize("name", MODELS)
def test_before_the_first_forward_too(name, alone):
    run = before_any_forward(measured)(MODELS[name])
    assert same(run.state(), alone(name, MODELS[name]))


def test_nothing_is_set_through_the_modules_own_methods():
    run = Training(MODELS["counting"])
    sets = Counting.sets
    measured(run)
    watched_error = pytest.raises(ValueError, match="gradients")
    with watched_error:
        watched(run)
    assert Counting.sets == sets


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name_before_anything_moves(name, alone):
    def refused(run):
        with pytest.raises(TypeError, match=r"source holds an iterator .* outside the model"):
            measured(run)
        run.check()
        with pytest.raises(TypeError, match="source holds an iterator"):
            watched(run)
        run.check()

    assert same(trained(REFUSED[name], refused).state(), alone("plain", Plain))


class Planted(Exception):
    """Raised on purpose."""


class Breaks(Plain):
    """Raises at one stage of the k-th pass that comes to it while it is armed."""

    stage, left = "", 0

    def come(self, stage):
        if stage == Breaks.stage:
            Breaks.left -= 1
            if Breaks.left == 0:
                raise Planted(stage)

    def forward(self, x):
        self.come("forward")
        self.norm.momentum = 0.3
        z = super().forward(x)
        if z.requires_grad:
            z.register_hook(lambda g: self.come("backward"))
        self.come("end of the forward")
        return z


@pytest.mark.parametrize("verb", [measured, watched])
@pytest.mark.parametrize("stage", ["forward", "end of the forward", "loss", "backward", "hook"])
@pytest.mark.parametrize("k", [1, 2, 4])
def test_an_exception_anywhere_leaves_no_trace(verb, stage, k, alone, monkeypatch):
    def loss(output, target):
        run.model.come("loss")
        return F.cross_entropy(output, target)

    def hook(module, args, output):
        module_of[0].come("hook")

    module_of = []

    def make():
        model = Breaks()
        module_of[:] = [model]
        model.norm.register_forward_hook(hook)
        return model

    def broken(run):
        monkeypatch.setattr(Breaks, "stage", stage)
        monkeypatch.setattr(Breaks, "left", k)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                if verb is measured:
                    ns.measure(run.model, loss, (X, Y), solver=ns.curvature.Solver(max_products=3))
                else:
                    monitor = ns.Monitor(run.model, loss, every=1, budget=None, measure="full", on_error="raise")
                    monitor.step(X, Y, run.optimizer)
            except Planted:
                pass
        assert Breaks.left <= 0
        monkeypatch.setattr(Breaks, "stage", "")
        run.check()

    run = Training(make)
    for step in range(STEPS):
        run.step(broken if step == 0 else None)
    assert same(run.state(), trained(make).state())


@pytest.mark.parametrize("verb", [measured, watched])
def test_a_restore_that_raises_puts_all_else_back(verb, monkeypatch, alone):
    """One container cannot be filled and one generator not be set: everything else is back, and the error is said."""
    name = "containers"

    def broken(run):
        listed = run.model.listed
        held = list(listed)
        fill, put_back = lending.Generators.put_back, Kept.put_back

        def failing(self):
            failed = put_back(self)
            return [*failed, (("", "listed"), Planted("the list"))]

        def without_generators(self):
            fill(self)
            return [("a random generator", Planted("the generator"))]

        monkeypatch.setattr(Kept, "put_back", failing)
        monkeypatch.setattr(Kept, "same", lambda self: False)
        monkeypatch.setattr(lending.Generators, "put_back", without_generators)
        with pytest.raises(RuntimeError, match=r"Everything but this .* The model.listed .*Planted"):
            verb(run)
        monkeypatch.undo()
        assert all(a is b for a, b in zip(listed, held, strict=True))
        run.check()

    assert same(trained(MODELS[name], broken).state(), alone(name, MODELS[name]))


def test_a_container_that_cannot_be_filled_stops_no_other(monkeypatch):
    """In the order they are gone through the first raises, even an interrupt; the parameters come after it."""
    run = Training(Plain)
    fill = DICT.fill
    calls = []

    def failing(container, held):
        calls.append(container)
        if len(calls) == 1:
            raise KeyboardInterrupt
        fill(container, held)

    def break_it():
        with lending.untouched(run.model):
            run.model.linear.marked = run.model.norm.marked = True
            base = DICT._replace(fill=failing)
            original = lending.PresentEntries.put_back

            def put_back(self):
                self._kept._groups = [(base, *g[1:]) if g[0] is DICT else g for g in self._kept._groups]
                return original(self)

            monkeypatch.setattr(lending.PresentEntries, "put_back", put_back)

    with pytest.raises(KeyboardInterrupt):
        break_it()
    monkeypatch.undo()
    assert len(calls) > 3
    wrong = [key for holder, key, value in run.places if holder[key] is not value]
    assert wrong == []
