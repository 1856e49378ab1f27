"""The verdict on the course of the loss: a collapse is told, noise and a plateau are not."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from normscope import data, models
from normscope.monitor import Monitor
from normscope.monitor.loss_course import loss_verdict


def alarms(losses):
    """Whether each prefix of a course, as the Monitor judges them one after the other, gets a warning."""
    return [loss_verdict(list(enumerate(losses[: n + 1]))).good is False for n in range(len(losses))]


def test_a_collapse_is_told_from_its_second_snapshot_on_and_one_high_batch_is_not():
    noise = np.random.default_rng(0).normal(0, 0.02, 60)
    fallen = 0.29 + 0.41 * np.exp(-np.arange(40) / 8) + noise[:40]
    collapsed = np.concatenate([fallen, 0.69 + noise[40:]])
    told = alarms(collapsed)
    assert not any(told[:41])
    assert all(told[41:])
    outlier = fallen.copy()
    outlier[30] = 0.69
    assert not any(alarms(outlier))


@pytest.mark.parametrize(("draw", "false"), [("normal", 1), ("exponential", 3)])
@pytest.mark.parametrize("fall", [0.0, 5.0])
def test_noise_around_a_plateau_and_around_a_fall_is_not_told(draw, false, fall):
    """60 snapshots with noise of one standard deviation, 100 runs, each judged at every snapshot."""
    random = np.random.default_rng(0)
    course = fall * np.exp(-np.arange(60) / 10)
    assert sum(any(alarms(course + getattr(random, draw)(size=60))) for _ in range(100)) <= false


def test_a_short_run_that_falls_steadily_and_collapses_is_told():
    """So few snapshots are what a small budget leaves."""
    told = alarms([0.70, 0.60, 0.45, 0.35, 0.30, 0.29, 0.69, 0.69, 0.69])
    assert told == [False] * 7 + [True] * 2


def test_losses_near_zero_vary_by_factors_without_a_warning():
    random = np.random.default_rng(0)
    course = 2.3 * np.exp(-np.arange(120) / 5) + 10 ** random.uniform(-4, -1.5, 120)
    assert not any(alarms(course))


def test_a_loss_above_its_first_value_and_one_that_is_not_finite_are_told():
    assert alarms([2.3, 2.31, 2.3, 2.29, 2.3, 2.31, 9.0, 9.5])[-1]
    last = loss_verdict([(0, 2.3), (10, 1.2), (20, math.nan)])
    assert last.good is False
    assert "nan at step 20; its lowest was 1.2" in last.text


def test_the_monitor_warns_of_a_run_that_collapses_and_not_of_a_healthy_one():
    digits = data.digits(seed=0)

    def watched(rate_at_last):
        model = models.MLP(64, 10, width=32, depth=3, norm="none", seed=0)
        optimizer, loss_fn = torch.optim.SGD(model.parameters(), lr=0.1), nn.CrossEntropyLoss()
        monitor = Monitor(model, loss_fn, every=10, measure="light", budget=None, on_error="raise")
        batches = data.batches(digits.x_train.flatten(1), digits.y_train, batch_size=32, seed=0, steps=200)
        for step, (x, y) in enumerate(batches):
            optimizer.param_groups[0]["lr"] = 0.1 if step < 120 else rate_at_last
            optimizer.zero_grad()
            loss_fn(model(x), y).backward()
            monitor.step(x, y, optimizer)
            optimizer.step()
        return [verdict for verdict in monitor.verdicts if verdict.about == "loss"]

    assert watched(0.1) == []
    (verdict,) = watched(5.0)
    assert verdict.good is False
    assert verdict.text.startswith("The loss rose from 0.") or "is nan" in verdict.text
