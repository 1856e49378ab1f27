"""The training loop: reproducible, leaves nothing behind, and calls divergence by its exact step."""

import copy
import itertools
import json
import math

import numpy as np
import pytest
import torch
from torch import nn

import reference
from normscope import models
from normscope.losses import cross_entropy, half_sse
from normscope.models import initialize
from normscope.monitor import Monitor
from normscope.results import plain
from normscope.training import Training, accuracy, train


def random(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def network():
    model = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 2))
    initialize(model, "glorot", seed=0)
    return model


def batches(n):
    return [(random(6, 3, seed=i), torch.arange(6) % 2) for i in range(n)]


def sgd(model, lr=0.1, **options):
    return torch.optim.SGD(model.parameters(), lr=lr, **options)


def run(steps=5, model=None, **options):
    model = network() if model is None else model
    return train(model, cross_entropy, batches(steps), sgd(model), **options), model


class Scripted(nn.Module):
    """A model whose loss is what the batch says; counts its training passes."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, x):
        return x + 0 * self.weight


def scripted(values, **options):
    model = Scripted()
    stream = [(torch.tensor(float(value)), torch.tensor(0.0)) for value in values]
    return train(model, lambda output, target: output, stream, sgd(model), **options)


def test_reproducible_to_the_bit_with_dropout():
    first, model = run(seed=3)
    torch.rand(7)
    second, again = run(seed=3)
    assert first.losses == second.losses
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), again.state_dict().values(), strict=True))
    assert run(seed=4)[0].losses != first.losses


def test_global_generator_is_not_moved_even_if_something_raises():
    model = network()
    state = torch.get_rng_state()
    run(model=model)
    assert torch.equal(torch.get_rng_state(), state)
    with pytest.raises(ZeroDivisionError):
        run(model=model, evaluate=lambda model: 1 / 0)
    assert torch.equal(torch.get_rng_state(), state)


def test_what_the_caller_seeded_does_not_matter():
    model, other = network(), network()
    torch.manual_seed(11)
    first, _ = run(model=model)
    torch.manual_seed(12)
    second, _ = run(model=other)
    assert first.losses == second.losses


@pytest.mark.parametrize("check_every", [1, 7, 100])
@pytest.mark.parametrize(
    ("at", "bad"),
    [*itertools.product([0, 3, 6, 7, 12], [math.nan, math.inf, -math.inf]), (1, 2.1e6), (6, 2.1e6), (7, 2.1e6)],
)
def test_divergence_is_called_by_its_exact_step(at, bad, check_every):
    values = [2.0] * 15
    values[at] = bad
    result = scripted(values, check_every=check_every, evaluate=lambda model: {"one": 1.0}, every=2)
    assert result.diverged_at == at
    assert result.steps == at + 1
    np.testing.assert_array_equal(result.losses, np.array(values[: at + 1], dtype=np.float32))
    assert [e["step"] for e in result.evaluations] == list(range(0, at + 1, 2))
    assert result.final_loss == result.losses[-1] or math.isnan(bad)


def test_at_the_limit_is_not_yet_divergence():
    assert scripted([2.0, 2e6, 1.0]).diverged_at is None
    assert scripted([2.0, 7.0, 1.0], explode=3).diverged_at == 1
    assert scripted([-2.0, 5.0, 1.0], explode=3).diverged_at is None
    assert scripted([1.0, 1e30], explode=math.inf).diverged_at is None


def test_the_diverging_step_is_not_taken():
    layer = nn.Linear(1, 1, bias=False)
    nn.init.ones_(layer.weight)
    stream = [(torch.ones(1, 1), torch.zeros(1, 1))] * 50
    result = train(layer, half_sse, stream, sgd(layer, lr=10.0), explode=100)
    # w -> (1 - lr) w: losses 1/2 * 81^t, above 100 times the first at t = 2.
    assert result.losses == (0.5, 40.5, 3280.5)
    assert result.diverged_at == 2
    assert layer.weight.item() == 81.0


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_loop_equals_heavy_ball_on_a_quadratic(momentum):
    layer = nn.Linear(4, 1, bias=False, dtype=torch.float64)
    x, y = random(7, 4, dtype=torch.float64), random(7, 1, seed=1, dtype=torch.float64)
    nn.init.ones_(layer.weight)
    start = np.ones(4)
    a, b = x.numpy(), y.numpy()[:, 0]
    path = reference.heavy_ball(lambda theta: a.T @ (a @ theta - b), start, 0.02, momentum, 30)
    result = train(layer, half_sse, [(x, y)] * 30, sgd(layer, lr=0.02, momentum=momentum))
    np.testing.assert_allclose(layer.weight.detach().numpy()[0], path[-1], rtol=1e-11, atol=1e-11)
    losses = [0.5 * np.sum((a @ theta - b) ** 2) for theta in path[:-1]]
    np.testing.assert_allclose(result.losses, losses, rtol=1e-11)


def test_lbfgs_solves_a_quadratic():
    layer = nn.Linear(4, 1, bias=False, dtype=torch.float64)
    x, y = random(7, 4, dtype=torch.float64), random(7, 1, seed=1, dtype=torch.float64)
    nn.init.ones_(layer.weight)
    exact = {"tolerance_grad": 1e-12, "tolerance_change": 0.0, "line_search_fn": "strong_wolfe"}
    optimizer = torch.optim.LBFGS(layer.parameters(), **exact)
    result = train(layer, half_sse, [(x, y)] * 4, optimizer)
    solution = torch.linalg.lstsq(x, y).solution
    # A line search that compares losses sees the minimum to the square root of the rounding error.
    torch.testing.assert_close(layer.weight.detach().T, solution, rtol=1e-6, atol=1e-7)
    assert result.steps == 4
    assert result.settings["optimizer"] == "LBFGS"


def test_evaluation_is_in_eval_mode_without_gradients_and_leaves_no_trace():
    modes = []

    def look(model):
        modes.append((model.training, model[1].training, torch.is_grad_enabled()))
        model(random(50, 3, seed=99))
        return {"weight": float(model[0].weight.sum())}

    with_it, model = run(7, evaluate=look, every=3)
    without, other = run(7)
    assert modes == [(False, False, False)] * 4
    assert [e["step"] for e in with_it.evaluations] == [0, 3, 6, 7]
    assert with_it.losses == without.losses
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), other.state_dict().values(), strict=True))
    assert with_it.evaluations[-1]["weight"] == model[0].weight.sum().item()
    assert model[1].num_batches_tracked == 7


def modes(model):
    return [module.training for module in model.modules()]


@pytest.mark.parametrize("training", [True, False])
def test_every_layer_keeps_its_mode(training):
    model = network().train(training)
    model[1].training = not training
    before = modes(model)
    run(model=model, evaluate=lambda model: {})
    assert modes(model) == before


def raising(*args):
    raise RuntimeError("boom")


def broken_stream():
    yield batches(1)[0]
    raise RuntimeError("boom")


@pytest.mark.parametrize("where", ["evaluate", "loss", "on_step", "batches"])
@pytest.mark.parametrize("training", [True, False])
def test_every_layer_keeps_its_mode_if_something_raises(where, training):
    model = network().train(training)
    model[3].training = not training
    before = modes(model)
    with pytest.raises(RuntimeError, match="boom"):
        train(
            model,
            raising if where == "loss" else cross_entropy,
            broken_stream() if where == "batches" else batches(2),
            sgd(model),
            evaluate=raising if where == "evaluate" else None,
            on_step=raising if where == "on_step" else None,
        )
    assert modes(model) == before


def test_model_is_in_train_mode_throughout():
    seen = []
    model = network().eval()
    run(4, model=model, evaluate=lambda model: {}, every=1, on_step=lambda step: seen.append((step, model.training)))
    assert seen == [(0, True), (1, True), (2, True), (3, True)]


def strict(text):
    def refuse(constant):
        raise ValueError(constant)

    return json.loads(text, parse_constant=refuse)


def test_saved_file_is_strict_json_and_round_trips(tmp_path):
    result = scripted([2.0, 1.5, math.nan], evaluate=lambda model: {"a": math.inf, "b": -math.inf, "c": 0.1})
    result.save(tmp_path / "run.json")
    read = strict((tmp_path / "run.json").read_text())
    assert (read.pop("kind"), read.pop("schema")) == ("training", 1)
    assert set(read) == set(Training.__dataclass_fields__)
    assert read["losses"] == [2.0, 1.5, "nan"]
    assert read["evaluations"] == [{"step": 0, "a": "inf", "b": "-inf", "c": 0.1}]
    assert [float(loss) for loss in read["losses"][:2]] == list(result.losses[:2])
    assert math.isnan(float(read["losses"][2]))
    assert read["diverged_at"] == 2
    assert read["settings"]["explode"] == 1e6
    assert read["environment"] == result.environment


def test_evaluations_of_tensors_and_numpy_numbers_can_be_saved(tmp_path):
    result = scripted([1.0], evaluate=lambda model: {"a": torch.tensor(0.5), "b": np.float32(0.25), "c": 3})
    result.save(tmp_path / "run.json")
    read = strict((tmp_path / "run.json").read_text())
    assert read["evaluations"] == [{"step": step, "a": 0.5, "b": 0.25, "c": 3.0} for step in (0, 1)]


def test_floats_survive_to_the_last_bit(tmp_path):
    result, _ = run()
    result.save(str(tmp_path / "run.json"))
    assert tuple(strict((tmp_path / "run.json").read_text())["losses"]) == result.losses


def test_plain():
    assert plain({"a": (1, math.nan, [math.inf]), "b": "x", "c": None, "d": True}) == {
        "a": [1, "nan", ["inf"]],
        "b": "x",
        "c": None,
        "d": True,
    }


def test_frame_has_a_row_a_step_and_the_evaluations():
    result = scripted([4.0, 3.0, 2.0], evaluate=lambda model: {"loss": 9.0, "accuracy": 0.5}, every=2)
    frame = result.frame()
    assert list(frame.columns) == ["step", "loss", "loss_evaluated", "accuracy"]
    assert frame["step"].tolist() == [0, 1, 2, 3]
    np.testing.assert_array_equal(frame["loss"], [4.0, 3.0, 2.0, math.nan])
    np.testing.assert_array_equal(frame["loss_evaluated"], [9.0, math.nan, 9.0, 9.0])
    assert scripted([4.0, 3.0]).frame().to_dict("list") == {"step": [0, 1], "loss": [4.0, 3.0]}


@pytest.mark.parametrize(("stream", "steps"), [([], None), (batches(3), 0), (iter(()), 5)])
def test_zero_batches(stream, steps):
    model = network()
    before = copy.deepcopy(model.state_dict())
    result = train(model, cross_entropy, stream, sgd(model), steps=steps, evaluate=lambda model: {"one": 1.0})
    assert (result.losses, result.diverged_at, result.steps) == ((), None, 0)
    assert math.isnan(result.final_loss)
    assert result.evaluations == ({"step": 0, "one": 1.0},)
    assert result.frame()["step"].tolist() == [0]
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_a_generator_gives_what_it_has_and_not_more_is_taken():
    model = network()
    assert train(model, cross_entropy, iter(batches(3)), sgd(model), steps=10).steps == 3
    taken = itertools.count()
    endless = (batch for batch in itertools.cycle(batches(2)) if next(taken) >= 0)
    assert train(model, cross_entropy, endless, sgd(model), steps=4).steps == 4
    assert next(taken) == 4


def test_settings_say_what_was_used():
    model = network()
    optimizer = sgd(model, lr=0.1, momentum=0.9)
    optimizer.param_groups[0]["lr"] = 0.05
    settings = train(model, cross_entropy, batches(2), optimizer, seed=7, steps=2).settings
    assert (settings["lr"], settings["momentum"], settings["seed"], settings["steps"]) == (0.05, 0.9, 7, 2)
    assert (settings["optimizer"], settings["loss"]) == ("SGD", "cross_entropy")
    groups = [{"params": model[0].parameters()}, {"params": model[4].parameters(), "lr": 0.3}]
    settings = train(model, nn.CrossEntropyLoss(), batches(1), torch.optim.Adam(groups, lr=0.01)).settings
    assert settings["lr"] == [0.01, 0.3]
    assert settings["betas"] == (0.9, 0.999)
    assert settings["loss"] == "CrossEntropyLoss"


def test_a_copied_optimizer_of_ones_own_trains():
    class Signs(torch.optim.Optimizer):
        def __init__(self, parameters, lr):
            super().__init__(parameters, {"lr": lr})

        @torch.no_grad()
        def step(self, closure=None):
            for p in self.param_groups[0]["params"]:
                p.sub_(self.param_groups[0]["lr"] * p.grad.sign())

    model = nn.Linear(2, 1)
    model, optimizer = copy.deepcopy((model, Signs(model.parameters(), lr=0.25)))
    before = model.bias.item()
    run = train(model, nn.MSELoss(), [(torch.ones(4, 2), torch.full((4, 1), 9.0))], optimizer)
    assert (run.settings["lr"], run.settings["optimizer"]) == (0.25, "Signs")
    assert model.bias.item() == pytest.approx(before + 0.25)


def test_result_cannot_be_changed():
    result = scripted([1.0])
    with pytest.raises(AttributeError):
        result.losses = ()


@pytest.mark.parametrize("batch_size", [1, 4, 7, 1000])
def test_accuracy_against_a_loop(batch_size):
    model, x, y = nn.Linear(3, 4), random(10, 3), torch.arange(10) % 4
    nn.init.orthogonal_(model.weight, generator=torch.Generator().manual_seed(0))
    expected = sum(int(model(a[None])[0].argmax()) == int(b) for a, b in zip(x, y, strict=True)) / 10
    assert accuracy(model, x, y, batch_size=batch_size) == expected


@pytest.mark.gpu
def test_reproducible_on_a_gpu_and_its_generator_not_moved():
    stream = [(x.cuda(), y.cuda()) for x, y in batches(5)]
    before = torch.cuda.get_rng_state()
    runs = []
    for _ in range(2):
        model = network().cuda()
        torch.cuda.set_rng_state(before)
        runs.append(train(model, cross_entropy, stream, sgd(model)).losses)
        assert torch.equal(torch.cuda.get_rng_state(), before)
    assert runs[0] == runs[1]


def momentum(model, stream, **options):
    return train(model, cross_entropy, stream, sgd(model, momentum=0.9), **options)


@pytest.mark.gpu
@pytest.mark.parametrize("norm", ["none", "batch", "noisy", "l1", "group"])
def test_a_replayed_gradient_trains_as_an_eager_one(norm):
    """Also over a batch of another size, an evaluation and a look of the Monitor between two steps."""
    sizes = [16, 16, 16, 16, 16, 8, 16, 16]
    stream = [(random(n, 3, 32, 32, seed=i).cuda(), (torch.arange(n) % 10).cuda()) for i, n in enumerate(sizes)]
    found = []
    for replay in (False, True):
        model = models.VGG(11, width=0.25, norm=norm, seed=0).cuda()
        monitor = Monitor(model, cross_entropy, every=3, budget=None, on_error="raise")
        result = momentum(
            model, stream, replay=replay, monitor=monitor, every=4, evaluate=lambda m: {"mode": m.training}
        )
        looks = [record.results["landscape"].grad_norm for record in monitor.records]
        found.append((result.losses, looks, copy.deepcopy(model.state_dict())))
    (eager, eager_looks, eager_state), (again, again_looks, again_state) = found
    assert again == pytest.approx(eager, rel=1e-4)
    assert again_looks == pytest.approx(eager_looks, rel=1e-3)
    for name, value in eager_state.items():
        torch.testing.assert_close(again_state[name], value, rtol=1e-3, atol=1e-4)


@pytest.mark.gpu
def test_a_replayed_gradient_draws_other_masks_at_each_step():
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(8, 8)).cuda()
    stream = [(torch.ones(4, 8).cuda(), torch.arange(4).cuda())] * 8
    losses = [train(model, cross_entropy, stream, sgd(model, lr=0.0), replay=replay).losses for replay in (False, True)]
    assert len(set(losses[1])) == 8
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_replay_is_without_effect_on_a_cpu():
    assert run(replay=True)[0].losses == run()[0].losses


def test_a_first_loss_of_zero_is_no_divergence():
    layer = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(layer.weight)
    zero, one = (torch.ones(2, 1), torch.zeros(2, 1)), (torch.ones(2, 1), torch.ones(2, 1))
    result = train(layer, nn.functional.mse_loss, [zero, one, one], torch.optim.SGD(layer.parameters(), lr=0.1))
    assert (result.losses[0], result.diverged_at, result.steps) == (0.0, None, 3)


def test_a_loss_that_is_no_scalar_is_refused_before_it_moves_anything():
    layer = nn.Linear(1, 1)
    before = layer.weight.clone()
    with pytest.raises(ValueError, match=r"must return a scalar; got shape \(2, 1\)"):
        train(
            layer, lambda a, b: a - b, [(torch.ones(2, 1), torch.ones(2, 1))], torch.optim.SGD(layer.parameters(), lr=1)
        )
    assert torch.equal(layer.weight, before)


@pytest.mark.parametrize("counts", [{"every": 0}, {"check_every": 0}])
def test_counts_start_at_one(counts):
    layer = nn.Linear(1, 1)
    with pytest.raises(ValueError, match="count steps, from 1 on"):
        train(layer, nn.functional.mse_loss, [], torch.optim.SGD(layer.parameters(), lr=1), **counts)


def test_what_an_evaluation_draws_does_not_move_the_training():
    def run(evaluate):
        model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 1))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(0.1)
        batches = [(torch.ones(8, 4), torch.zeros(8, 1))] * 5
        return train(
            model,
            nn.functional.mse_loss,
            batches,
            torch.optim.SGD(model.parameters(), lr=0.1),
            evaluate=evaluate,
            every=1,
        ).losses

    assert run(lambda model: {"drawn": torch.rand(3).sum().item()}) == run(None)


def test_forward_takes_any_batch_and_gives_the_same_run():
    expected, _ = run(3)
    model = network()
    stream = [{"x": x, "y": y} for x, y in batches(3)]
    found = train(model, None, stream, sgd(model), forward=lambda m, batch: cross_entropy(m(batch["x"]), batch["y"]))
    assert found.losses == expected.losses
    again = network()
    assert train(again, cross_entropy, stream, sgd(again), forward=lambda m, b: m(b["x"])).losses == expected.losses
    with pytest.raises(ValueError, match="scalar"):
        train(model, None, batches(1), sgd(model), forward=lambda m, batch: m(batch[0]))


def test_autocast_is_on_in_forward_and_loss_alone():
    seen = []

    def loss(output, target):
        seen.append((output.dtype, torch.is_autocast_enabled("cpu")))
        return cross_entropy(output, target)

    model = network()
    found = train(
        model,
        loss,
        batches(2),
        sgd(model),
        autocast=torch.bfloat16,
        on_step=lambda step: seen.append(torch.is_autocast_enabled("cpu")),
    )
    assert seen == [(torch.bfloat16, True), False] * 2
    assert found.steps == 2
