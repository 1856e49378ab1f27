"""The look: everything that the rules judge from, each part gathered when a rule first asks for it.

The cost stays below that of 40 training steps and of 60 seconds. A copy is trained for 16 steps, or for 34 where no
normalizer has statistics over the batch. Before and after it there are passes over a few batches, and up to 6 batches
are evaluated with two kinds of statistics, each at a third of a step.
"""

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import nn

from normscope.diagnosis.finding import Cost, Evidence
from normscope.diagnosis.look.between import APART, calls_differ, excess
from normscope.diagnosis.look.normalizers import Normalizer, normalizers_of
from normscope.diagnosis.look.passes import FORWARD, NotLooked, judged, still_pass, trained
from normscope.diagnosis.look.protection import check_copies_only
from normscope.diagnosis.look.records import Explained, Start, Trained
from normscope.diagnosis.look.statistics import (
    Evaluated,
    evaluated,
    mean_and_error,
    own_statistics,
    population,
    settled_statistics,
)
from normscope.diagnosis.look.trace import Trace, traced
from normscope.isolation.batches import samples
from normscope.isolation.lending import Lent
from normscope.norms.population import Statistics
from normscope.scheduler_factors import factors_of_scheduler
from normscope.setup import Setup

STEPS, STEPS_WITHOUT, SECONDS = 16, 34, 60.0
STILL, EVALUATED = 6, 6
# Passes before any step where batches are small, whose statistics say little each, and the samples of such a batch.
STILL_OF_SMALL, SMALL = 12, 8
# A loss above this multiple of the first loss ends the training of the copy.
EXPLODES = 1e4


@dataclass(eq=False)
class Look:
    """All that the rules know of one training.

    Attributes:
        setup: a copy of the user's setup, without batches and wrappers. It is read, and copied for every pass.
        lent: the copies that the user's model holds meanwhile.
        batches, eval_batches: the batches that were read.
        all_eval_batches: more evaluation batches, to look at their inputs alone.
        sizes: samples of every batch of an epoch, as far as they were counted.
        epoch: number of batches of an epoch, or None where it is not known.
        steps: planned optimizer steps, or None.
        missing: buffers and parameters that a checkpoint lacks.
        processes: number of processes that train.
        measured: by id of a rule, the number that it judged by, also where it found nothing.
    """

    setup: Setup
    lent: Lent
    batches: Sequence[Any] = ()
    eval_batches: Sequence[Any] = ()
    all_eval_batches: Sequence[Any] = ()
    sizes: Sequence[int] = ()
    epoch: int | None = None
    steps: int | None = None
    missing: Sequence[str] = ()
    processes: int = 1
    started: float = field(default_factory=time.perf_counter)
    passes: float = 0.0
    measured: dict[str, Evidence] = field(default_factory=dict)

    @cached_property
    def _normalizers(self) -> Any:
        return normalizers_of(self.setup.model)

    @property
    def normalizers(self) -> tuple[Normalizer, ...]:
        """All normalizers that were recognized."""
        found: tuple[Normalizer, ...] = self._normalizers[0]
        return found

    @property
    def unrecognized(self) -> dict[str, str]:
        """Names of layers that look like a normalizer and were not recognized, with the reason."""
        return dict(self._normalizers[1])

    def saw(self, rule: str, what: str, values: Iterable[float], limit: float) -> None:
        """Keep the largest of the numbers by which a rule judges; numbers that are not finite are left out."""
        finite = [value for value in values if math.isfinite(value)]
        if finite:
            self.measured[rule] = Evidence(what, max(finite), limit=limit)

    @property
    def over_batch(self) -> list[Normalizer]:
        """The normalizers with statistics over the batch."""
        return [norm for norm in self.normalizers if norm.over_batch]

    @property
    def batch_size(self) -> int:
        """The samples of the first batch."""
        return samples(self.batches[0]) if self.batches else 0

    @property
    def updates(self) -> int | None:
        """The planned number of training batches, or None."""
        return None if self.steps is None else self.steps * self.setup.accumulate

    @cached_property
    def parameters(self) -> dict[str, nn.Parameter]:
        """All parameters by name."""
        return dict(self.setup.model.named_parameters(remove_duplicate=False))

    @cached_property
    def held(self) -> dict[str, int]:
        """For each parameter that the optimizer holds, by name in the model: the number of its group."""
        if self.setup.optimizer is None:
            return {}
        groups = self.setup.optimizer.param_groups
        numbers = {id(p): number for number, group in enumerate(groups) for p in group["params"]}
        return {name: numbers[id(p)] for name, p in self.parameters.items() if id(p) in numbers}

    def group_of(self, name: str) -> dict[str, Any] | None:
        """The optimizer's group that holds the parameter."""
        if name not in self.held or self.setup.optimizer is None:
            return None
        return self.setup.optimizer.param_groups[self.held[name]]

    @cached_property
    def mean_factor(self) -> float:
        """The mean factor of the scheduler on the base rate over the planned steps; 1 without either."""
        copy = self.setup.copied()
        if copy.scheduler is None or copy.optimizer is None or not self.steps:
            return 1.0
        if isinstance(copy.scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
            return 1.0
        factors = factors_of_scheduler(copy.optimizer, copy.scheduler, self.steps)
        return sum(factors) / len(factors)

    def weights_beside(self, norm: Normalizer) -> list[str]:
        """Names of the weights in the nearest module around a normalizer that has any beside normalizers."""
        own = {name for each in self.normalizers for name in each.parameters}
        place = norm.name
        while place:
            place = place.rpartition(".")[0]
            prefix = f"{place}." if place else ""
            beside = [name for name in self.parameters if name.startswith(prefix) and name not in own]
            if beside:
                return beside
        return []

    def is_frozen(self, name: str) -> bool:
        """Whether a parameter stays as it is: it is not trained, and a short training did not move it."""
        trained_elsewhere = self.setup.training_step is not None
        asks = self.parameters[name].requires_grad and (name in self.held or trained_elsewhere)
        if asks:
            return False
        try:
            return name not in self.trained.moved
        except NotLooked:
            return True

    def rests_in_training(self, norm: Normalizer) -> bool:
        """Whether a normalizer is in eval mode in every pass of training."""
        try:
            calls = self.start.trace.inputs.get(norm.name, [])
        except NotLooked:
            calls = []
        return not any(call.training for call in calls) if calls else not norm.layer.training

    @property
    def training_at_evaluation(self) -> list[str]:
        """Normalizers over the batch that take statistics of the batch after `model.eval()`."""
        if self.batches:
            calls = self.trace_at_evaluation.inputs
            return [name for name, each in calls.items() if any(call.training for call in each)]
        copy = self.setup.copied()
        copy.model.eval()
        modules = dict(copy.model.named_modules())
        return [norm.name for norm in self.over_batch if modules[norm.name].training]

    @cached_property
    def trace_at_evaluation(self) -> Trace:
        """The calls of normalizers in eval mode on evaluation batches, before any step."""
        copy = self.setup.copied()
        copy.model.eval()
        with traced(copy.model, self.normalizers) as trace, self._explained():
            for number, batch in enumerate(self.judged_batches[:2]):
                trace.number = number
                judged(copy, copy.model, batch)
        self.passes += 2 * FORWARD
        return trace

    @property
    def depth(self) -> list[float]:
        """Norms of the loss's gradient at the outputs of the weight layers, in the order of their calls.

        Layers with the same input, as queries, keys and values, count as one, by the largest norm: at the start of a
        transformer, attention passes next to no gradient to queries and keys.
        """
        trace = self.start.trace
        largest: dict[int, float] = {}
        for name in trace.order:
            if name in trace.gradients:
                source = trace.sources[name]
                largest[source] = max(largest.get(source, 0.0), trace.gradients[name])
        return list(largest.values())

    @property
    def learns(self) -> bool:
        """Whether a short training lowers the loss by 5 % and two standard errors; False if nothing was trained."""
        try:
            losses = self.trained.losses
        except NotLooked:
            return False
        first, error = mean_and_error(self.start.losses)
        last, error_of_last = mean_and_error(losses[-max(len(losses) // 4, 2) :])
        return first - last > max(0.05 * first, 2 * math.hypot(error, error_of_last))

    @cached_property
    def own_at_start(self) -> Statistics:
        """The running statistics that the user's model holds."""
        return own_statistics(self.over_batch, self.setup.model)

    @cached_property
    def population_at_start(self) -> Statistics:
        """Population statistics of the model before any step, with all other layers in eval mode."""
        copy, batches = self.setup.copied(), self.batches[:STILL]
        self.passes += FORWARD * len(batches)
        with self._explained():
            return population(self.over_batch, copy, copy.model, batches, dropout=False)

    @cached_property
    def population_with_dropout(self) -> Statistics:
        """Population statistics of the model before any step, with dropout as in training."""
        copy, batches = self.setup.copied(), self.batches[:STILL]
        self.passes += FORWARD * len(batches)
        with self._explained():
            return population(self.over_batch, copy, copy.model, batches)

    def dropouts_before(self, trace: Trace, name: str) -> list[str]:
        """Names of dropout layers in train mode with a probability above 0, called before a module."""
        modules = dict(self.setup.model.named_modules())
        earlier = trace.dropouts_before(name)
        return [each for each in earlier if modules[each].training and float(getattr(modules[each], "p", 0.0)) > 0]

    @cached_property
    def batches_differ(self) -> bool:
        """Whether batches, or calls within a pass, differ by more than chance."""
        calls = self.start.trace.inputs.values()
        return any(excess(each) > 5 or calls_differ(each) > APART for each in calls)

    def cost(self, worse: Evaluated, better: Evaluated) -> Cost:
        """The cost of one evaluation beside a better one; its share is of the loss before training or of the metric."""
        value, spread, unit = worse.worse_than(better)
        scale = max(abs(better.metric), 1e-6) if unit == "metric" else max(abs(self.chance), 1e-6)
        return Cost(value, spread, unit, "measured", value / scale)

    def seconds_left(self) -> float:
        """The seconds that are left."""
        return SECONDS - (time.perf_counter() - self.started)

    @cached_property
    def start(self) -> Start:
        """Passes before any step."""
        if not self.batches:
            raise NotLooked("there are no batches")
        copy = self.setup.copied()
        losses = []
        with traced(copy.model, self.normalizers) as trace:
            for number, batch in enumerate(self.batches[: STILL_OF_SMALL if self.batch_size < SMALL else STILL]):
                if number > 3 and self.seconds_left() < 0.7 * SECONDS:
                    break
                trace.number = number
                with self._explained():
                    losses.append(still_pass(copy, batch, backward=not number))
                self.passes += FORWARD if number and copy.training_step is None else 1
        check_copies_only(self.lent)
        gradients = {
            name: float(p.grad.float().norm()) for name, p in copy.model.named_parameters() if p.grad is not None
        }
        return Start(trace, tuple(losses), gradients)

    @cached_property
    def trained(self) -> Trained:
        """A copy after a short training."""
        if self.setup.optimizer is None or not self.batches:
            raise NotLooked("there is no optimizer or no batch, so nothing was trained")
        if isinstance(self.setup.optimizer, torch.optim.LBFGS):
            raise NotLooked("a copy of LBFGS cannot train")
        copy = self.setup.copied()
        most = STEPS if self.over_batch else STEPS_WITHOUT
        steps = min(most, self.steps or most)
        count = steps * copy.accumulate
        batches = [self.batches[number % len(self.batches)] for number in range(count)]
        before = {name: p.detach().clone() for name, p in copy.model.named_parameters()}
        deadline = time.perf_counter() + max(self.seconds_left() * 0.6, 1.0)
        with traced(copy.model, self.normalizers) as trace, self._explained():
            made = trained(copy, batches, steps, deadline=deadline, explode=EXPLODES)
        check_copies_only(self.lent)
        self.passes += made.steps * copy.accumulate
        now = dict(copy.model.named_parameters())
        moved = {name for name, old in before.items() if name in now and not torch.equal(old, now[name].detach())}
        return Trained(copy, made.losses, made.diverged_at, trace, frozenset(moved), made.steps)

    @cached_property
    def trained_settled(self) -> tuple[Trace, Statistics]:
        """Passes of the trained copy at rest, and the running statistics to which they lead."""
        copy = self.trained.copy.copied()
        before = len(self.batches) - STILL
        batches = self.batches[max(before, 0) :]
        with traced(copy.model, self.normalizers) as trace, self._explained():
            settled = settled_statistics(self.over_batch, copy, batches, trace)
        self.passes += len(batches) * (FORWARD if copy.training_step is None else 1)
        return trace, settled

    @cached_property
    def population(self) -> Statistics:
        """Population statistics of the trained copy over the training batches that were read last."""
        copy = self.trained.copy
        batches = self.batches[-2 * STILL :]
        self.passes += FORWARD * len(batches)
        with self._explained():
            return population(self.over_batch, copy, copy.model, batches)

    def evaluated(self, statistics: Statistics | None, on: str = "eval", model: nn.Module | None = None) -> Evaluated:
        """Loss and metric of the trained copy in eval mode with these running statistics; None keeps its own."""
        copy = self.trained.copy
        batches = self.judged_batches if on == "eval" else self.batches[-STILL:]
        self.passes += FORWARD * len(batches)
        with self._explained():
            return evaluated(self.over_batch, copy, model or copy.model, batches, statistics)

    @property
    def judged_batches(self) -> Sequence[Any]:
        """The evaluation batches, or training batches where there are none."""
        return self.eval_batches[:EVALUATED] or self.batches[-STILL:]

    @property
    def chance(self) -> float:
        """The loss before any step, for costs relative to it."""
        losses = [loss for loss in self.start.losses if math.isfinite(loss)]
        return sum(losses) / len(losses) if losses else math.nan

    def _explained(self) -> Explained:
        if self.seconds_left() < 0:
            raise NotLooked(f"the {SECONDS:.0f} seconds of the look were over")
        return Explained()
