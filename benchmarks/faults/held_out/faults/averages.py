"""Averaged weights, a teacher and a target network whose running statistics are not theirs."""

import torch
from torch import nn

from faults.case import Case
from faults.data import accuracy, chunks, images, minus_squared_error, shuffled
from faults.held_out.networks import cnn
from faults.held_out.tasks import Average, FollowTarget, Values, observed, replay_buffer, td_loss, true_value
from normscope import Setup


def teacher_with_the_first_buffers(seed: int, fault: bool) -> Setup:
    torch.manual_seed(seed)
    data, model = images(), cnn()
    return Setup(
        model,
        nn.CrossEntropyLoss(),
        shuffled(data.x, data.y, size=32, steps=150, seed=seed),
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        chunks(data.x_eval, data.y_eval),
        accuracy,
        averaged_model=Average(model, 0.95, copy_buffers=not fault),
        steps=150,
    )


def target_network_without_statistics(seed: int, fault: bool) -> Setup:
    torch.manual_seed(seed)
    model, steps = Values(copy_buffers=not fault), 400
    place = torch.linspace(0, 0.999, 400)
    return Setup(
        model,
        batches=shuffled(*replay_buffer(seed), size=64, steps=steps, seed=seed),
        optimizer=torch.optim.Adam(model.online.parameters(), lr=3e-3),
        eval_batches=chunks(observed(place), true_value(place)),
        metric=minus_squared_error,
        forward=td_loss,  # type: ignore[arg-type]
        scheduler=FollowTarget(model),
        steps=steps,
    )


CASES = (
    Case(
        "teacher-with-the-first-buffers",
        "held-out",
        teacher_with_the_first_buffers,
        "averaged-weights-foreign-buffers",
        "CuriousAI/mean-teacher#9",
        fix="buffers copied with the average",
    ),
    Case(
        "target-network-without-statistics",
        "held-out",
        target_network_without_statistics,
        "averaged-weights-foreign-buffers",
        "DLR-RM/stable-baselines3#1004",
        also=("stale-running-statistics",),
        fix="running statistics copied to the target network",
    ),
)
