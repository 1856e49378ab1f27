"""`diagnose`: what is wrong with the normalization in a training."""

import itertools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from normscope.diagnosis.finding import Finding
from normscope.diagnosis.look.look import EVALUATED, STEPS_WITHOUT, STILL, Look
from normscope.diagnosis.look.passes import NotLooked, device_of
from normscope.diagnosis.look.protection import protected
from normscope.diagnosis.registry import NEEDS, Rule, chosen
from normscope.diagnosis.result import Diagnosis
from normscope.isolation.batches import is_one_batch, samples
from normscope.isolation.coming_update import plain_optimizer
from normscope.isolation.loaders import Stream, first_batches
from normscope.isolation.unwrapping import unwrapped
from normscope.results.environment import environment
from normscope.setup import Setup, gathered

# Evaluation batches whose inputs are looked at; they may be sorted.
EVALUATION = 64
# Batches of an epoch are counted up to this number, and for at most this many seconds.
_MOST_SIZES, _SECONDS_OF_SIZES = 2000, 2.0


def diagnose(
    model: nn.Module | Setup,
    loss_fn: Callable[..., Any] | Mapping[str, Any] | None = None,
    batches: Iterable[Any] | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    eval_batches: Iterable[Any] | None = None,
    metric: Callable[[Any, Any], Any] | None = None,
    steps: int | None = None,
    rules: Sequence[str] | str | None = None,
    forward: Callable[[nn.Module, Any], Any] | None = None,
) -> Diagnosis:
    """Find what is wrong with the normalization in a training.

    The look costs at most as much as 40 training steps, and at most 60 seconds. What must be trained for it is trained
    on copies: model, optimizer, loaders and random generators are as they were afterwards, also after an error.

    Args:
        model: any module in the mode in which it trains, or an `ns.Setup`, which gives every argument not handed in.
        loss_fn: loss_fn(outputs, targets) returns the scalar loss; None if the model or `forward` returns the loss. Or
            a state dict: then the configuration and the stored statistics alone are judged.
        batches: any iterable of batches, or one batch.
        optimizer: the optimizer that trains.
        eval_batches: batches to evaluate on; without them the training batches are used, and a note says so.
        metric: metric(outputs, targets) returns a number to price faults by; larger is better.
        steps: planned number of optimizer steps; by default the setup's.
        rules: ids or names of the rules that judge; by default all.
        forward: forward(model, batch) returns the outputs, or without loss_fn the loss.

    Returns:
        A `Diagnosis`: the findings, graver and costlier ones first, and what was looked at.

    Raises:
        ValueError: an argument does not fit, a rule does not exist, or there is no batch in the batches.

    Example:
        >>> net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8, momentum=0.99), nn.ReLU(), nn.Linear(8, 1))
        >>> [finding.name for finding in diagnose(net, rules="NS101").findings]
        ['momentum-inverted']
    """
    started = time.perf_counter()
    wanted = chosen(rules)
    missing: Sequence[str] = ()
    if isinstance(loss_fn, Mapping):
        checkpoint, loss_fn = loss_fn, None
    else:
        checkpoint = None
    given = {"loss_fn": loss_fn, "batches": batches, "optimizer": optimizer, "eval_batches": eval_batches}
    setup = gathered(model, **given, metric=metric, forward=forward, steps=steps)
    inner, processes, convention = unwrapped(setup.model)
    setup = replace(setup, model=inner)
    if setup.optimizer is not None:
        setup = replace(setup, optimizer=plain_optimizer(setup.optimizer))
    read, judged, sizes, epoch = _read(setup)
    alone = replace(setup, batches=None, eval_batches=None).copied()
    if checkpoint is not None:
        missing = _loaded(alone.model, checkpoint)
    with protected(setup) as lent:
        look = Look(alone, lent, read, judged[:EVALUATED], judged, sizes, epoch, alone.steps, missing, processes.size)
        findings, judging, skipped = _judge(wanted, look)
        seconds = time.perf_counter() - started
        return Diagnosis(
            findings=tuple(sorted(findings, key=lambda each: each.order)),
            looked_at=tuple(_looked_at(look, checkpoint is not None)),
            rules=tuple(judging),
            skipped=skipped,
            measured={rule: seen for rule, seen in look.measured.items() if rule in judging},
            notes=tuple(_notes(look, convention)),
            passes=look.passes / look.setup.accumulate,
            seconds=seconds,
            settings=_settings(look),
            environment=environment(device_of(alone.model)),
        )


def _judge(wanted: Sequence[Rule], look: Look) -> tuple[list[Finding], list[str], dict[str, str]]:
    findings: list[Finding] = []
    judging, skipped = [], {}
    there = {
        "batches": bool(look.batches),
        "optimizer": look.setup.optimizer is not None,
        "eval_batches": bool(look.eval_batches),
    }
    for rule in wanted:
        lacking = next((need for need in rule.needs if not there[need]), None)
        if lacking is not None:
            skipped[rule.id] = NEEDS[lacking]
            continue
        try:
            findings += rule.findings(look)
            judging.append(rule.id)
        except NotLooked as reason:
            skipped[rule.id] = str(reason)
    return findings, judging, skipped


def _read(setup: Setup) -> tuple[list[Any], list[Any], list[int], int | None]:
    """Training batches, evaluation batches, the sizes of an epoch's batches, and the number of batches of an epoch."""
    read: list[Any] = []
    judged: list[Any] = []
    sizes: list[int] = []
    epoch = None
    if setup.batches is not None and is_one_batch(setup.batches_to_read):
        read, epoch = [setup.batches], 1
        sizes = [samples(setup.batches)]
    elif setup.batches is not None:
        read = first_batches(setup.batches, STEPS_WITHOUT * setup.accumulate + STILL)[0]
        if not read:
            raise ValueError("The batches are empty. Check the loader: is the dataset empty, or drop_last=True?")
        sizes, epoch = _sizes(setup.batches, read)
    if setup.eval_batches is not None:
        one = is_one_batch(setup.eval_batches)
        judged = [setup.eval_batches] if one else first_batches(setup.eval_batches, EVALUATION)[0]
        if not judged:
            raise ValueError("The evaluation batches are empty. Check their loader.")
    return read, judged, sizes, epoch


def _sizes(batches: Iterable[Any], read: Sequence[Any]) -> tuple[list[int], int | None]:
    """Sizes of the batches of an epoch: from the loader's settings, or counted for a short while."""
    if isinstance(batches, DataLoader) and isinstance(batches.batch_size, int) and hasattr(batches.dataset, "__len__"):
        drawn: Any = batches.sampler if hasattr(batches.sampler, "__len__") else batches.dataset
        total = len(drawn)
        whole, rest = divmod(total, batches.batch_size)
        sizes = [batches.batch_size] * whole + ([] if batches.drop_last or not rest else [rest])
        return sizes, len(sizes)
    if isinstance(batches, (Stream, DataLoader)):
        return [samples(batch) for batch in read], None
    if isinstance(batches, (list, tuple)):
        return [samples(batch) for batch in batches], len(batches)
    until, sizes = time.perf_counter() + _SECONDS_OF_SIZES, []
    clocked = _Clocked(batches, until, sizes)
    first_batches(clocked, _MOST_SIZES)
    return sizes, len(sizes) if clocked.ended else None


class _Clocked:
    """The sizes of batches, counted until a time; the attributes of the loader are seen, to put its generators back."""

    def __init__(self, source: Iterable[Any], until: float, sizes: list[int]) -> None:
        self.source, self.until, self.sizes, self.ended = source, until, sizes, False
        vars(self).update({f"own_{name}": value for name, value in getattr(source, "__dict__", {}).items()})

    def __getattr__(self, name: str) -> Any:
        if name == "source":
            raise AttributeError(name)
        return getattr(self.source, name)

    def __iter__(self) -> Any:
        for batch in itertools.takewhile(lambda _: time.perf_counter() < self.until, self.source):
            self.sizes.append(samples(batch))
            yield None
        self.ended = time.perf_counter() < self.until and len(self.sizes) < _MOST_SIZES


def _loaded(model: nn.Module, checkpoint: Mapping[str, Any]) -> list[str]:
    """Load a state dict into a copy; returns the names that the state dict lacks.

    Raises:
        ValueError: no tensor fits.
    """
    inner = checkpoint.get("state_dict", checkpoint)
    names = set(model.state_dict())
    known = {name.removeprefix("module."): value for name, value in inner.items()}
    if names and not names & known.keys():
        first = next(iter(known), "nothing")
        raise ValueError(f"The state dict fits another model: it holds {first!r}, and the model {min(names)!r}.")
    try:
        return list(model.load_state_dict({k: v for k, v in known.items() if k in names}, strict=False).missing_keys)
    except RuntimeError as error:
        raise ValueError(f"The state dict does not fit the model: {str(error).splitlines()[-1].strip()}") from error


def _looked_at(look: Look, checkpoint: bool) -> Iterable[str]:
    norms = look.normalizers
    kinds: dict[str, int] = {}
    for norm in norms:
        kinds[norm.kind] = kinds.get(norm.kind, 0) + 1
    listed = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    others = list(look.unrecognized)
    more = f" and {len(others) - 1} more" * (len(others) > 1)
    unjudged = f"not judged, and possibly normalizers: {others[0] or 'the model'}{more}" if others else ""
    if norms:
        yield f"{len(norms)} normalizers ({listed}){'; ' * bool(unjudged)}{unjudged}."
    else:
        yield f"no normalizer of a known kind; {unjudged}." if unjudged else "a network without normalizers."
    if checkpoint:
        yield "stored statistics of a checkpoint, without data."
    if look.batches:
        yield (
            f"{len(look.batches)} training batches of {look.batch_size}, {len(look.eval_batches)} evaluation batches."
        )
    if "trained" in vars(look):
        losses = look.trained.losses
        yield f"{look.trained.steps} training steps of a copy, loss {losses[0]:.3g} to {losses[-1]:.3g}."


def _notes(look: Look, convention: str) -> Iterable[str]:
    if convention:
        yield convention
    for name, reason in look.unrecognized.items():
        yield f"{name or 'The model'} was not judged as a normalizer: {reason}."
    if look.batches and not look.eval_batches:
        yield "There are no evaluation batches, so eval mode is judged on training batches."
    if len(look.batches) == 1:
        yield "There is one batch only: differences between batches are not known."
    yield f"The look cost as much as {look.passes / look.setup.accumulate:.0f} training steps."


def _settings(look: Look) -> dict[str, Any]:
    setup = look.setup
    return {
        "loss": setup.objective.name,
        "optimizer": None if setup.optimizer is None else type(setup.optimizer).__name__,
        "steps": look.steps,
        "batch_size": look.batch_size,
        "accumulate": setup.accumulate,
    }
