"""The do-no-harm context: whatever happens inside, the model leaves as it came."""

import random

import numpy as np
import pytest
import torch
from torch import nn

from normscope.isolation.lending import untouched


class Untidy(nn.Module):
    """Writes everything a forward can write."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.norm = nn.BatchNorm1d(3)
        self.dropout = nn.Dropout(0.5)
        self.register_buffer("replaced", torch.zeros(2))
        self.loose = torch.zeros(2)
        self.array = np.zeros(2)
        self.calls = 0
        self.log: list[int] = []
        self.by_name: dict[str, int] = {"a": 1}
        self.listed, self.named = [torch.zeros(2)], {"a": torch.zeros(2)}
        self.seen = {1}
        self.generator = torch.Generator().manual_seed(3)
        self.numpy_generator = np.random.default_rng(5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.replaced = self.replaced + 1
        self.loose.add_(1)
        self.array += 1
        self.calls += 1
        self.log.append(self.calls)
        self.by_name["b"] = 2
        self.listed[0].add_(1)
        self.named["a"].add_(1)
        self.seen.add(7)
        self.fresh = x
        torch.rand((), generator=self.generator)
        self.numpy_generator.random()
        random.random()
        np.random.rand()  # noqa: NPY002
        return self.dropout(self.norm(self.linear(x)))


def _state(model: Untidy) -> list[object]:
    return [
        [(name, p.clone(), p._version, id(p), p.grad) for name, p in model.named_parameters()],
        [(name, b.clone(), b._version, id(b)) for name, b in model.named_buffers()],
        (model.loose.clone(), id(model.loose), model.calls, list(model.log), dict(model.by_name), set(model.seen)),
        [(name, module.training) for name, module in model.named_modules()],
        (model.listed[0].clone(), id(model.listed[0]), model.named["a"].clone(), id(model.named["a"])),
        (model.array.tolist(), id(model.array)),
        sorted(vars(model)),
        [torch.get_rng_state(), model.generator.get_state(), str(model.numpy_generator.bit_generator.state)],
        [random.getstate(), str(np.random.get_state())],  # noqa: NPY002
        torch.is_grad_enabled(),
    ]


def _same(a: object, b: object) -> bool:
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(_same, a, b))
    return a == b


def _misuse(model: Untidy) -> None:
    model.eval()
    model.norm.train()
    for p in model.parameters():
        p.data.add_(1)
    model(torch.randn(4, 3)).sum().backward()
    model.linear = nn.Linear(3, 3)
    del model.calls


def _misuse_with_an_error(model: Untidy) -> None:
    _misuse(model)
    torch.zeros(2).view(3)


def test_everything_a_forward_can_write_is_put_back() -> None:
    model = Untidy()
    model(torch.randn(4, 3))
    before = _state(model)
    with untouched(model):
        _misuse(model)
    assert _same(_state(model), before)


def test_so_it_is_after_an_exception() -> None:
    model = Untidy()
    model(torch.randn(4, 3))
    before = _state(model)
    with pytest.raises(RuntimeError, match="shape"), untouched(model):
        _misuse_with_an_error(model)
    assert _same(_state(model), before)


def test_it_is_re_entrant_and_resets_between_forwards() -> None:
    model = Untidy()
    model(torch.randn(4, 3))
    before = _state(model)
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(1))
    with untouched(model) as lent:
        lent.reset()
        first, counts = model(x), model.calls
        with untouched(model):
            _misuse(model)
        lent.reset()
        assert torch.equal(model(x), first)
        assert model.calls == counts
    assert _same(_state(model), before)


def test_gradients_reach_the_leaves_and_not_the_parameters() -> None:
    model = Untidy()
    model.linear.weight.requires_grad_(False)
    hooked: list[int] = []
    model.linear.bias.register_hook(lambda grad: hooked.append(1))
    with untouched(model) as lent:
        model(torch.randn(4, 3)).square().sum().backward()
        assert all(leaf.grad is not None for leaf in lent.leaves)
        assert lent.names == ["linear.bias", "norm.weight", "norm.bias"]
    assert all(p.grad is None for p in model.parameters())
    assert not hooked


def test_tied_parameters_stay_tied_inside() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    with untouched(model) as lent:
        assert len(lent.leaves) == 3
        assert model[1].weight is model[0].weight is lent.leaves[0]
    assert model[1].weight is model[0].weight


def test_recurrent_layers_use_the_leaves() -> None:
    model = nn.LSTM(3, 4)
    x = torch.randn(5, 2, 3)
    expected = model(x)[0]
    with untouched(model) as lent:
        for leaf in lent.leaves:
            leaf.data.zero_()
        assert model(x)[0].abs().max() == 0
    assert torch.equal(model(x)[0], expected)


def test_no_grad_and_inference_mode_outside_do_not_reach_in() -> None:
    model = nn.Linear(2, 2)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode(), untouched(model) as lent:
            model(torch.ones(1, 2)).sum().backward()
            assert lent.leaves[0].grad is not None
