"""NS201: running statistics that are not those of the activations they normalize."""

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from normscope.diagnosis.finding import Evidence, layers_in_words
from normscope.diagnosis.look.between import APART, NOISY, calls_differ, noise
from normscope.diagnosis.look.costs import cost_of_given_statistics, cost_of_statistics
from normscope.diagnosis.look.look import Look
from normscope.diagnosis.look.passes import NotLooked
from normscope.diagnosis.registry import Found, rule
from normscope.norms.population import Statistics

# Distances between two sets of statistics; see `_distance`.
MOVING, FRESH, RESTING = 0.35, 0.5, 1.2
_RECOMPUTE = "ns.norms.use_population_statistics(model, training_batches)  # before evaluation"


@rule("NS201", "stale-running-statistics")
def stale_running_statistics(look: Look) -> Iterator[Found]:
    """The running statistics are not those of the activations that they normalize at evaluation.

    It happens where buffers were not loaded with the parameters, where one layer is called on several kinds of input in
    a pass, where a training_step feeds other data through the network, and where training ended before the statistics
    arrived.

    Why it hurts:
        Evaluation computes another function than training: its loss is far above that of training on the same data.

    Threshold:
        The distance between two sets of statistics is the larger of two medians over channels: |difference of means| /
        deviation, and |logarithm of the ratio of variances|. eps is added to each variance. There are four limits.

        - Layers whose statistics move in training: an error above 0.35. The copy's weights are held still after its
          short training, the statistics that its batches then lead to are computed, and compared with those of the
          population.
        - Models that were trained before the look, and layers in eval mode that hold the first statistics (mean 0,
          variance 1): an error above 0.5. In a model that was trained, layers in train mode are judged by both limits;
          it is a note where the population's statistics gain nothing.
        - Other layers in eval mode: an error above 1.2, since frozen statistics of another data set are usual.
        - One layer with several inputs in a pass: an error if 5 % of the variance lies between the means of its inputs.

        In the development half of NormFaults, clean trainings have at most 0.1, and 0.26 where frozen; faults have at
        least 0.6.

    Switch off:
        The statistics are computed again before every evaluation.

    Fails:
        model = nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))
        nn.init.normal_(model[0].weight, std=0.5)
        model[:3].requires_grad_(False).eval()
        setup = training(model)

    Passes:
        model = nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))
        nn.init.normal_(model[0].weight, std=0.5)
        model.train()
        ns.norms.use_population_statistics(model, batches)
        model[:3].requires_grad_(False).eval()
        setup = training(model)
    """
    if not look.batches:
        yield from _missing(look)
        return
    yield from _several_inputs(look)
    yield from _resting(look)
    yield from _given(look)
    yield from _moving(look)


def _missing(look: Look) -> Iterator[Found]:
    """Without data: statistics that a checkpoint lacks, or that never moved."""
    names = {name.rpartition(".running_")[0] for name in look.missing if ".running_" in name}
    lacking = [norm.name for norm in look.over_batch if norm.name in names]
    if lacking:
        yield Found(
            "error",
            f"The checkpoint has no running statistics of {layers_in_words(lacking)}; those of a new layer are used.",
            Evidence("layers without running statistics", len(lacking)),
            _RECOMPUTE,
            lacking,
        )


def _several_inputs(look: Look) -> Iterator[Found]:
    values = {name: calls_differ(calls) for name, calls in look.start.trace.inputs.items()}
    found = {name: value for name, value in values.items() if value > APART}
    if found:
        worst = max(found.values())
        yield Found(
            "error",
            f"{layers_in_words(list(found))} is called several times in a pass on inputs that differ, and its running "
            "statistics are a mixture that fits none of them.",
            Evidence("variance between calls / variance", worst, limit=APART),
            "self.norms = nn.ModuleList(nn.BatchNorm1d(width) for _ in range(calls))  # one for each kind of input",
            list(found),
            source="https://discuss.pytorch.org/t/model-eval-gives-incorrect-loss-for-model-with-batchnorm-layers/7561",
        )


def _resting(look: Look) -> Iterator[Found]:
    """Layers in eval mode throughout training."""
    held = {norm.name for norm in look.over_batch if norm.trains and any(name in look.held for name in norm.parameters)}
    # NS111 judges layers in eval mode that train.
    resting = [
        norm for norm in look.over_batch if norm.tracks and norm.name not in held and look.rests_in_training(norm)
    ]
    if not resting:
        return
    try:
        population, own = look.population_at_start, look.own_at_start
    except NotLooked:
        return
    distances = _distances(look, own, population, [norm.name for norm in resting])
    fresh = {norm.name: norm.fresh for norm in resting}
    found = {name: far for name, far in distances.items() if far > (FRESH if fresh[name] else RESTING)}
    if found:
        worst = max(found, key=found.__getitem__)
        first = "the first ones, mean 0 and variance 1" if fresh[worst] else "far from those of its input"
        yield Found(
            "error",
            f"{layers_in_words(list(found))} normalizes by its running statistics, and they are {first}.",
            Evidence("distance to the population's statistics", found[worst], limit=FRESH if fresh[worst] else RESTING),
            "model.load_state_dict(checkpoint)  # with its buffers; or:\n" + _RECOMPUTE,
            list(found),
            source="https://github.com/pytorch/pytorch/issues/4741",
        )


def _given(look: Look) -> Iterator[Found]:
    """A trained model: statistics that are far from the population's although training is over or under way."""
    optimizer = look.setup.optimizer
    if optimizer is not None and not optimizer.state:
        return
    names = [norm.name for norm in look.over_batch if norm.tracks and not look.rests_in_training(norm)]
    if not names:
        return
    try:
        distances = _distances(look, look.own_at_start, look.population_at_start, names)
    except NotLooked:
        return
    found = {name: far for name, far in distances.items() if far > FRESH}
    first = {norm.name for norm in look.over_batch if norm.fresh}
    untrained = "are the first ones, mean 0 and variance 1: it was not trained, or its buffers were not loaded"
    for known, severity, said in ((True, "note", untrained), (False, "error", "are not those of its input")):
        far = {name: value for name, value in found.items() if (name in first) == known}
        if far:
            cost = cost_of_given_statistics(look)
            yield Found(
                "note" if cost.value <= 0 else severity,
                f"The running statistics of {layers_in_words(list(far))} {said}.",
                Evidence("distance to the population's statistics", max(far.values()), limit=FRESH),
                _RECOMPUTE,
                list(far),
                cost,
                source="https://github.com/pytorch/pytorch/issues/4741",
            )


def _moving(look: Look) -> Iterator[Found]:
    """The statistics to which training leads, beside the population's."""
    trace = look.start.trace
    quiet = [
        norm.name
        for norm in look.over_batch
        if norm.tracks
        and not look.rests_in_training(norm)
        and not noise(trace.inputs.get(norm.name, [])) > NOISY / 2
        and norm.momentum is not None
        and norm.momentum < 0.5
        and not calls_differ(trace.inputs.get(norm.name, [])) > APART
    ]
    if not quiet or len(look.batches) < 4 or look.setup.optimizer is None:
        return
    try:
        if look.trained.diverged_at is not None:
            return
        _, settled = look.trained_settled
        distances = _distances(look, settled, look.population, quiet)
    except NotLooked:
        return
    look.saw("NS201", "distance to the population's statistics", distances.values(), MOVING)
    found = {name: far for name, far in distances.items() if far > MOVING}
    if found and not look.batches_differ:
        yield Found(
            "error",
            f"Training leads the running statistics of {layers_in_words(list(found))} to other values than those of "
            "the input in evaluation.",
            Evidence("distance to the population's statistics", max(found.values()), limit=MOVING),
            _RECOMPUTE,
            list(found),
            cost_of_statistics(look),
            "https://github.com/pytorch/pytorch/issues/4741",
        )


def _distances(look: Look, one: Statistics, other: Statistics, names: Sequence[str]) -> dict[str, float]:
    norms = {norm.name: norm for norm in look.over_batch}
    return {
        name: _distance(one[name], other[name], norms[name].eps(torch.float32))
        for name in names
        if name in one and name in other
    }


def _distance(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor], eps: float) -> float:
    """The larger of the median difference of means in deviations and of the median log ratio of variances, with eps."""
    (mean, var), (mean_of, var_of) = (tuple(part.double() for part in pair) for pair in (one, other))
    shift = ((mean - mean_of).abs() / (var_of + eps).sqrt()).median()
    ratio = ((var + eps) / (var_of + eps)).log().abs().median()
    far = float(torch.maximum(shift, ratio))
    return far if math.isfinite(far) else math.inf
