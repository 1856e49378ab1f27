"""Lines on the phase diagram: predicted and measured eta* of the initial network on the first batch, for each value."""

import os
from copy import deepcopy
from dataclasses import replace

import torch

from normscope.curvature import Solver, measure
from normscope.data import batches
from normscope.losses import LOSSES
from normscope.prediction import predict
from normscope.stability import momentum_limit
from normscope.sweeping.networks import prepare
from normscope.sweeping.numerics import numerics
from normscope.sweeping.plan import Cell, Plan
from normscope.sweeping.stacked_step import seed_of_step
from normscope.training import seeded_on


def predicted_line(plan: Plan, *, root: str | os.PathLike[str] | None = None) -> dict[float, float]:
    """eta* by `normscope.predict`, as trained, for each value of the axis, with the overlaps of the plan's first batch.

    eta* is that of the plan's momentum and weight decay.

    Args:
        plan: the plan of the sweep.
        root: the data folder, for data sets with files.

    Returns:
        eta* by the value of the axis.
    """
    networks, data = prepare(plan, root, torch.device("cpu"))
    ((x, _),) = batches(data.x_train, data.y_train, batch_size=plan.batch_size, seed=plan.stream_seed, steps=1)
    line = {}
    for value in plan.values:
        _, momentum, decay = plan.optimizer(Cell(1.0, value, plan.seeds[0]))
        model = networks.initial(value, plan.seeds[0])
        prediction = predict(model, tuple(x.shape[1:]), plan.loss, len(x), momentum=momentum, batch=x)
        line[value] = momentum_limit(momentum).factor / (prediction.lambda_max + decay)
    return line


def measured_line(
    plan: Plan, *, device: str | None = None, root: str | os.PathLike[str] | None = None
) -> dict[float, float]:
    """eta* by `normscope.measure`, as trained, at initialization, for each value of the axis.

    eta* is that of the plan's optimizer; the network is that of the plan's first seed.

    Args:
        plan: the plan of the sweep.
        device: "cpu" or "cuda"; by default the GPU if there is one.
        root: the data folder, for data sets with files.

    Returns:
        eta* by the value of the axis.
    """
    where = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    networks, data = prepare(plan, root, where)
    stream = batches(data.x_train, data.y_train, batch_size=plan.batch_size, seed=plan.stream_seed, steps=1)
    (batch,) = stream
    line = {}
    for value in plan.values:
        model = deepcopy(networks.initial(value, plan.seeds[0])).to(where)
        lr, momentum, decay = plan.optimizer(Cell(1.0, value, plan.seeds[0]))
        optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum, weight_decay=decay)
        # In full float32: TensorFloat-32 products are too coarse for a residual of 1e-3.
        # The generator is seeded as in the first training step, so layers draw the same numbers.
        with numerics(replace(plan, tf32=False), where), seeded_on(seed_of_step(plan.stream_seed, 0), where):
            line[value] = measure(
                model, LOSSES[plan.loss], batch, optimizer=optimizer, solver=Solver(tol=1e-3)
            ).eta_star
    return line
