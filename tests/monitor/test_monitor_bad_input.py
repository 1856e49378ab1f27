"""Wrong or awkward input: one clear message, and by default the run goes on to the same weights."""

import copy
import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from normscope.losses import half_mse
from normscope.models import MLP
from normscope.monitor import (
    ActivationProbe,
    CovariateShift,
    CriticalProbe,
    HealthProbe,
    Landscape,
    LandscapeProbe,
    Monitor,
    Record,
    ShiftProbe,
)

Loss = Callable[..., Tensor]
ALL = ("landscape", "critical", "shift", "activations", "health")


def _data(n: int = 8) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(n, 6, generator=generator), torch.randn(n, 3, generator=generator)


def _mlp(norm: str = "batch") -> nn.Module:
    return MLP(6, 3, width=8, depth=3, norm=norm)


def _sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = _mlp()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.inner(x)
        return y, y


def _first(output: Any, y: Tensor) -> Tensor:
    return half_mse(output[0] if isinstance(output, tuple) else output, y)


def _per_sample(output: Tensor, y: Tensor) -> Tensor:
    return (output - y).square().sum(1)


def _number(output: Tensor, y: Tensor) -> Any:
    return float(half_mse(output, y).detach())


def _other_models(model: nn.Module) -> torch.optim.Optimizer:
    return _sgd(_mlp())


def _at_rest(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.0)


def _lbfgs(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.LBFGS(model.parameters())


def _itself(model: nn.Module) -> nn.Module:
    return model


def _elsewhere(x: Tensor) -> Tensor:
    return x.to("meta")


# What is handed to the monitor: model, loss, optimizer, what is done to x; the measurement; the message.
CASES: dict[str, tuple[Callable[[], nn.Module], Loss, Any, Any, Any, str]] = {
    "loss per sample": (_mlp, _per_sample, _sgd, None, LandscapeProbe(), "must be a scalar tensor; got shape (8,)"),
    "loss a float": (_mlp, _number, _sgd, None, LandscapeProbe(), "must be a scalar tensor; got float"),
    "tuple": (Pair, half_mse, _sgd, None, LandscapeProbe(), "returns a tuple of 2, which loss_fn does not take"),
    "device": (_mlp, half_mse, _sgd, _elsewhere, LandscapeProbe(), "batch is on meta and the model on cpu"),
    "no gradient yet": (_mlp, half_mse, _sgd, None, ShiftProbe(), "after loss.backward()"),
    "no gradient yet, critical": (_mlp, half_mse, _sgd, None, CriticalProbe(), "after loss.backward()"),
    "other model": (_mlp, half_mse, _other_models, None, LandscapeProbe(), "made for another model"),
    "lbfgs": (_mlp, half_mse, _lbfgs, None, ShiftProbe(), "LBFGS needs a closure"),
    "no optimizer": (_mlp, half_mse, None, None, LandscapeProbe(), "hand in the optimizer, or lr="),
    "no optimizer, update": (_mlp, half_mse, None, None, ShiftProbe(), "no optimizer was handed in"),
    "not an optimizer": (
        _mlp,
        half_mse,
        lambda model: model,
        None,
        LandscapeProbe(),
        "must be a torch.optim.Optimizer",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_one_clear_message(name: str) -> None:
    build, loss_fn, optimizer, change, measure, message = CASES[name]
    torch.manual_seed(0)
    model = build()
    x, y = _data()
    if "yet" not in name:
        _first(model(x), y).backward()
    x = change(x) if change else x
    handed = optimizer(model) if optimizer else None
    before = copy.deepcopy(model.state_dict())
    monitor = Monitor(model, loss_fn, every=1, measure=[measure], budget=None, on_error="raise")
    with pytest.raises((ValueError, TypeError)) as caught:
        monitor.step(x, y, handed)
    assert message in str(caught.value)
    assert str(caught.value).endswith(".") or "Hand in" in str(caught.value)
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())

    # By default it is a warning, said once, and a record that holds it.
    monitor = Monitor(model, loss_fn, every=1, measure=[measure], budget=None)
    with pytest.warns(UserWarning, match="measured at step 0, and the run goes on") as said:
        record = monitor.step(x, y, handed)
    assert len(said) == 1
    assert record is not None
    assert not record.results
    assert message in " ".join(record.errors.values())
    assert monitor.step(x, y, handed) is not None  # no second warning: it would be an error here


@pytest.mark.parametrize("on_error", ["warn", "raise"])
def test_a_learning_rate_of_0_at_the_first_step_of_a_warm_up_is_one_quiet_note(on_error: str) -> None:
    torch.manual_seed(0)
    model, (x, y) = _mlp(), _data()
    _first(model(x), y).backward()
    monitor = Monitor(model, half_mse, every=1, measure="standard", budget=None, on_error=on_error)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first = monitor.step(x, y, _at_rest(model))
        again = monitor.step(x, y, _at_rest(model))
        later = monitor.step(x, y, _sgd(model))
    assert first is not None
    assert again is not None
    assert later is not None
    assert (first.errors, list(first.results)) == ({}, ["health"])
    said = "The learning rate is 0 at this step, so there is no step to measure along."
    assert first.notes.count(said) == again.notes.count(said) == monitor.notes.count(said) == 1
    assert {"critical", "landscape", "health"} == set(later.results)
    assert said not in later.notes


def _train(model: nn.Module, steps: int, snapshot: Callable[[Tensor, Tensor, Any, int], None]) -> dict[str, Tensor]:
    torch.manual_seed(1)
    optimizer = _sgd(model)
    x, y = _data()
    for step in range(steps):
        optimizer.zero_grad()
        loss = _first(model(x + 0.1 * torch.randn_like(x)), y)
        loss.backward()
        snapshot(x, y, optimizer, step)
        optimizer.step()
    return model.state_dict()


@pytest.mark.parametrize("name", [name for name in CASES if "yet" not in name])
def test_the_run_goes_on_to_the_same_weights(name: str) -> None:
    build, loss_fn, optimizer, change, measure, _ = CASES[name]
    torch.manual_seed(0)
    model = build()
    alone = _train(copy.deepcopy(model), 3, lambda *_: None)
    monitor = Monitor(model, loss_fn, every=1, measure=[measure, HealthProbe(), ActivationProbe()], budget=None)

    def snapshot(x: Tensor, y: Tensor, own: Any, step: int) -> None:
        wrong = optimizer is not None and optimizer is not _sgd
        handed = None if optimizer is None else optimizer(model) if wrong else own
        monitor.step(change(x) if change else x, y, handed)

    with pytest.warns(UserWarning, match="the run goes on"):
        watched = _train(model, 3, snapshot)
    assert len(monitor.records) == 3
    assert all(torch.equal(alone[key], watched[key]) for key in alone)


def test_a_failure_in_the_middle_of_a_look_leaves_no_trace() -> None:
    class Failing(nn.Module):
        calls = 0

        def __init__(self) -> None:
            super().__init__()
            self.inner, self.dropout = _mlp(), nn.Dropout(0.3)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.dropout(self.inner(x))
            Failing.calls += 1
            if Failing.calls % 5 == 4 and fail:
                raise RuntimeError("a forward of mine")
            return y

    fail = False
    torch.manual_seed(0)
    model = Failing()
    alone = _train(copy.deepcopy(model), 4, lambda *_: None)
    monitor = Monitor(model, half_mse, every=1, measure=ALL, budget=None)

    def snapshot(x: Tensor, y: Tensor, optimizer: Any, step: int) -> None:
        nonlocal fail
        fail = True
        monitor.step(x, y, optimizer)
        fail = False

    with pytest.warns(UserWarning, match="a forward of mine"):
        watched = _train(model, 4, snapshot)
    assert any(record.errors for record in monitor.records)
    assert any(record.results for record in monitor.records)
    assert all(torch.equal(alone[key], watched[key]) for key in alone)


def _look(model: nn.Module, *measure: Any, loss_fn: Loss = half_mse, backward: bool = True) -> Record:
    x, y = _data()
    if backward:
        loss_fn(model(x), y).backward()
    monitor = Monitor(model, loss_fn, every=1, measure=measure or ALL, budget=None, on_error="raise")
    record = monitor.step(x, y, _sgd(model))
    assert record is not None
    return record


def test_dropout_is_noted_and_two_looks_are_equal() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 3))
    first, second = _look(model), _look(model, backward=False)
    assert repr(first.results) == repr(second.results)
    assert any("draw the same" in note for note in first.notes)
    torch.rand(1)
    assert _look(model, "landscape").loss != first.loss
    plain = _look(_mlp())
    assert not plain.notes


def test_a_gradient_of_zero() -> None:
    record = _look(_mlp(), loss_fn=lambda output, y: 0.0 * output.sum())
    landscape = record.results["landscape"]
    assert landscape.grad_norm == 0
    assert set(landscape.changes) == {0.0}
    assert all(map(math.isnan, (*landscape.cosines, *landscape.betas, landscape.beta)))
    assert record.results["critical"].step == math.inf
    assert set(record.results["shift"].shifts) == {0.0}


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_divergence_is_data(bad: float) -> None:
    record = _look(_mlp(), loss_fn=lambda output, y: output.sum() * bad)
    assert not math.isfinite(record.loss)
    assert not any(map(math.isfinite, record.results["landscape"].losses))
    assert math.isnan(record.results["landscape"].beta)
    assert math.isnan(record.results["critical"].step)
    assert not record.errors
    assert set(record.results) == set(ALL)
    record.plain()
    record.summary()


def test_weights_that_are_nan_are_data_too() -> None:
    model = _mlp()
    with torch.no_grad():
        model[1].weight.fill_(math.nan)
    record = _look(model)
    assert math.isnan(record.loss)
    assert set(record.results) == set(ALL)


def test_a_loss_without_parameters_is_said() -> None:
    model = _mlp()
    with pytest.raises(ValueError, match="does not depend on any trainable parameter"):
        _look(model, LandscapeProbe(), loss_fn=lambda output, y: y.sum(), backward=False)


def test_a_frozen_model_is_said() -> None:
    model = _mlp().requires_grad_(False)
    with pytest.raises(ValueError, match="No trainable parameter"):
        _look(model, LandscapeProbe(), backward=False)


class _Sharded(nn.Linear):
    pass


_Sharded.__name__ = "FullyShardedDataParallel"


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: nn.Sequential(nn.LazyLinear(3)), "lazy layers that have not seen data"),
        (lambda: nn.Sequential(_Sharded(6, 3)), "FullyShardedDataParallel is not supported"),
        (lambda: nn.DataParallel(nn.Linear(6, 3)), "DataParallel is not supported"),
        (lambda: torch.jit.script(nn.Linear(6, 3)), "TorchScript modules cannot be measured"),
        (lambda: nn.Sequential(torch.jit.script(nn.Linear(6, 3))), "TorchScript modules cannot be measured"),
    ],
)
def test_models_that_are_refused(build: Callable[[], nn.Module], message: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # lazy modules are announced as experimental, TorchScript as deprecated
        model = build()
    with pytest.raises((TypeError, ValueError), match=message):
        Monitor(model, half_mse)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss_fn": "half_mse"}, "loss_fn must be callable; got str"),
        ({"loss_fn": half_mse, "forward": 3}, "forward must be callable; got int"),
        ({"loss_fn": half_mse, "measure": "everything"}, "everything"),
        ({"loss_fn": half_mse, "measure": ["landscapes"]}, "landscapes"),
        ({"loss_fn": half_mse, "on_error": "ignore"}, "ignore"),
        ({"loss_fn": half_mse, "every": 0}, "every"),
        ({"loss_fn": half_mse, "every": "sometimes"}, "sometimes"),
        ({"loss_fn": half_mse, "budget": -0.5}, "budget"),
    ],
)
def test_settings_that_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        Monitor(_mlp(), **options)


@pytest.mark.parametrize("factors", [(), (0.0, 1.0), (-1.0,)])
def test_factors_are_positive(factors: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="positive multiples of the step"):
        LandscapeProbe(factors)


def test_names_that_do_not_exist_are_said_with_those_that_do() -> None:
    with pytest.raises(ValueError, match="4"):
        _look(_mlp(), ShiftProbe(layers=["conv9"]))
    with pytest.raises(ValueError, match="gradient"):
        ShiftProbe(update="adam")
    with pytest.raises(ValueError, match="optimizer"):
        CriticalProbe("sgd")


def test_a_model_without_layers_to_look_at_is_said() -> None:
    class Bare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.ones(3))

        def forward(self, x: Tensor) -> Tensor:
            return x[:, :3] * self.w

    with pytest.raises(ValueError, match="no layer with a trainable weight matrix"):
        _look(Bare(), ShiftProbe())
    with pytest.raises(ValueError, match="no weight layer or normalizer"):
        _look(Bare(), ActivationProbe())
    health = _look(Bare(), HealthProbe()).results["health"]
    assert health.layers == health.depth == ()


@pytest.mark.parametrize(
    ("measure", "message"),
    [
        ([], "measure is one of light, standard, full, or a list"),
        (LandscapeProbe(), "measure is one of light, standard, full, or a list"),
        ([LandscapeProbe], "A probe is a name or an object"),
        ([LandscapeProbe((0.5,)), LandscapeProbe((2.0,))], "the second result would replace the first"),
    ],
)
def test_measurements_that_are_none_are_said(measure: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Monitor(_mlp(), half_mse, measure=measure)


class Rateless(torch.optim.Optimizer):
    def __init__(self, model: nn.Module) -> None:
        super().__init__(model.parameters(), {})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        pass


def test_an_optimizer_without_learning_rate_is_said() -> None:
    model = _mlp()
    monitor = Monitor(model, half_mse, every=1, on_error="raise")
    with pytest.raises(ValueError, match="Rateless has no learning rate in its param_groups"):
        monitor.step(*_data(), Rateless(model))


class Marked(nn.Linear):
    """Reads what a library wrote on its parameter."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) / self.weight.width  # type: ignore[attr-defined, no-any-return]


def test_attributes_of_parameters_are_there_in_a_look() -> None:
    model = Marked(6, 3)
    model.weight.width = 2.0  # type: ignore[attr-defined]
    x, y = _data()
    half_mse(model(x), y).backward()
    monitor = Monitor(model, half_mse, every=1, measure=ALL, budget=None, on_error="raise")
    assert monitor.step(x, y, _sgd(model)) is not None


def test_a_rate_of_zero_where_the_gradient_is() -> None:
    model = _mlp()
    unused = nn.Parameter(torch.zeros(3))
    model.register_parameter("unused", unused)
    groups = [{"params": [p for p in model.parameters() if p is not unused], "lr": 0.0}, {"params": [unused]}]
    x, y = _data()
    half_mse(model(x), y).backward()
    monitor = Monitor(model, half_mse, every=1, measure=["landscape"], budget=None, on_error="raise")
    monitor.step(x, y, torch.optim.SGD(groups, lr=0.1))
    row = monitor.frame().iloc[0]
    assert row.beta_limit == math.inf
    assert math.isnan(row.beta)


def test_a_step_into_nan_is_in_no_smallest_or_largest() -> None:
    for at in range(3):
        values = [1.0, 2.0, 3.0]
        values[at] = math.nan
        found = Landscape(0.1, (1.0, 2.0, 4.0), 1.0, tuple(values), 1.0, tuple(values), tuple(values)).summary()
        assert all(math.isnan(found[name]) for name in ("grad_change_min", "grad_change_max", "cosine_min", "beta"))
        shift = CovariateShift("gradient", ("a", "b", "c"), (1.0, 2.0, 3.0), tuple(values), (1.0,) * 3, ()).summary()
        rest = [v for v in values if not math.isnan(v)]
        assert shift["shift_cosine_min"] == min(rest)
        assert shift["shift_cosine_mean"] == sum(rest) / 2


def test_a_constant_channel_does_not_silence_the_statistics_of_the_others() -> None:
    x, y = _data()
    x[:, 0] = 0.0
    model = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 3))
    model[0].running_mean[1:] = 50.0
    model[0].num_batches_tracked.fill_(100)
    half_mse(model(x), y).backward()
    monitor = Monitor(model, half_mse, every=1, measure=["health"], budget=None, on_error="raise")
    record = monitor.step(x, y, _sgd(model))
    assert record is not None
    assert record.results["health"].mean_gaps[0] > 20
    assert next(v for v in record.verdicts if v.about == "statistics").good is False


class Stuck:
    """A sink that cannot be closed."""

    def open(self, settings: dict[str, Any]) -> None: ...

    def write(self, record: Record) -> None: ...

    def close(self) -> None:
        raise OSError("no space left")


def test_a_sink_that_cannot_be_closed_stops_nothing() -> None:
    with (
        pytest.warns(UserWarning, match="Stuck was not closed .* and the run goes on"),
        Monitor(_mlp(), half_mse, sinks=[Stuck()]),
    ):
        pass


def test_a_step_that_rounds_away_in_half_precision_is_no_good_news() -> None:
    model = nn.Linear(4, 2).to(torch.bfloat16)
    x, y = torch.randn(8, 4, dtype=torch.bfloat16), torch.randn(8, 2, dtype=torch.bfloat16)
    monitor = Monitor(model, nn.functional.mse_loss, measure=["landscape"], on_error="raise")
    with pytest.raises(ValueError, match=r"rounds away in weights of torch.bfloat16"):
        monitor.step(x, y, lr=1e-6)
    monitor.step(x, y, lr=1.0)


def test_steps_are_counted_from_zero() -> None:
    with pytest.raises(ValueError, match="first_step counts steps from 0"):
        Monitor(nn.Linear(2, 2), nn.functional.mse_loss, first_step=-3)


def test_where_warnings_are_errors_the_run_still_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    model, (x, y) = _mlp(), _data()
    monitor = Monitor(model, _per_sample, every=1, measure=[LandscapeProbe()], budget=None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        record = monitor.step(x, y, _sgd(model))
    assert record is not None
    assert "must be a scalar tensor" in record.errors["snapshot"]
    assert "and the run goes on" in capsys.readouterr().err


class Graphs:
    """A batch that is an object of the user's."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y


def test_a_batch_that_is_an_object_is_copied_for_every_pass() -> None:
    model, (x, y) = _mlp(), _data()
    batch = Graphs(x.clone(), y)

    def forward(model: nn.Module, batch: Graphs) -> Tensor:
        batch.x += 1.0
        return half_mse(model(batch.x), batch.y)

    found = []
    for given, loss in ((batch, forward), ((x + 1.0, y), lambda model, pair: half_mse(model(pair[0]), pair[1]))):
        monitor = Monitor(model, forward=loss, every=1, measure=[LandscapeProbe()], budget=None, on_error="raise")
        record = monitor.step(given, lr=0.1)
        assert record is not None
        found.append(record.results["landscape"])
    assert found[0] == found[1]
    assert torch.equal(batch.x, x)
