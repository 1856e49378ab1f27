"""PyTorch's own module tests, run on our BatchNorm classes.

PyTorch tests its modules with ``test/test_modules.py``, which walks over ``module_db``: for each class a
function that makes constructor and forward inputs. The wheel ships the inputs but not the tests. Here are
the tests again, with our class in the place of ``torch.nn``'s, so that the cells (zero batch, no bias where
this torch has it, no tracking, cumulative average, ...) are those of the installed torch.

Beyond the original, parameters and running statistics get values that are not ones and zeros, every number
is also compared with the ``torch.nn`` class in the same state, and the forward pass, the backward pass and
the running statistics with the loops of ``tests/reference.py`` (``module_db`` has no reference function for
BatchNorm).
"""

from __future__ import annotations

import copy
import io
import os
import pickle
import warnings
from dataclasses import dataclass
from functools import partial
from unittest import mock

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import reference
from normscope.norms import BatchNorm1d, BatchNorm2d, BatchNorm3d

pytest.importorskip("expecttest", reason="PyTorch's own tests need the package expecttest")
# The import freezes torch.backends for the whole process and sets a cache folder; deprecations inside it
# are PyTorch's own.
with (
    warnings.catch_warnings(),
    mock.patch.dict(os.environ),
    mock.patch.object(torch.backends, "disable_global_flags"),
):
    warnings.simplefilter("ignore", DeprecationWarning)
    from torch.testing._internal.common_modules import module_db

INFOS = {info.module_cls: info for info in module_db}
PAIRS = [
    (BatchNorm1d, torch.nn.BatchNorm1d),
    (BatchNorm2d, torch.nn.BatchNorm2d),
    (BatchNorm3d, torch.nn.BatchNorm3d),
]

# Two ways to sum m <= 128 values of size 10 differ by some 100 ulp; gradients are differences of such sums.
TOLERANCE = {
    torch.float64: {"rtol": 1e-10, "atol": 1e-10},
    torch.float32: {"rtol": 1e-4, "atol": 1e-4},
    torch.bfloat16: {"rtol": 4e-2, "atol": 4e-2},
    torch.float16: {"rtol": 5e-3, "atol": 5e-3},
}


@dataclass(frozen=True)
class Case:
    """One row of PyTorch's input table, with our class and the class it replaces."""

    ours: type[torch.nn.Module]
    theirs: type[torch.nn.Module]
    row: int
    name: str
    shape: tuple[int, ...]

    def arguments(self, dtype=torch.float64, training=True, requires_grad=False):
        """Constructor and forward inputs of this row, as PyTorch makes them."""
        info = INFOS[self.theirs]
        rows = info.module_inputs_func(info, device="cpu", dtype=dtype, requires_grad=requires_grad, training=training)
        return rows[self.row].constructor_input, rows[self.row].forward_input

    def input(self, dtype=torch.float64, training=True, requires_grad=False):
        """The one tensor of the forward input."""
        _, forward = self.arguments(dtype, training, requires_grad)
        (x,) = (*forward.args, *forward.kwargs.values())
        return x

    def build(self, cls, dtype=torch.float64, training=True, **factory):
        """``cls`` from this row's constructor input."""
        constructor, _ = self.arguments(dtype, training)
        module = cls(*constructor.args, **constructor.kwargs, **factory)
        return module.to(dtype=dtype).train(training)

    def twins(self, dtype=torch.float64, training=True):
        """Our module and torch's in the same state, away from the ones and zeros they start with."""
        ours = self.build(self.ours, dtype, training)
        theirs = self.build(self.theirs, dtype, training)
        with torch.no_grad():
            for name, value in ours.state_dict().items():
                if value.is_floating_point():
                    low, high = (0.5, 1.5) if name in ("weight", "running_var") else (-1.0, 1.0)
                    value.uniform_(low, high)
        theirs.load_state_dict(ours.state_dict())
        return ours, theirs


def rows():
    """Every row of the three input tables; the tensors are thrown away, only the names are kept."""
    with torch.random.fork_rng(devices=[]):
        for ours, theirs in PAIRS:
            info = INFOS[theirs]
            table = info.module_inputs_func(info, device="cpu", dtype=torch.float64, requires_grad=False, training=True)
            for row, entry in enumerate(table):
                (x,) = (*entry.forward_input.args, *entry.forward_input.kwargs.values())
                yield Case(ours, theirs, row, f"{theirs.__name__}-{entry.desc or 'plain'}", tuple(x.shape))


CASES = list(rows())
CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def over(cases):
    """A test for each of the cases."""
    return pytest.mark.parametrize("case", cases, ids=lambda case: case.name)


over_cases = over(CASES)
# The loops of the reference have no mean of nothing; test_matches_torch covers the empty batch.
over_filled_cases = over([case for case in CASES if 0 not in case.shape])
over_image_cases = over([case for case in CASES if len(case.shape) in CHANNELS_LAST])
over_modes = pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
over_dtypes = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
over_classes = pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair[1].__name__)


@pytest.fixture(autouse=True)
def _seeded():
    """PyTorch draws the inputs from the global generator; leave it as it was found."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def assert_same(actual, expected, dtype):
    torch.testing.assert_close(actual, expected, **TOLERANCE[dtype])


def assert_same_state(actual, expected, dtype):
    assert list(actual.state_dict()) == list(expected.state_dict())
    for name, value in expected.state_dict().items():
        assert_same(actual.state_dict()[name], value, dtype)


def run(module, x, g=None):
    """Output, and the gradients of sum(g y): of the input first, then of the parameters."""
    x = x.detach().requires_grad_()
    y = module(x)
    g = torch.linspace(-1.0, 2.0, y.numel(), dtype=y.dtype).view_as(y) if g is None else g
    return y, *torch.autograd.grad(y, [x, *module.parameters()], g)


def affine(module):
    """gamma and beta of a module as NumPy vectors, ones and zeros where it has none."""
    gamma, beta = (getattr(module, name) for name in ("weight", "bias"))
    channels = module.num_features
    return (
        np.ones(channels) if gamma is None else gamma.detach().double().numpy(),
        np.zeros(channels) if beta is None else beta.detach().double().numpy(),
    )


# ---------------------------------------------------------------------------------------------------------
# Values


@over_cases
@over_modes
@over_dtypes
def test_forward(case, training, dtype):
    module, _ = case.twins(dtype, training)
    x = case.input(dtype, training)
    gamma, beta = affine(module)
    mean, var = module.running_mean, module.running_var
    if not training and mean is not None:
        along = (slice(None), *[None] * (x.ndim - 2))
        x_hat = (x - mean[along]) / torch.sqrt(var[along] + module.eps)
        expected = gamma[along] * x_hat.double().numpy() + beta[along]
    elif x.numel():
        expected, _, _ = reference.batch_norm(x.double().numpy(), gamma, beta, module.eps)
    else:
        expected = np.empty(x.shape)
    y = module(x)
    assert y.dtype == dtype
    assert_same(y, torch.from_numpy(expected).to(dtype), dtype)


@over_filled_cases
@over_dtypes
def test_backward(case, dtype):
    module, _ = case.twins(dtype)
    x = case.input(dtype)
    g = torch.randn(x.shape, dtype=dtype)
    _, *grads = run(module, x, g)
    gamma, _ = affine(module)
    expected = reference.batch_norm_backward(x.double().numpy(), gamma, module.eps, g.double().numpy())
    for got, wanted in zip(grads, expected[: len(grads)], strict=True):
        assert_same(got, torch.from_numpy(wanted).to(dtype), dtype)


@over_filled_cases
@over_dtypes
def test_running_statistics(case, dtype):
    module = case.build(case.ours, dtype)
    history = []
    for step in range(3):
        x = case.input(dtype) * (step + 1) + step
        module(x)
        _, mean, var = reference.batch_norm(x.double().numpy(), *affine(module), module.eps)
        history.append((mean, var, x.numel() // x.shape[1]))
    if not module.track_running_stats:
        assert module.running_mean is module.running_var is module.num_batches_tracked is None
        return
    mean, var = reference.running_average(history, module.momentum)
    assert_same(module.running_mean, torch.from_numpy(mean).to(dtype), dtype)
    assert_same(module.running_var, torch.from_numpy(var).to(dtype), dtype)
    assert module.num_batches_tracked.item() == 3


def check_against_torch(case, training, dtype):
    ours, theirs = case.twins(dtype, training)
    for step in range(2):
        x = case.input(dtype, training) * (step + 1) + step
        for actual, expected in zip(run(ours, x), run(theirs, x), strict=True):
            assert_same(actual, expected, dtype)
    assert_same_state(ours, theirs, dtype)


@over_cases
@over_modes
@over_dtypes
def test_matches_torch(case, training, dtype):
    check_against_torch(case, training, dtype)


@pytest.mark.slow
@over_cases
@over_modes
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
def test_matches_torch_in_half_precision(case, training, dtype):
    check_against_torch(case, training, dtype)


# ---------------------------------------------------------------------------------------------------------
# Derivatives


def check_derivatives(case, training, check):
    """As PyTorch does: all tensors together, then the input with each parameter in turn."""
    module, _ = case.twins(training=training)
    x = case.input(training=training, requires_grad=True)
    parameters = tuple(module.parameters())
    assert check(lambda x, *_: module(x), (x, *parameters))
    for parameter in parameters:
        parameter.requires_grad_(False)
    assert check(lambda x, *_: module(x), (x, *parameters))
    for parameter in parameters:
        parameter.requires_grad_(True)
        assert check(lambda x, *_: module(x), (x, *parameters))
        parameter.requires_grad_(False)


@over_cases
@over_modes
def test_grad(case, training):
    check_derivatives(case, training, partial(gradcheck, fast_mode=True))


@over_cases
@over_modes
def test_gradgrad(case, training):
    check_derivatives(case, training, partial(gradgradcheck, fast_mode=True))


@pytest.mark.slow
@over_cases
@over_modes
def test_grad_entry_by_entry(case, training):
    check_derivatives(case, training, gradcheck)


@pytest.mark.slow
@over_cases
@over_modes
def test_gradgrad_entry_by_entry(case, training):
    check_derivatives(case, training, gradgradcheck)


# ---------------------------------------------------------------------------------------------------------
# Layout of memory


@over_cases
@over_modes
def test_non_contiguous_tensors(case, training):
    def spread(t):
        """The same values with a hole after each."""
        return torch.stack([t, torch.full_like(t, torch.nan)], dim=-1)[..., 0]

    module, _ = case.twins(training=training)
    other = copy.deepcopy(module)
    x = case.input(training=training)
    g = torch.randn_like(x)
    if x.numel():
        assert not spread(x).is_contiguous()
    for actual, expected in zip(run(module, spread(x), spread(g)), run(other, x, g), strict=True):
        assert_same(actual, expected, torch.float64)
    assert_same_state(module, other, torch.float64)


@over_image_cases
@over_modes
@pytest.mark.parametrize("moved", ["input", "module", "both"])
def test_memory_format(case, training, moved):
    memory_format = CHANNELS_LAST[len(case.shape)]
    ours, theirs = case.twins(training=training)
    x = case.input(training=training)
    if moved != "module":
        x = x.to(memory_format=memory_format)
    if moved != "input":
        ours.to(memory_format=memory_format)
        theirs.to(memory_format=memory_format)
    actual, expected = ours(x), theirs(x)
    assert_same(actual, expected, torch.float64)
    assert actual.stride() == expected.stride()


@over_cases
@over_modes
def test_leaves_its_input_alone(case, training):
    module, _ = case.twins(training=training)
    x = case.input(training=training)
    kept, version = x.clone(), x._version
    y = module(x)
    assert x._version == version
    assert torch.equal(x, kept)
    assert y.numel() == 0 or y.data_ptr() != x.data_ptr()


# ---------------------------------------------------------------------------------------------------------
# Where and in which type a module is made


@over_cases
@over_dtypes
def test_factory_kwargs(case, dtype):
    """Parameters and buffers are born with the device and dtype asked for, not moved there afterwards."""
    constructor, _ = case.arguments()
    born = []

    def watch(register):
        def watched(module, name, tensor, *args, **kwargs):
            born.append(tensor)
            return register(module, name, tensor, *args, **kwargs)

        return watched

    with (
        mock.patch.object(torch.nn.Module, "register_parameter", watch(torch.nn.Module.register_parameter)),
        mock.patch.object(torch.nn.Module, "register_buffer", watch(torch.nn.Module.register_buffer)),
    ):
        module = case.ours(*constructor.args, **constructor.kwargs, device="meta", dtype=dtype)
    for tensor in (*module.state_dict().values(), *(t for t in born if t is not None)):
        assert tensor.device.type == "meta"
        assert tensor.dtype == (dtype if tensor.is_floating_point() else torch.long)


@over_cases
def test_device_context(case):
    constructor, _ = case.arguments()
    with torch.device("meta"):
        module = case.ours(*constructor.args, **constructor.kwargs)
    assert all(value.device.type == "meta" for value in module.state_dict().values())


@over_cases
@over_modes
def test_to_empty(case, training):
    """Out to the meta device and back: fresh memory, then the old state, then the old answer."""
    module, _ = case.twins(training=training)
    x = case.input(training=training)
    state, expected = copy.deepcopy(module.state_dict()), copy.deepcopy(module)(x)
    module.to("meta")
    if module.momentum is not None:  # the cumulative average reads its counter, which meta does not have
        assert module(x.to("meta")).shape == x.shape
    module.to_empty(device="cpu")
    module.load_state_dict(state)
    assert_same(module(x), expected, torch.float64)


@over_cases
@pytest.mark.parametrize("swap", [False, True], ids=["set_data", "swap"])
def test_to_dtype(case, swap):
    """``to`` keeps the parameters' identity (an optimizer holds them) and converts their gradients."""
    module, _ = case.twins(torch.float32)
    x = case.input(torch.float32, requires_grad=True)
    module(x).sum().backward()
    before = dict(module.named_parameters())
    was = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(swap)
    try:
        module.to(torch.float64)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(was)
    for name, parameter in module.named_parameters():
        assert parameter is before[name]
        assert parameter.dtype == parameter.grad.dtype == torch.float64
    for name, buffer in module.named_buffers():
        assert buffer.dtype == (torch.long if name == "num_batches_tracked" else torch.float64)
    assert module(x.double()).dtype == torch.float64


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@over_cases
@over_modes
def test_multiple_device_transfer(case, training):
    module, _ = case.twins(training=training)
    x = case.input(training=training)
    expected = copy.deepcopy(module)(x)
    module.to("cuda")
    assert all(value.device.type == "cuda" for value in module.state_dict().values())
    assert_same(copy.deepcopy(module)(x.to("cuda")).cpu(), expected, torch.float64)
    module.to("cpu")
    assert_same(module(x), expected, torch.float64)


# ---------------------------------------------------------------------------------------------------------
# State, copies, text, modes and errors


@over_classes
def test_is_a_torch_module(pair):
    ours, theirs = pair
    assert issubclass(ours, theirs)


@over_cases
def test_repr(case):
    module, theirs = case.build(case.ours), case.build(case.theirs)
    assert str(module) == repr(module)
    assert repr(module).startswith(f"{case.ours.__name__}(")
    assert theirs.extra_repr() in repr(module)


def by_pickle(module):
    return pickle.loads(pickle.dumps(module))


def by_save(module):
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@over_cases
@over_modes
@pytest.mark.parametrize("duplicate", [copy.deepcopy, by_pickle, by_save])
def test_copies(case, training, duplicate):
    module, _ = case.twins(training=training)
    x = case.input(training=training)
    module(x)
    twin = duplicate(module)
    assert type(twin) is case.ours
    assert twin.training is training
    assert repr(twin) == repr(module)
    assert_same_state(twin, module, torch.float64)
    for actual, expected in zip(run(twin, x), run(module, x), strict=True):
        assert_same(actual, expected, torch.float64)
    assert_same_state(twin, module, torch.float64)


@over_cases
@over_modes
def test_state_dict_is_torchs(case, training):
    """Checkpoints travel both ways, through a file that holds weights only."""
    ours, theirs = case.twins(training=training)
    x = case.input(training=training)
    ours(x)
    for source, target_cls in ((ours, case.theirs), (theirs, case.ours)):
        file = io.BytesIO()
        torch.save(source.state_dict(), file)
        file.seek(0)
        target = case.build(target_cls, training=training)
        target.load_state_dict(torch.load(file, weights_only=True))
        assert_same_state(target, source, torch.float64)
        assert_same(target(x), source(x), torch.float64)


@over_cases
def test_train_and_eval_modes_differ(case):
    module, _ = case.twins()
    x = case.input()
    outputs = [copy.deepcopy(module).train(training)(x) for training in (True, False)]
    if module.track_running_stats and x.numel():
        assert not torch.allclose(*outputs)
    else:
        assert_same(*outputs, torch.float64)
    assert INFOS[case.theirs].train_and_eval_differ
    del module.training
    with pytest.raises(AttributeError, match="'training'"):
        module(x)


@over_cases
def test_eval_changes_no_state(case):
    module, _ = case.twins(training=False)
    before = copy.deepcopy(module)
    module(case.input(training=False))
    assert_same_state(module, before, torch.float64)


@over_classes
def test_errors(pair):
    """What torch refuses we refuse, at construction or in the forward pass, but for eps = 0."""
    ours, theirs = pair
    info = INFOS[theirs]
    if info.module_error_inputs_func is None:
        pytest.skip("this torch lists no errors for BatchNorm")
    table = info.module_error_inputs_func(info, device="cpu", dtype=torch.float64, requires_grad=False, training=True)
    for entry in table:
        constructor, forward = entry.module_error_input.constructor_input, entry.module_error_input.forward_input
        if constructor.kwargs.get("eps") == 0:
            continue
        with pytest.raises(entry.error_type, match="eps"):
            ours(*constructor.args, **constructor.kwargs)(*forward.args, **forward.kwargs)


@over_filled_cases
def test_takes_eps_zero(case):
    """Differs from torch, which refuses it in training: the theory of batch normalization has eps = 0."""
    module, _ = case.twins()
    module.eps = 0.0
    x, (gamma, beta) = case.input(), affine(module)
    expected, _, _ = reference.batch_norm(x.numpy(), gamma, beta, 0.0)
    assert_same(module(x), torch.from_numpy(expected), torch.float64)


@over_classes
@pytest.mark.parametrize("dimensions", [1, 2, 3, 4, 5, 6])
def test_refuses_the_shapes_torch_refuses(pair, dimensions):
    x = torch.ones(2, 3, *[2] * 4)[(..., *[0] * (6 - dimensions))]
    refused = []
    for cls in pair:
        try:
            cls(3)(x)
        except ValueError:
            refused.append(True)
        else:
            refused.append(False)
    assert refused[0] == refused[1]


@over_classes
def test_refuses_one_value_per_channel(pair):
    ours, theirs = pair
    x = torch.ones(1, 3, *[1] * {torch.nn.BatchNorm2d: 2, torch.nn.BatchNorm3d: 3}.get(theirs, 0))
    with pytest.raises(ValueError, match=r"more than (1|one) value per channel"):
        ours(3)(x)
