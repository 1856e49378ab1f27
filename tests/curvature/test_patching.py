"""Replacements of torch's functions and flags: seen by other threads without harm, and gone at the end."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normscope import losses
from normscope.curvature import Network
from normscope.curvature.autograd import precision
from normscope.curvature.autograd.patching import (
    batch_norm_held,
    differentiable_kernels,
    fast_second_derivatives,
    replaced,
)
from normscope.curvature.session.opening import open_session
from normscope.isolation.lending import untouched

NAMES = [(torch, "conv1d"), (F, "conv1d"), (torch, "conv2d"), (F, "conv2d"), (torch, "conv3d"), (F, "conv3d")]
NAMES += [(torch, "batch_norm"), (torch, "relu"), (torch, "_weight_norm")]
X = torch.randn(4, 3, 12, 12, generator=torch.Generator().manual_seed(0))


@contextmanager
def all_patches() -> Iterator[None]:
    with ExitStack() as stack:
        for patch in (fast_second_derivatives(), batch_norm_held(), differentiable_kernels("cpu")):
            stack.enter_context(patch)
        yield


def in_another_thread(work: Callable[[], Any]) -> Any:
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(work()))
    thread.start()
    thread.join(60)
    return answers[0]


def flags() -> dict[str, Any]:
    return {
        "fast path": torch.backends.mha.get_fastpath_enabled(),
        "flash": torch.backends.cuda.flash_sdp_enabled(),
        "efficient": torch.backends.cuda.mem_efficient_sdp_enabled(),
        "math": torch.backends.cuda.math_sdp_enabled(),
        "precision": [precision._get("mkldnn", kind) for kind in ("all", "matmul", "conv", "rnn")],
    }


def layers() -> nn.Module:
    torch.manual_seed(1)
    normalized = torch.nn.utils.weight_norm(nn.Linear(4 * 25, 5))
    return nn.Sequential(nn.Conv2d(3, 4, 3, 2), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), normalized)


@pytest.mark.filterwarnings("ignore:.*weight_norm.*")
@pytest.mark.parametrize("training", [True, False])
def test_another_thread_has_torchs_values_and_gradients(training):
    model = layers().train(training)

    def step() -> list[Tensor]:
        output = model(X)
        return [output.detach(), *torch.autograd.grad(output.tanh().sum(), list(model.parameters()))]

    expected = step()
    with all_patches():
        seen = in_another_thread(step)
    torch.testing.assert_close(seen, expected)
    torch.testing.assert_close(step(), expected, rtol=0, atol=0)


def test_another_thread_sees_the_names_and_flags_and_its_own_autocast():
    names, before = [vars(home)[name] for home, name in NAMES], flags()
    with all_patches():
        inside, seen = flags(), in_another_thread(flags)
        theirs = in_another_thread(lambda: [vars(home)[name] for home, name in NAMES])
        with torch.autocast("cpu", torch.bfloat16):
            assert not in_another_thread(lambda: torch.is_autocast_enabled("cpu"))
    assert seen == inside
    assert not any(a is b for a, b in zip(theirs, names, strict=True))
    assert inside["fast path"] is inside["flash"] is inside["efficient"] is False
    assert inside["math"] is True
    assert set(inside["precision"]) == {"ieee"}
    assert flags() == before
    assert [vars(home)[name] for home, name in NAMES] == names


def test_autocast_is_switched_off_in_this_thread_alone():
    started, leave = threading.Event(), threading.Event()
    answers: list[bool] = []

    def trains() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            started.set()
            leave.wait(10)
            answers.append(torch.is_autocast_enabled("cpu"))

    thread = threading.Thread(target=trains)
    thread.start()
    started.wait(10)
    with torch.autocast("cpu", torch.bfloat16), differentiable_kernels("cpu"):
        assert not torch.is_autocast_enabled("cpu")
        leave.set()
        thread.join()
    assert answers == [True]


def test_names_and_flags_are_back_after_an_error():
    names, before = [vars(home)[name] for home, name in NAMES], flags()
    with pytest.raises(KeyError), all_patches():
        raise KeyError
    assert flags() == before
    assert [vars(home)[name] for home, name in NAMES] == names


def test_a_name_whose_replacement_fails_is_left_as_it_was():
    home = {"first": 1, "second": 2}

    def make(name: str, value: int) -> int:
        if name == "second":
            raise ValueError("planted")
        return 10 * value

    with pytest.raises(ValueError, match="planted"), replaced([(home, "first"), (home, "second")], make):
        pass
    assert home == {"first": 1, "second": 2}


def test_a_network_and_a_session_leave_the_flags_of_the_parameters():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    batch = torch.randn(5, 3, dtype=torch.float64), torch.randn(5, 2, dtype=torch.float64)
    with untouched(model) as lent:
        Network(lent, model, losses.half_mse, batch, stats="batch", chosen=[1])
        assert all(leaf.requires_grad for leaf in lent.leaves)
    with open_session(model, losses.half_mse, [batch], choose=lambda _: [0, 2]) as session:
        required = [True, False, True, False]
        assert [leaf.requires_grad for leaf in session.lent.leaves] == required
        whole, _ = session.search("batch", "ggn")
        block, _ = session.search("batch", "ggn", [0])
        assert [leaf.requires_grad for leaf in session.lent.leaves] == required
        again, _ = session.search("batch", "ggn")
    assert again.values == whole.values
    assert 0 < block.values[0] < whole.values[0]
