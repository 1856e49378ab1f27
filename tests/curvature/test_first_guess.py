"""The critical rate that `measure` gives, and the learning rate it names to start with."""

import math
import threading

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from normscope import data, losses, models
from normscope.curvature import measure
from normscope.loss_kinds import CROSS_ENTROPY, SQUARED, LossKind
from normscope.monitor import Monitor
from normscope.prediction import predict
from normscope.stability.first_guess import first_guess_of
from normscope.stability.first_guess_evidence import COST
from normscope.stability.first_guess_rates import rate_from_measurement
from normscope.stability.first_guess_words import advice_from_measurement, in_digits
from normscope.stability.optimizer_rules import ADAM, MOMENTUM, PLAIN, kind_of_descent


@pytest.fixture
def task():
    digits = data.digits(seed=0)
    model = models.MLP(64, 10, width=16, depth=3, norm="batch", seed=0)
    return model, (digits.x_train[:64].flatten(1), digits.y_train[:64])


def test_on_a_quadratic_it_is_twice_the_gradient_over_the_curvature_along_it():
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(20, n, generator=generator, dtype=torch.float64) for n in (5, 1))
    model = nn.Linear(5, 1, bias=False, dtype=torch.float64)
    found = measure(model, losses.half_mse, (x, y), momentum=0.9)
    hessian = x.T @ x / 20
    g = (model.weight.detach() @ hessian).flatten() - (x.T @ y / 20).flatten()
    assert found.critical_rate == pytest.approx(float(2 * g @ g / (g @ hessian @ g)), rel=1e-6)
    assert found.critical_rate >= 2 / found.lambda_max


@pytest.mark.parametrize("kind", ["sgd", "momentum", "adam"])
def test_it_is_that_of_the_monitor_and_leaves_the_model_alone(task, kind):
    model, (x, y) = task
    if kind == "adam":
        optimizer: torch.optim.Optimizer = torch.optim.Adam(model.parameters(), lr=1e-12)
        losses.half_mse(model(x), y).backward()
        optimizer.step()
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9 * (kind == "momentum"))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = measure(model, losses.half_mse, (x, y), optimizer=optimizer)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    optimizer.zero_grad()
    losses.half_mse(model(x), y).backward()
    optimizer.param_groups[0]["lr"] = found.eta_star
    monitor = Monitor(model, losses.half_mse, every=1, measure=["critical"], budget=None)
    monitor.step(x, y, optimizer)
    assert found.critical_rate == pytest.approx(monitor.records[-1].results["critical"].eta, rel=0.05)
    expected = 0.8 * found.critical_rate
    assert found.first_guess == pytest.approx(min(expected, found.eta_star / 2) if kind == "momentum" else expected)


def test_over_several_batches_it_is_that_of_their_mean_loss(task):
    model, (x, y) = task
    twice = measure(model, losses.half_mse, [(x, y), (x, y)], over="batches")
    assert twice.critical_rate == pytest.approx(measure(model, losses.half_mse, (x, y)).critical_rate, rel=1e-3)


def test_the_rate_depends_on_loss_and_optimizer():
    assert rate_from_measurement(0.5, 0.1, SQUARED, PLAIN) == pytest.approx(0.4)
    assert rate_from_measurement(0.5, 0.1, SQUARED, MOMENTUM) == pytest.approx(0.05)
    assert rate_from_measurement(0.5, 9.0, SQUARED, MOMENTUM) == pytest.approx(0.4)
    assert rate_from_measurement(0.5, 0.1, SQUARED, ADAM) == pytest.approx(0.4)
    assert rate_from_measurement(0.5, 0.1, CROSS_ENTROPY, MOMENTUM) == pytest.approx(0.05)
    for critical in (0.0, math.inf, math.nan):
        assert math.isnan(rate_from_measurement(critical, 0.1, SQUARED, MOMENTUM))
        assert not advice_from_measurement(critical, 0.1, SQUARED, MOMENTUM)


class DividesByRms(nn.Module):
    def forward(self, x):
        return x / x.square().mean().sqrt()


class Rescaled(nn.Linear):
    """A quadratic in the weights, of inputs divided by their root mean square: a network with a normalizer."""

    def __init__(self, *sizes, **options):
        super().__init__(*sizes, **options)
        self.inputs = DividesByRms()

    def forward(self, x):
        return super().forward(self.inputs(x))


def test_a_verdict_on_the_rate_to_start_with_says_what_being_beyond_eta_star_means():
    x = torch.diag(torch.tensor([3.0, 1.0], dtype=torch.float64))
    model = Rescaled(2, 1, bias=False, dtype=torch.float64)
    nn.init.zeros_(model.weight)
    flat = measure(model, losses.half_mse, (x, torch.tensor([[0.0], [1.0]], dtype=torch.float64)))
    assert flat.first_guess > flat.eta_star
    said = flat.verdict(flat.first_guess).text
    assert "unstable" in said
    assert said.endswith("This rate is beyond eta*: networks with a normalizer train there, but not all: try less too.")
    steep = measure(model, losses.half_mse, (x, torch.tensor([[1.0], [0.0]], dtype=torch.float64)))
    assert steep.verdict(0.1).text.endswith(f"To start training with: {in_digits(*steep.first_guess_range)}.")


def test_a_verdict_says_why_it_names_a_rate_above_one_that_it_calls_unstable(task):
    model, batch = task
    found = measure(model, losses.cross_entropy, batch)
    assert found.first_guess > found.eta_star
    unstable, stable = found.verdict(1.01 * found.eta_star).text, found.verdict(0.9 * found.eta_star).text
    assert "is unstable" in unstable
    assert unstable.endswith(f"only at the critical rate {found.critical_rate:.2g}.")
    assert "is stable" in stable
    assert "beyond eta* too" not in stable


def test_what_was_not_tried_gets_no_rate(task):
    model, (x, y) = task
    target = F.one_hot(y, 10).float()
    other = measure(model, F.l1_loss, (x, target), matrix="hessian")
    assert other.critical_rate > 0
    assert math.isnan(other.first_guess)
    assert not other.advice
    assert silent(other).endswith("known for cross-entropy and squared error, and this loss is neither.")
    assert any("The loss counts as neither" in note and "it is linear in outputs" in note for note in other.notes)
    assert kind_of_descent(torch.optim.RMSprop(model.parameters()), {"momentum": 0.9}) == ""
    rmsprop = torch.optim.RMSprop(model.parameters())
    losses.half_mse(model(x), y).backward()
    rmsprop.step()
    for options, why in (
        ({"stats": "frozen"}, "the critical rate is measured with stats='batch', and not with stats='frozen'."),
        (
            {"dtype": torch.float64},
            "the critical rate is measured in the model's own precision, and not in torch.float64.",
        ),
        ({"optimizer": rmsprop}, "shares of the critical rate are known for SGD, Adam and AdamW, and not for RMSprop."),
    ):
        found = measure(model, losses.half_mse, (x, y), **options)
        assert math.isnan(found.first_guess)
        assert silent(found) == why


@pytest.mark.parametrize(
    ("critical", "kind", "descent", "said"),
    [
        (0.0, LossKind(SQUARED), PLAIN, "the loss rises at every step tried"),
        (math.inf, LossKind(SQUARED), PLAIN, "no rise of the loss was found"),
        (math.nan, LossKind(CROSS_ENTROPY), PLAIN, "the critical rate was not measured"),
        (1.0, LossKind("other", "it raised"), PLAIN, "this loss is neither"),
        (1.0, LossKind(CROSS_ENTROPY), "", "and not for LBFGS"),
    ],
)
def test_where_no_rate_is_named_a_note_says_why(critical, kind, descent, said):
    found = first_guess_of(critical, (critical,), 0.1, kind, descent, optimizer="LBFGS")
    assert math.isnan(found.rate)
    (note,) = found.notes
    assert note.startswith("No learning rate to start with is named: ")
    assert said in note


def test_a_rate_is_given_in_one_digit_and_over_batches_as_a_range():
    one = first_guess_of(0.543, (0.543,), 0.6, LossKind(SQUARED), PLAIN, optimizer="SGD")
    assert one.advice.startswith("To start training with: 0.4, 0.8 times the critical rate 0.54.")
    assert not one.notes
    several = first_guess_of(0.543, (0.543, 0.11, 1.9), 0.6, LossKind(SQUARED), PLAIN, optimizer="SGD")
    assert several.rate == one.rate
    assert several.over_batches == pytest.approx((0.088, 1.52))
    assert several.advice.startswith("To start training with: 0.09 to 2, 0.8 times the critical rate of each batch.")
    assert "varies over these 3 batches, from 0.11 to 1.9" in several.notes[0]
    some = first_guess_of(0.5, (0.5, math.inf, 0.4), 0.6, LossKind(SQUARED), PLAIN, optimizer="SGD")
    assert some.over_batches == pytest.approx((0.32, 0.4))
    assert some.notes == ("1 of 3 batches has no critical rate.",)


def test_a_rate_far_beyond_eta_star_is_noted():
    assert not first_guess_of(12.0, (12.0,), 1.0, LossKind(SQUARED), PLAIN, optimizer="SGD").notes
    (note,) = first_guess_of(13.0, (13.0,), 1.0, LossKind(SQUARED), PLAIN, optimizer="SGD").notes
    assert "is 10 times eta* = 1" in note
    x, y = torch.diag(torch.tensor([1.0, 9.0])), torch.tensor([[1.0], [0.0]])
    model = Rescaled(2, 1, bias=False)
    nn.init.zeros_(model.weight)
    found = measure(model, losses.half_mse, (x, y))
    assert found.first_guess > 10 * found.eta_star
    assert any("times eta*" in note for note in found.notes)


def test_a_cross_entropy_of_ones_own_gets_what_torch_s_gets(task):
    model, (x, y) = task
    known = measure(model, F.cross_entropy, (x, y))
    own = measure(model, lambda z, t: F.cross_entropy(z, t, label_smoothing=0.0), (x, y))
    assert own.loss_kind == CROSS_ENTROPY
    assert own.advice == known.advice
    assert own.notes == known.notes
    assert (
        "networks with BatchNorm survive far above eta*, "
        "but may learn badly from eta* on; those without may fail below it" in own.verdict(1.0).text
    )


def silent(found):
    (note,) = (note for note in found.notes if note.startswith("No learning rate"))
    return note.removeprefix("No learning rate to start with is named: ")


def test_with_small_batches_the_advice_says_that_it_may_be_far_too_large(task):
    model, (x, y) = task
    cut = {"micro_batch": 8, "over": "data", "stats": "batch"}
    for samples, small in ((8, True), (63, True), (64, False)):
        found = measure(model, losses.cross_entropy, (x[:samples], y[:samples]), momentum=0.9)
        assert ("20 times too large" in found.advice) is small
        assert any(f"here the smallest batch has {samples}. With batches of 8" in n for n in found.notes) is small
        assert any("is from batches of 128 samples" in n for n in found.notes)
    sizes = [(x[:64], y[:64]), (x[:8], y[:8])]
    found = measure(model, losses.cross_entropy, sizes, momentum=0.9)
    assert "20 times too large" in found.advice
    free = models.MLP(64, 10, width=16, depth=3, norm="none", seed=0)
    parts = measure(free, losses.cross_entropy, (x, y), momentum=0.9, **cut)
    assert "20 times" not in parts.advice
    assert parts.advice


def test_a_rate_far_below_the_first_guess_is_ok_and_noted(task):
    model, (x, y) = task
    found = measure(model, losses.cross_entropy, (x, y), momentum=0.9)
    low = found.first_guess_range[0]
    far, near = found.verdict(low / 40), found.verdict(low / 10)
    assert far.good is near.good is True
    assert "is 40 times below it, so training may be slow." in far.text
    assert "times below it" not in near.text
    assert "times below it" not in found.verdict(10 * low).text


def test_the_advice_names_the_tasks_it_rests_on(task):
    model, (x, y) = task
    for loss in (losses.cross_entropy, losses.half_mse):
        advice = measure(model, loss, (x, y)).advice
        assert "MLPs and CNNs on digits, MNIST or CIFAR-10; transformers and regression were not tried." in advice


def test_results_say_it_with_what_it_has_cost(task):
    model, (x, y) = task
    found = measure(model, losses.cross_entropy, (x, y), momentum=0.9)
    tasks, median, worst = COST[CROSS_ENTROPY, MOMENTUM]
    assert f"on {tasks} tasks with a normalizer (cross-entropy, momentum)" in found.advice
    assert f"{median:.1f} points" in found.advice
    assert f"{worst:.1f} at worst: try rates around it too." in found.advice
    assert found.advice in str(found)
    assert found.verdict(0.1).text.endswith(f"To start training with: {in_digits(*found.first_guess_range)}.")
    assert found.plain()["advice"] == found.advice
    # Of enough channels for the theory to name a rate.
    wide = models.MLP(64, 10, width=200, norm="batch", seed=0)
    predicted = predict(wide, (64,), "half_mse", 64)
    assert predicted.first_guess == predicted.eta_star / 2
    assert predicted.advice in str(predicted)
    assert f"To start training with: {in_digits(*[predicted.first_guess] * 2)}." in predicted.verdict(0.1).text
    printed = predict(wide, (64,), "half_mse", 64, theory="paper")
    assert "To start" not in str(printed) + printed.verdict(0.1).text


def test_of_some_parameters_it_is_that_of_their_own_group(task):
    model, (x, y) = task
    (*others, last) = (p for name, p in model.named_parameters() if not name.endswith("bias"))
    (mine,) = (name for name, p in model.named_parameters() if p is last)
    alone = torch.optim.SGD([last], lr=0.001, momentum=0.9)
    groups = [{"params": others, "lr": 0.1}, {"params": [last], "lr": 0.001, "momentum": 0.9}]
    both = torch.optim.SGD(groups)
    found, expected = (
        measure(model, losses.half_mse, (x, y), optimizer=optimizer, parameters=lambda name, _: name == mine)
        for optimizer in (both, alone)
    )
    assert found.critical_rate == pytest.approx(expected.critical_rate, rel=1e-3)
    assert found.first_guess == pytest.approx(expected.first_guess, rel=1e-3)
    assert "(squared error, momentum)" in found.advice
    assert found.optimizer == "SGD (momentum=0.9), 2 groups"


def refusing(outputs: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    if (outputs - target).square().mean() > refusing.most:
        raise ValueError("The outputs are too far off.\nSo far.")
    return losses.half_mse(outputs, target)


def test_where_it_cannot_be_measured_the_rest_is_and_a_note_says_why(task):
    model, (x, y) = task
    target = F.one_hot(y, 10).float()
    refusing.most = float((model(x) - target).square().mean().detach()) * 1.001
    found = measure(model, refusing, (x, target), matrix="hessian")
    assert found.lambda_max > 0
    assert math.isnan(found.critical_rate)
    assert "The critical rate was not measured: The outputs are too far off." in found.notes
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.lock = threading.Lock()
    found = measure(model, losses.half_mse, (x, y), optimizer=optimizer)
    assert found.eta_star > 0
    assert not found.advice
    assert any("The lock of SGD cannot be copied" in note for note in found.notes)


@pytest.mark.parametrize(("kind", "diverges"), [(nn.Linear, False), (Rescaled, True)])
def test_without_a_normalizer_the_rate_stays_below_eta_star_where_training_ends(kind, diverges):
    x, y = torch.diag(torch.tensor([1.0, 3.0])), torch.tensor([[1.0], [0.01]])
    model = kind(2, 1, bias=False)
    nn.init.zeros_(model.weight)
    found = measure(model, losses.half_mse, (x, y))
    assert 0.8 * found.critical_rate > found.eta_star
    assert ("This rate is beyond eta*" in found.advice) == diverges
    assert ("0.8 times eta*, since there is no normalizer" in found.advice) != diverges
    if not diverges:
        assert found.first_guess == pytest.approx(0.8 * found.eta_star)
        assert found.first_guess_range == pytest.approx((0.8 * found.eta_star,) * 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=found.first_guess)
    for _ in range(20):
        optimizer.zero_grad()
        losses.half_mse(model(x), y).backward()
        optimizer.step()
    assert (float(losses.half_mse(model(x), y).detach()) > 100 * found.loss) == diverges


def test_advice_within_eta_star_and_with_cross_entropy_warns_of_nothing():
    assert "beyond" not in advice_from_measurement(0.5, 0.45, SQUARED, PLAIN)
    assert "beyond" not in advice_from_measurement(0.5, 0.01, CROSS_ENTROPY, PLAIN)
