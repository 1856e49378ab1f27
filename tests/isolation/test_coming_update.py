"""The optimizer's coming step is taken on copies, whatever the optimizer holds."""

from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from normscope.isolation.coming_update import plain_optimizer, updated
from normscope.losses import half_mse
from normscope.monitor import Monitor


class OwnLists(torch.optim.Optimizer):
    """Steps over lists of its own, as hand-written optimizers do."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self.mine = list(parameters)
        super().__init__(self.mine, {"lr": 0.1})
        self.momenta = [torch.zeros_like(p) for p in self.mine]

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for p, momentum in zip(self.mine, self.momenta, strict=True):
            if p.grad is not None:
                p.add_(momentum.mul_(0.9).add_(p.grad), alpha=-0.1)


class Around(torch.optim.Optimizer):
    """Hands its step to an optimizer inside it."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self.base = OwnLists(parameters)
        super().__init__(self.base.mine, {"lr": 0.1})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.base.step()


class Lookahead(torch.optim.Optimizer):
    """Goes half of the way that the optimizer inside it would go; shows that one under the name wrappers use."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self.optimizer = OwnLists(parameters)
        super().__init__(self.optimizer.mine, {"lr": 0.1})
        self.momenta = self.optimizer.momenta

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        slow = [p.clone() for p in self.optimizer.mine]
        self.optimizer.step()
        for p, before in zip(self.optimizer.mine, slow, strict=True):
            p.lerp_(before, 0.5)


class Broken(OwnLists):
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        raise TypeError("unsupported operand")


class Uncopied(OwnLists):
    """Holds what nobody can copy."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        super().__init__(parameters)
        self.handle = (i for i in ())


def _started(kind: type[torch.optim.Optimizer]) -> tuple[nn.Linear, Any, Tensor, Tensor]:
    torch.manual_seed(0)
    model, x, y = nn.Linear(4, 2), torch.randn(8, 4), torch.randn(8, 2)
    optimizer: Any = kind(model.parameters())  # type: ignore[arg-type]
    for _ in range(2):
        optimizer.zero_grad()
        half_mse(model(x), y).backward()
        optimizer.step()
    return model, optimizer, x, y


@pytest.mark.parametrize("kind", [OwnLists, Around, Lookahead])
def test_parameters_and_buffers_in_attributes_are_copied_too(kind: type[torch.optim.Optimizer]) -> None:
    model, optimizer, _, _ = _started(kind)
    parameters = list(model.parameters())
    held = [*parameters, *getattr(optimizer, "base", optimizer).momenta]
    before = [(tensor.clone(), tensor._version) for tensor in held]
    coming = updated(plain_optimizer(optimizer), parameters)
    assert all(torch.equal(t, b) and t._version == v for t, (b, v) in zip(held, before, strict=True))
    optimizer.step()
    assert all(map(torch.equal, coming, parameters))


def test_an_error_of_the_step_is_not_taken_for_a_missing_closure() -> None:
    model, optimizer, _, _ = _started(OwnLists)
    optimizer.__class__ = Broken
    with pytest.raises(TypeError, match="unsupported operand"):
        updated(optimizer, list(model.parameters()))


def test_an_optimizer_that_cannot_be_copied_is_said_and_not_stepped() -> None:
    model, optimizer, x, y = _started(Uncopied)
    before = [p.clone() for p in model.parameters()]
    with pytest.warns(UserWarning, match="The handle of Uncopied cannot be copied"):
        record = Monitor(model, half_mse, every=1, measure="light", budget=None).step(x, y, optimizer)
    assert record is not None
    assert set(record.errors) == {"critical"}
    assert all(map(torch.equal, before, model.parameters()))


class Noisy(torch.optim.SGD):
    """Langevin's: the step draws."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        super().__init__(parameters, lr=0.1)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for p in self.param_groups[0]["params"]:
            p.add_(torch.randn_like(p), alpha=0.01)


class After:
    name, forward_only = "after", False

    def measure(self, probe: Any) -> Any:
        self.found = [tensor.clone() for tensor in probe.after("optimizer")]
        raise ValueError("That is all.")


def test_a_step_that_draws_is_the_one_that_comes() -> None:
    torch.manual_seed(0)
    model, x, y = nn.Sequential(nn.Linear(4, 2), nn.Dropout(0.5)), torch.randn(8, 4), torch.randn(8, 2)
    optimizer, after = Noisy(model.parameters()), After()
    half_mse(model(x), y).backward()
    with pytest.warns(UserWarning, match="That is all"):
        Monitor(model, half_mse, every=1, measure=[after], budget=None).step(x, y, optimizer)
    optimizer.step()
    assert all(map(torch.equal, after.found, model.parameters()))
