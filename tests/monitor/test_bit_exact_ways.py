"""Ways to train that a snapshot could disturb: scalers, schedulers, hooks, checkpointing, tied weights, compilers."""

import subprocess
import sys

import pytest
import torch
from exact import Cell, Run, Watched, differences, found_wrong, full, seed_everything
from test_bit_exact import compiled_alone_and_watched, fresh_compiler  # noqa: F401
from torch import nn
from torch._dynamo.utils import counters
from torch.nn import functional as F
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.checkpoint import checkpoint

from normscope import Monitor
from normscope.norms import make_norm

SHORT = Cell(steps=4, every=2)


class Tiny(nn.Module):
    """Fits the batches of a `Cell`, at once."""

    def __init__(self, norm="noisy", through=None):
        super().__init__()
        torch.manual_seed(0)
        self.through = through or (lambda block, x: block(x))
        self.stem = nn.Conv2d(3, 4, 3, stride=4)
        self.block = nn.Sequential(make_norm(norm, 4, dim=2), nn.ReLU(), nn.Dropout(0.2), nn.Conv2d(4, 4, 3))
        self.head = nn.Linear(4, 10)

    def forward(self, x):
        h = self.through(self.block, self.stem(x)).relu()
        return self.head(F.dropout(h.mean(dim=(2, 3)), 0.1, self.training))


def wrong(make_model, adjust=None, *, cell=SHORT, inside=False, **options):
    """Differences between a run alone and a watched one, each with a model of its own."""
    alone = Run(cell, model=make_model(), adjust=adjust)
    watched = Run(cell, full(cell, **options), model=make_model(), adjust=adjust, inside=inside)
    return found_wrong(alone, watched)


@pytest.mark.parametrize("clip", [False, True], ids=["scaled", "unscaled"])
def test_float16_with_a_scaler(clip):
    cell = Cell(steps=8, every=3, clip=clip, autocast=torch.float16)

    def scaled(run):
        run.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**14, growth_interval=3)

    assert wrong(Tiny, scaled, cell=cell, autocast=torch.float16) == []
    assert wrong(Tiny, scaled, cell=cell, inside=True) == []


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("norm", ["noisy", "batch"])
def test_activation_checkpointing(reentrant, norm):
    def through(block, x):
        return checkpoint(block, x, use_reentrant=reentrant)

    assert wrong(lambda: Tiny(norm, through)) == []


def test_checkpointing_does_not_change_what_is_measured():
    plain = Run(SHORT, full(SHORT), model=Tiny()).monitor
    for reentrant in (False, True):
        through = lambda block, x, r=reentrant: checkpoint(block, x, use_reentrant=r)  # noqa: E731
        there = Run(SHORT, full(SHORT), model=Tiny(through=through)).monitor
        for ours, theirs in zip(there.records, plain.records, strict=True):
            assert ours.loss == theirs.loss
            for name in ("landscape", "critical", "shift"):
                assert name not in theirs.results or ours.results[name].summary() == theirs.results[name].summary()


def test_reentrant_checkpointing_with_gradients_of_the_input_and_parameters_of_others():
    """What is not lent must not collect gradients either."""
    model = Tiny(through=lambda block, x: checkpoint(block, x, use_reentrant=True))
    x = torch.randn(4, 3, 32, 32, requires_grad=True)
    y = torch.arange(4)
    sgd = torch.optim.SGD(model.head.parameters(), lr=0.1)
    F.cross_entropy(model(x), y).backward()
    held = {name: p.grad.clone() for name, p in model.named_parameters()} | {"x": x.grad.clone()}
    Monitor(model, F.cross_entropy, measure="full", budget=None, on_error="raise").step(x, y, sgd)
    now = {name: p.grad for name, p in model.named_parameters()} | {"x": x.grad}
    assert differences(held, now) == []


def test_shared_and_frozen_parameters():
    def tied():
        model = Tiny("batch")
        other = nn.Conv2d(4, 4, 3, padding=1)
        other.weight = model.block[3].weight
        model.block.insert(3, other)
        model.stem.weight.requires_grad_(False)
        model.block[0].bias.requires_grad_(False)
        return model

    assert wrong(tied) == []
    assert Run(SHORT, full(SHORT), model=tied()).model.stem.weight.grad is None


def test_parameters_without_a_gradient_keep_none():
    def unused():
        model = Tiny()
        model.spare = nn.Linear(3, 3)
        return model

    assert wrong(unused) == []
    assert Run(SHORT, full(SHORT), model=unused()).model.spare.weight.grad is None


def test_two_optimizers_of_which_one_is_handed_in():
    def second(run):
        run.optimizer = torch.optim.AdamW([*run.model.block.parameters()], lr=1e-3)

    assert wrong(Tiny, second) == []


@pytest.mark.parametrize(
    "make",
    [
        lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=20),
        lambda o: torch.optim.lr_scheduler.StepLR(o, 2, 0.5),
    ],
    ids=["one cycle", "steps"],
)
@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_a_scheduler(make, kind):
    def scheduled(run):
        run.scheduler = make(run.optimizer)

    assert wrong(Tiny, scheduled, cell=Cell(optimizer=kind, steps=6, every=2)) == []


class Own(torch.optim.SGD):
    """Its step is another's, in which torch calls the hooks once more."""

    def step(self, closure=None):
        return super().step(closure)


@pytest.mark.parametrize(("kind", "times"), [(torch.optim.SGD, 1), (Own, 2)])
def test_hooks_of_optimizers_run_at_the_users_steps_alone(kind, times):
    calls = []

    def hooked(run):
        run.optimizer = kind(run.model.parameters(), lr=0.02, momentum=0.9)
        run.optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
        run.optimizer.register_step_post_hook(lambda *_: calls.append("after"))

    handles = [
        register_optimizer_step_pre_hook(lambda *_: calls.append("before")),
        register_optimizer_step_post_hook(lambda *_: calls.append("after")),
    ]
    try:
        assert wrong(Tiny, hooked) == []
    finally:
        for handle in handles:
            handle.remove()
    # Of this optimizer and of all, before and after, in a run alone and a watched one.
    assert len(calls) == 4 * times * 2 * SHORT.steps


@pytest.mark.parametrize("kind", ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "NAdam", "Rprop", "Muon"])
def test_other_optimizers(kind):
    if not hasattr(torch.optim, kind):
        pytest.skip(f"This torch has no {kind}.")

    def chosen(run):
        matrices = [p for p in run.model.parameters() if p.ndim == 2]
        run.optimizer = getattr(torch.optim, kind)(matrices if kind == "Muon" else run.model.parameters(), lr=1e-3)

    assert wrong(Tiny, chosen) == []


def test_hooks_on_parameters_do_not_fire():
    calls = []

    def hooked(run):
        for p in run.model.parameters():
            p.register_hook(lambda grad: calls.append(1))
            p.register_post_accumulate_grad_hook(lambda p: calls.append(1))

    assert wrong(Tiny, hooked) == []
    assert len(calls) == 2 * SHORT.steps * 2 * len(list(Tiny().parameters()))


def test_a_forward_of_the_instance_stays():
    def replaced():
        model = Tiny()
        inner = model.stem.forward
        model.stem.forward = lambda x: 2 * inner(x)
        return model

    # `inner` stays bound to the layer, whose weights are looked up at each call.
    assert wrong(replaced) == []
    assert "forward" in vars(Run(SHORT, full(SHORT), model=replaced()).model.stem)


@pytest.mark.parametrize("where", ["forward", "backward", "begin", "watch", "verdicts", "sink"])
def test_whatever_raises_the_run_goes_on(where):
    """In the middle of a snapshot: the third forward, its backward, a measurement's own preparations, what it gives."""
    model_of = {"calls": 0}

    class Odd:
        name = "odd"
        forward_only = False

        def measure(self, probe):
            return self

        def summary(self):
            return {}

        def by_layer(self):
            return {}

        def verdicts(self, kind):
            if where == "verdicts":
                raise ValueError("planted")
            return []

    if where in ("begin", "watch"):

        def raises(self, *args):
            raise ValueError("planted")

        setattr(Odd, where, raises)

    class Full:
        def open(self, settings):
            pass

        def write(self, record):
            if where == "sink":
                raise ValueError("planted")

        def close(self):
            pass

    def loss(output, y):
        model_of["calls"] += 1
        if model_of["calls"] % 5 == 3 and where == "forward":
            raise ValueError("planted")
        found = F.cross_entropy(output, y)
        if model_of["calls"] % 5 == 3 and where == "backward" and found.requires_grad:
            output.register_hook(lambda grad: torch.zeros(2).view(3))
        return found

    alone = Run(SHORT)
    options = {"every": 2, "measure": ["critical", "landscape", Odd(), "shift"], "budget": None, "sinks": [Full()]}
    with pytest.warns(UserWarning, match="the run goes on"):
        watched = Run(SHORT, lambda model: Monitor(model, loss, **options))
    assert found_wrong(alone, watched) == []


def test_compiled_in_place(fresh_compiler):  # noqa: F811
    model = Tiny()
    model.compile(backend="aot_eager")
    assert compiled_alone_and_watched(model, model, SHORT) == []


NOT_A_LEAF = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # torch's own


@NOT_A_LEAF
def test_a_compiled_part(fresh_compiler):  # noqa: F811
    model = Tiny()
    model.block = torch.compile(model.block, backend="aot_eager")
    assert compiled_alone_and_watched(model, model, SHORT) == []


@NOT_A_LEAF
def test_a_compiled_part_compiled_in_place(fresh_compiler):  # noqa: F811
    model = Tiny()
    model.block.compile(backend="aot_eager")
    assert compiled_alone_and_watched(model, model, SHORT) == []


def test_looking_before_the_first_compiled_step(fresh_compiler):  # noqa: F811
    """The first snapshot comes before any graph: the graphs made later are the same."""
    x, y = torch.randn(4, 3, 32, 32), torch.arange(4)

    def first_steps(snapshot):
        torch._dynamo.reset()
        counters.clear()
        model = Tiny("batch")
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        compiled = torch.compile(model, backend="aot_eager")
        torch.manual_seed(3)
        if snapshot:
            monitor = Monitor(compiled, F.cross_entropy, measure=["landscape", "activations"], on_error="raise")
            monitor.step(x, y, sgd)
            assert not counters["stats"]["unique_graphs"]
        for _ in range(3):
            sgd.zero_grad()
            F.cross_entropy(compiled(x), y).backward()
            sgd.step()
        return model.state_dict(), counters["stats"]["unique_graphs"]

    (alone, graphs), (watched, graphs_watched) = first_steps(False), first_steps(True)
    assert graphs == graphs_watched
    assert differences(alone, watched) == []


def test_other_batch_sizes_in_the_looks_make_no_graph(fresh_compiler):  # noqa: F811
    model = Tiny()
    compiled = torch.compile(model, backend="aot_eager")
    x, y = torch.randn(4, 3, 32, 32), torch.arange(4)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    F.cross_entropy(compiled(x), y).backward()
    graphs = dict(counters["stats"])
    monitor = Monitor(compiled, F.cross_entropy, every=1, measure="full", budget=None, on_error="raise")
    for n in (2, 3, 4):
        monitor.step(x[:n], y[:n], sgd)
    assert dict(counters["stats"]) == graphs


@pytest.mark.slow
def test_looking_does_not_load_the_compiler():
    """Importing it takes a second and warns of things of its own."""
    code = (
        "import sys, torch; from torch import nn; from torch.nn import functional as F; from normscope import Monitor\n"
        "m = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)); o = torch.optim.SGD(m.parameters(), lr=.1)\n"
        "before = 'torch._dynamo' in sys.modules\n"
        "x, y = torch.randn(4, 3), torch.arange(4) % 3; F.cross_entropy(m(x), y).backward()\n"
        "Monitor(m, F.cross_entropy, measure='full', budget=None, on_error='raise').step(x, y, o)\n"
        "assert before or 'torch._dynamo' not in sys.modules"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert found.returncode == 0, found.stderr


def test_modes_of_the_caller_are_as_they_were():
    x, y = torch.randn(4, 3, 32, 32), torch.arange(4)
    for context in (torch.no_grad(), torch.inference_mode(), torch.autograd.set_detect_anomaly(False)):
        run = Run(Cell(steps=1), model=Tiny())
        with context:
            grad, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
            Monitor(run.model, F.cross_entropy, measure="full", budget=None, on_error="raise").step(x, y, run.optimizer)
            assert (grad, inference) == (torch.is_grad_enabled(), torch.is_inference_mode_enabled())


def test_between_the_users_forward_and_backward():
    """The graph that waits for its backward is still whole."""
    x, y = torch.randn(4, 3, 32, 32), torch.arange(4)
    grads = []
    for snapshot in (False, True):
        seed_everything()
        model = Watched(Cell())
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        loss = F.cross_entropy(model(x), y)
        if snapshot:
            Monitor(model, F.cross_entropy, measure=["landscape", "health", "activations"], on_error="raise").step(
                x, y, sgd
            )
        loss.backward()
        grads.append({name: p.grad for name, p in model.named_parameters()})
    assert differences(*grads) == []


def test_what_a_forward_collects_and_the_loop_has_emptied():
    class Collects(Tiny):
        def __init__(self):
            super().__init__()
            self.collected, self.by_name, self.seen = [], {}, set()

        def forward(self, x):
            self.collected.append(x.mean())
            self.by_name["x"] = x
            self.seen.add(len(self.collected))
            return super().forward(x)

    model, x, y = Collects(), torch.randn(4, 3, 32, 32), torch.arange(4)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    F.cross_entropy(model(x), y).backward()
    held = (model.collected, model.by_name, model.seen)
    for container in held:
        container.clear()
    Monitor(model, F.cross_entropy, measure="full", budget=None, on_error="raise").step(x, y, sgd)
    assert [model.collected, model.by_name, model.seen] == [[], {}, set()]
    assert all(map(lambda a, b: a is b, held, (model.collected, model.by_name, model.seen)))
