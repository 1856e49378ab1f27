"""The cost of a fault, measured on a copy after a short training."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from torch import nn
from torch.nn.modules.dropout import _DropoutNd

from normscope.diagnosis.finding import Cost
from normscope.diagnosis.look.look import STILL, Look
from normscope.diagnosis.look.passes import FORWARD, NotLooked, judged
from normscope.diagnosis.look.statistics import evaluated, mean_and_error, own_statistics, population


def cost_of_noise(look: Look) -> Cost:
    """The loss in train mode over that with statistics of the population, on training batches."""
    return _or_none(look, lambda: _in_train_mode(look, 1.0))


def cost_of_batch_statistics(look: Look) -> Cost:
    """The loss in eval mode over that in train mode, on the same training batches."""
    return _or_none(look, lambda: _in_train_mode(look, -1.0))


def cost_of_statistics(look: Look) -> Cost:
    """The loss with the running statistics to which training leads, over that with those of the population."""

    def price() -> Cost:
        _, settled = look.trained_settled
        return look.cost(look.evaluated(settled), look.evaluated(dict(settled) | dict(look.population)))

    return _or_none(look, price)


def cost_of_given_statistics(look: Look) -> Cost:
    """The loss of the user's network with its running statistics, over that with those of the population."""
    copy, batches = look.setup.copied(), look.judged_batches
    own, theirs = look.own_at_start, dict(look.own_at_start) | dict(look.population_at_start)
    try:
        worse, better = (evaluated(look.over_batch, copy, copy.model, batches, each) for each in (own, theirs))
    except NotLooked:
        return Cost()
    look.passes += 2 * FORWARD * len(batches)
    cost = look.cost(worse, better)
    return cost if math.isfinite(cost.value) else Cost()


def cost_of_dropout(look: Look) -> Cost:
    """The loss in evaluation with statistics taken with dropout, over that with statistics taken without."""

    def price() -> Cost:
        copy = look.trained.copy
        calm = population(look.over_batch, copy, copy.model, look.batches[-STILL:], dropout=False)
        look.passes += FORWARD * STILL
        return look.cost(look.evaluated(look.population), look.evaluated(calm))

    return _or_none(look, price)


def cost_of_shift(look: Look) -> Cost:
    """The loss on evaluation data with statistics of training data, over that with statistics of their own."""

    def price() -> Cost:
        copy = look.trained.copy
        own = population(look.over_batch, copy, copy.model, look.judged_batches, dropout=False)
        look.passes += FORWARD * len(look.judged_batches)
        return look.cost(look.evaluated(look.population), look.evaluated(own))

    return _or_none(look, price) if look.over_batch else Cost()


def cost_of_eval_path(look: Look) -> Cost:
    """The loss in eval mode over that in train mode with normalizers and dropout in eval mode.

    Raises:
        NotLooked: nothing was trained, or there is nothing to evaluate by.
    """
    setup = look.trained.copy.copied()
    statistics = own_statistics(look.over_batch, setup.model)
    in_eval = evaluated(look.over_batch, setup, setup.model, look.judged_batches, statistics)
    with _resting(setup.model, {norm.name for norm in look.over_batch}):
        losses = [judged(setup, setup.model, batch)[0] for batch in look.judged_batches]
    look.passes += 2 * FORWARD * len(losses)
    value, spread = mean_and_error([a - b for a, b in zip(in_eval.losses, losses, strict=True)])
    return Cost(value, spread, "loss", "measured", value / max(abs(look.chance), 1e-6))


def is_dear(cost: Cost) -> bool:
    """Whether a cost is at least 10 % of the metric or of the first loss."""
    return cost.share >= 0.1


def cost_of_moving(look: Look, names: Sequence[str]) -> Cost:
    """The loss in evaluation after training, over that with these normalizers as they were before it."""

    def price() -> Cost:
        after = look.evaluated(None)
        kept = look.trained.copy.copied()
        for name in names:
            kept.model.get_submodule(name).load_state_dict(look.setup.model.get_submodule(name).state_dict())
        look.passes += FORWARD * len(look.judged_batches)
        return look.cost(after, evaluated(look.over_batch, kept, kept.model, look.judged_batches, None))

    return _or_none(look, price) if look.batches else Cost()


@contextmanager
def _resting(model: nn.Module, names: set[str]) -> Iterator[None]:
    """While this context lasts, a copy is in train mode but for its normalizers and dropout layers."""
    model.train()
    for name, module in model.named_modules():
        if name in names or isinstance(module, _DropoutNd):
            module.eval()
    yield


def _in_train_mode(look: Look, sign: float) -> Cost:
    copy = look.trained.copy.copied()
    batches = look.batches[-STILL:]
    losses = [judged(copy, copy.model, batch)[0] for batch in batches]
    look.passes += FORWARD * len(batches)
    calm = look.evaluated(look.population, on="train").losses
    value, spread = mean_and_error([sign * (a - b) for a, b in zip(losses, calm, strict=True)])
    return Cost(value, spread, "loss", "measured", value / max(abs(look.chance), 1e-6))


def _or_none(look: Look, price: Callable[[], Cost]) -> Cost:
    """The cost; not priced where the copy diverged or cannot be evaluated."""
    try:
        found = Cost() if look.trained.diverged_at is not None else price()
    except NotLooked:
        return Cost()
    return found if math.isfinite(found.value) else Cost()
