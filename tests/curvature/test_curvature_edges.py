"""What is left of a measurement afterwards, what it is called, and the messages for what it cannot take."""

import json
import math
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from normscope import Monitor, losses, measure
from normscope.curvature import Solver, mean_mode, spectrum
from normscope.curvature.eigensolvers.lanczos import Memory
from normscope.monitor import CurvatureProbe

X = torch.randn(12, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = torch.randn(12, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def net(*middle: nn.Module) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(5, 6), *middle, nn.Linear(6, 3)).double()


FLAGS = """
import sys, torch, warnings, normscope as ns
from normscope.curvature.autograd.patching import differentiable_kernels
def legacy():
    try:
        return torch.backends.cudnn.allow_tf32
    except RuntimeError:
        return "refused"
read = lambda: [torch._C._get_fp32_precision_getter(f, k) for f in ("generic", "cuda", "mkldnn") for k in
                (("all",) if f == "generic" else ("all", "matmul", "conv", "rnn"))]
for setting, value in ({settings}):
    torch._C._set_fp32_precision_setter(*setting, value)
seen = [read()]
if sys.argv[1] == "measured":
    ns.measure(torch.nn.Linear(2, 2), ns.losses.half_mse, (torch.eye(2), torch.eye(2)))
if sys.argv[1] == "as on a GPU":
    warnings.simplefilter("ignore")
    with differentiable_kernels("cuda"):
        inside = read()
        assert inside[2:5] == ["ieee"] * 3, inside
seen.append([*read(), legacy()])
for value in ("tf32", "ieee", "none"):
    torch._C._set_fp32_precision_setter("generic", "all", value)
    seen.append(read())
print(seen)
"""


@pytest.mark.parametrize(
    "settings",
    [
        "",
        pytest.param("(('generic', 'all'), 'ieee'),", marks=pytest.mark.slow),
        "(('generic', 'all'), 'tf32'), (('mkldnn', 'matmul'), 'bf16'), (('cuda', 'conv'), 'ieee')",
        pytest.param("(('mkldnn', 'all'), 'bf16'), (('cuda', 'all'), 'tf32')", marks=pytest.mark.slow),
    ],
)
def test_flags_of_precision_follow_their_parents_as_before(settings):
    code = FLAGS.replace("{settings}", settings)
    shown = [
        subprocess.run(
            [sys.executable, "-c", code, how], capture_output=True, text=True, check=True, timeout=120
        ).stdout
        for how in ("not", "measured", "as on a GPU")
    ]
    assert shown[0] == shown[1] == shown[2]


@pytest.mark.parametrize("ahead", [1.01, 1.05, 1.2])
def test_a_warm_start_finds_what_has_overtaken_where_no_gradient_points_there(ahead):
    for n in (5, 20, 100, 1000):
        lengths = torch.linspace(0.0, 0.5, n, dtype=torch.float64)
        lengths[0], lengths[1] = 1.0, ahead
        model = nn.Linear(n, 1, bias=False).double()
        nn.init.zeros_(model.weight)
        batch = (torch.diag(lengths.sqrt()) * n**0.5, torch.zeros(n, 1, dtype=torch.float64))
        fresh = measure(model, losses.half_mse, batch, hessian=False)
        last = replace(fresh, memory=Memory((1.0,), torch.eye(n, dtype=torch.float64)[:1]))
        found = measure(model, losses.half_mse, batch, hessian=False, start=last)
        assert found.converged
        assert found.lambda_max == pytest.approx(ahead, 1e-3)


def test_one_mask_for_all_batches_is_said():
    model = net(nn.Dropout(0.5))
    batches = [(X[:6], Y[:6]), (X[6:], Y[6:])]
    found = measure(model, losses.half_mse, batches, over="batches")
    assert any("the same ones, for each batch too" in note for note in found.notes)


def test_a_preconditioned_matrix_is_called_so():
    model = net(nn.Tanh())
    opt = torch.optim.Adam(model.parameters())
    monitor = Monitor(model, losses.half_mse, every=1, measure=["curvature"], budget=None, on_error="raise")
    for _ in range(2):
        opt.zero_grad()
        losses.half_mse(model(X), Y).backward()
        monitor.step(X, Y, opt)
        opt.step()
    found = measure(model, losses.half_mse, (X, Y), optimizer=opt, hessian=True)
    assert found.preconditioned
    assert "preconditioned by the optimizer" in str(found)
    assert "Hessian, preconditioned, from" in str(found)
    frame = monitor.frame()
    assert [math.isnan(value) for value in frame.lambda_max] == [False, True]
    assert [math.isnan(value) for value in frame.lambda_preconditioned] == [True, False]
    plain = measure(model, losses.half_mse, (X, Y))
    assert not plain.preconditioned
    assert "preconditioned" not in str(plain)


@pytest.mark.parametrize("stats", ["batch", "frozen"])
def test_a_batch_of_one_has_a_way_out(stats):
    for layer in (nn.BatchNorm1d(6), nn.Sequential(nn.BatchNorm1d(6))):
        with pytest.raises(ValueError, match=r"more than one value per channel.*(arger batch)"):
            measure(net(layer), losses.half_mse, (X[:1], Y[:1]), stats=stats)
        with pytest.raises(ValueError, match=r"more than one value per channel.*(arger batch)"):
            measure(net(layer), losses.half_mse, (X[:1], Y[:1]), stats="running", compare=stats)


def _with(batch):
    return {"batch": batch}


MISTAKES = {
    "more than parameters": ({"solver": Solver(block=1000)}, "at most as many as parameters, 57 here; got 1000"),
    "arrays": (_with((X.numpy(), Y.numpy())), "got NumPy arrays.*from_numpy"),
    "two batches": (_with(((X, Y), (X, Y))), r"tuple of two pairs.*\[first, second\]"),
    "three parts": (
        _with((X, Y, Y)),
        "gives the model a tuple of 2 besides the target, and its forward does not take that",
    ),
    "empty": (_with((X[:0], Y[:0])), "The batch is empty"),
    "nan": (_with((X * math.nan, Y)), "The batch itself is not finite"),
    "a string": (_with("digits"), "an iterable of .x, y., mappings or others; got str"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_one_message(name):
    options, message = MISTAKES[name]
    batch = options.get("batch", (X, Y))
    with pytest.raises(ValueError, match=message):
        measure(net(nn.Tanh()), losses.half_mse, batch, **{k: v for k, v in options.items() if k != "batch"})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_products": 0}, "max_products= counts products, at least 1; got 0"),
        ({"block": 0}, "block= counts start vectors, at least 1; got 0"),
        ({"tol": 0.0}, "tol= is a relative residual, more than 0; got 0.0"),
    ],
)
def test_settings_of_the_solver_that_no_search_could_keep_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Solver(**settings)


def test_the_mean_mode_is_searched_from_one_vector():
    with pytest.raises(ValueError, match=r"one start vector; got Solver\(block=2\)"):
        mean_mode(net(nn.Tanh()), (X, Y), solver=Solver(block=2))


def test_the_probe_keeps_to_the_products_of_its_solver():
    found = []
    for solver in (Solver(max_products=3, tol=1e-12), None):
        model = net(nn.Tanh())
        monitor = Monitor(model, losses.half_mse, every=1, measure=(CurvatureProbe(solver=solver),), budget=None)
        monitor.step(X, Y)
        found.append(monitor.records[-1].results["curvature"])
    assert found[0].products == 3
    assert not found[0].converged
    assert found[1].products > 3
    assert found[1].converged


def test_a_reading_to_compare_with_may_be_one_word():
    found = measure(net(nn.BatchNorm1d(6)), losses.half_mse, (X, Y), compare="frozen", hessian=False)
    assert set(found.by_statistics) == {"batch", "frozen"}


def test_parameters_without_products_are_refused():
    with pytest.raises(ValueError, match="sparse=False"):
        measure(nn.Sequential(nn.Embedding(4, 2, sparse=True)), F.mse_loss, (torch.arange(4), torch.zeros(4, 2)))

    class Complex(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.ones(1, dtype=torch.complex64))

        def forward(self, x):
            return (self.w * x).abs()

    with pytest.raises(ValueError, match="real parameters; w is torch.complex64"):
        measure(Complex(), losses.half_mse, (torch.ones(2, 1), torch.ones(2, 1)))


def test_settings_say_all_that_was_asked():
    model = net(nn.Tanh())
    opt = torch.optim.SGD([{"params": model[0].parameters()}, {"params": model[2].parameters(), "lr": 0.2}], lr=0.1)
    found = measure(
        model,
        losses.half_mse,
        (X, Y),
        optimizer=opt,
        micro_batch=6,
        compare=("frozen",),
        parameters=lambda name, p: name.startswith("2"),
        hessian=False,
    )
    assert found.settings["lr"] == [0.1, 0.2]
    assert found.settings["micro_batch"] == 6
    assert found.settings["over"] == "data"
    assert found.settings["compare"] == ["frozen"]
    assert found.settings["parameters"] == ["2.weight", "2.bias"]
    json.dumps(found.plain(), allow_nan=False)


def test_a_models_own_parameters_are_a_layer_with_a_name():
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.ones(5, 3, dtype=torch.float64))

        def forward(self, x):
            return x @ self.w

    assert list(measure(Own(), losses.half_mse, (X, Y), layers=True).by_layer) == ["(Own)"]


def test_whole_spectra_take_and_refuse_what_measure_does(tmp_path):
    model = net(nn.BatchNorm1d(6))
    half = net(nn.Tanh()).bfloat16()
    assert spectrum(half, losses.half_mse, (X.bfloat16(), Y.bfloat16()), steps=8).trace > 0
    assert mean_mode(half, (X.bfloat16(), None)).lambda_max > 0
    for bad, message in (((X * math.nan, Y), "not finite"), ((X[:1], Y[:1]), "more than one value")):
        with pytest.raises(ValueError, match=message):
            spectrum(model, losses.half_mse, bad)
    with pytest.raises(ValueError, match="linear in the outputs"):
        spectrum(model, F.l1_loss, (X, Y))
    with pytest.raises(ValueError, match="at least two samples"):
        mean_mode(net(nn.Tanh()), (X[:1], None))
    with pytest.raises(ValueError, match="none of the model's requires a gradient"):
        spectrum(net(nn.Tanh()).requires_grad_(False), losses.half_mse, (X, Y))
    for kind, found in (
        ("spectrum", spectrum(model, losses.half_mse, (X, Y), steps=8)),
        ("mean_mode", mean_mode(model, (X, Y))),
    ):
        found.save(tmp_path / "found.json")
        read = json.loads((tmp_path / "found.json").read_text())
        assert read == found.plain()
        assert (read["kind"], read["schema"], read["settings"]["samples"]) == (kind, 1, 12)
        assert read["environment"]["torch"] == torch.__version__


@pytest.mark.parametrize("size", [1, None])
@pytest.mark.parametrize("matrix", ["ggn", "hessian"])
def test_statistics_that_torch_refuses_are_not_broadcast(matrix, size):
    mean, var = (None, None) if size is None else (torch.zeros(size), torch.ones(size))

    class Normalized(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(5, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.batch_norm(self.linear(x), mean, var)

    with pytest.raises(RuntimeError, match="running_mean (should contain 3 elements|must be defined)"):
        measure(Normalized(), losses.half_mse, (X.float(), Y.float()), matrix=matrix)
