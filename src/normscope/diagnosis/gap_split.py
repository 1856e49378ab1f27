"""The train/eval gap: the loss in eval mode minus the loss in train mode, split into parts that add up to it.

The split goes through these evaluations in order; each part is the difference of two that are both measured:

    evaluation             modes and statistics                                        part that ends here
    train                  train mode, training batches
    random layers off      batch statistics; dropout and the like off                  random_layers
    population             eval mode, population statistics, random layers off         batch_noise
    population as trained  eval mode, population statistics taken in train mode        variance_shift
    running                eval mode, running statistics                               running_statistics
    evaluation             eval mode, running statistics, evaluation batches           data_shift

- random_layers: noise of dropout, stochastic depth and others that eval mode switches off; usually negative.
- batch_noise: batches normalized by their own statistics instead of the population's: small batches, or batches that
  differ from one another.
- variance_shift: dropout changes the variance that a later BatchNorm sees in training and not in eval mode. Source: Li
  et al. 2019, "Understanding the Disharmony between Dropout and Batch Normalization by Variance Shift".
- running_statistics: stale or wrong running statistics.
- data_shift: evaluation data that differ from training data, and overfitting.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from normscope.diagnosis.batch_statistics import population, tracking_layers
from normscope.diagnosis.gap_evaluations import Evaluator, Rows, evaluating
from normscope.diagnosis.gap_fixes import Seen, fixes
from normscope.diagnosis.gap_result import Evaluation, GapPart, TrainEvalGap
from normscope.diagnosis.look.protection import check_copies_only, protected
from normscope.diagnosis.training_copies import advance
from normscope.isolation.batches import Batches, read_batches, samples
from normscope.isolation.unwrapping import unwrapped
from normscope.norms.population import Statistics
from normscope.results.environment import environment
from normscope.setup import Setup

# Steps of a network that was never trained, before it is looked at.
STEPS = 40
_TEXTS = {
    "train": "train mode on training batches",
    "random layers off": "batch statistics, dropout and the like off",
    "population": "eval mode with population statistics, taken with dropout and the like off",
    "population as trained": "eval mode with population statistics, taken in train mode",
    "running": "eval mode with the running statistics",
    "evaluation": "eval mode with the running statistics, on evaluation batches",
}
_PARTS = {
    "random_layers": "dropout and the like, which train mode has on",
    "batch_noise": "statistics of single batches instead of the population's",
    "variance_shift": "statistics taken under dropout, used without it",
    "running_statistics": "stale or wrong running statistics",
    "data_shift": "evaluation data instead of training data",
}


def train_eval_gap(
    setup: Setup,
    *,
    steps: int | None = None,
    n_batches: int = 40,
    momenta: Sequence[float] = (0.1, 0.01),
    seed: int = 0,
) -> TrainEvalGap:
    """Split the gap between train mode and eval mode into its parts, and predict what each fix would gain.

    Nothing of the setup moves: the network works on lent copies, and steps are taken by a copy of the whole setup.

    Args:
        setup: the training, with `eval_batches` and a `metric` if there are any.
        steps: optimizer steps that a copy takes before it is looked at; by default 40 if no BatchNorm has tracked a
            batch yet and there is an optimizer, else 0.
        n_batches: largest number of training batches, and of evaluation batches, that are read.
        momenta: momenta of running statistics to predict the gain of. With an optimizer a copy takes 40 further steps
            for them, and most of the forward passes are theirs; () leaves them out.
        seed: of the random numbers that the copies draw (dropout).

    Returns:
        The evaluations, the parts and the fixes. Without evaluation batches all is judged on training batches.

    Raises:
        ValueError: no batches, steps without an optimizer, numbers out of range, or a loss or training_step that uses
            the user's own model or optimizer instead of the copies it is handed.

    Example:
        >>> import normscope
        >>> x = torch.tensor([[1.0], [3.0]])
        >>> layer = normscope.norms.BatchNorm1d(1, eps=0.0, affine=False)
        >>> def second_moment(y, _):
        ...     return y.square().mean()
        >>> found = train_eval_gap(Setup(layer, second_moment, [(x, x)]))
        >>> [round(found.part(name).change.loss, 6) for name in ("batch_noise", "running_statistics")]
        [-0.5, 4.5]
    """
    _check(setup, steps, n_batches, momenta)
    model, _, convention = unwrapped(setup.model)
    setup = replace(setup, model=model)
    fresh = _is_fresh(model)
    steps = (STEPS if fresh and setup.optimizer is not None else 0) if steps is None else steps
    most = max(n_batches, steps * setup.accumulate)
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    training = read_batches(setup.batches_to_read, device=device, micro_batch=None, most=most).batches
    held_out = [] if setup.eval_batches is None else _read_eval(setup, device, n_batches)
    notes = [convention] if convention else []
    alone = replace(setup, batches=None, eval_batches=None)
    copy = alone.copied() if setup.optimizer is not None and (steps or momenta) else None
    with protected(alone, seed) as lent:
        subject, rehearsed = alone, None
        if copy is not None and steps:
            subject, rehearsed = copy, advance(copy, training, steps)
        elif fresh:
            notes.append("No BatchNorm has tracked a batch: the running statistics are the first ones. Train first.")
        with evaluating(subject, subject.model, seed) as evaluator:
            split = _split(evaluator, training[:n_batches], held_out)
            spare = None if steps else copy
            seen = Seen(
                subject, evaluator, split.training, held_out, split.as_trained, split.rows, rehearsed, spare, seed
            )
            fixed, further = fixes(seen, momenta)
            further += _notes(subject, evaluator, held_out)
        check_copies_only(lent)
    return TrainEvalGap(
        gap=split.rows[-1][1].minus(split.rows[0][1], paired=not held_out),
        evaluations=tuple(_evaluations(split, held_out)),
        parts=tuple(_parts(split, held_out)),
        fixes=fixed,
        notes=(*notes, *further),
        settings={
            "loss": setup.objective.name,
            "batch_size": samples(training[0]),
            "training_batches": len(split.training),
            "evaluation_batches": len(held_out),
            "steps": steps,
            "seed": seed,
        },
        environment=environment(device),
    )


def _check(setup: Setup, steps: int | None, n_batches: int, momenta: Sequence[float]) -> None:
    if setup.batches is None:
        raise ValueError("The train/eval gap is measured on training batches: hand in batches= in the Setup.")
    if n_batches < 1:
        raise ValueError(f"n_batches counts the batches to read, at least 1; got {n_batches}.")
    if steps is not None and (steps < 0 or (steps and setup.optimizer is None)):
        raise ValueError(f"steps are taken by a copy of the optimizer, and from 0 on; got {steps}. Hand in optimizer=.")
    if wrong := [m for m in momenta if not 0 < m <= 1]:
        raise ValueError(f"A momentum is the weight of a new batch, above 0 to 1; got {wrong[0]!r}.")


def _is_fresh(model: nn.Module) -> bool:
    """Whether the running statistics of all layers are their first values, mean 0 and variance 1."""
    layers = tracking_layers(model).values()
    return bool(layers) and not any(bool(m.running_mean.any()) or bool((m.running_var != 1).any()) for m in layers)


def _read_eval(setup: Setup, device: torch.device, most: int) -> list[Any]:
    given = Batches(setup.eval_batches) if type(setup.eval_batches) is list else setup.eval_batches
    return read_batches(given, device=device, micro_batch=None, most=most).batches


@dataclass(frozen=True, eq=False)
class _Split:
    """The evaluations in order, by name. as_trained: population statistics. training: the batches judged on."""

    rows: list[tuple[str, Rows]]
    as_trained: Statistics
    training: list[Any]


def _split(evaluator: Evaluator, training: list[Any], held_out: list[Any]) -> _Split:
    noisy, quiet = evaluator.evaluate(training, "train"), evaluator.evaluate(training, "batch")
    clean, as_trained = population(quiet.record), population(noisy.record)
    with_clean = evaluator.evaluate(training, "eval", clean)
    # Without random layers, the population statistics are the same, and so would the evaluation be.
    same = all(torch.equal(a, b) for name in clean for a, b in zip(clean[name], as_trained[name], strict=True))
    with_noisy = with_clean if same else evaluator.evaluate(training, "eval", as_trained)
    running = evaluator.evaluate(training, "eval")
    last = evaluator.evaluate(held_out, "eval") if held_out else running
    return _Split(
        [*zip(_TEXTS, (noisy, quiet, with_clean, with_noisy, running, last), strict=True)], as_trained, training
    )


def _evaluations(split: _Split, held_out: list[Any]) -> Iterator[Evaluation]:
    for name, rows in split.rows:
        data = "evaluation" if name == "evaluation" and held_out else "training"
        yield Evaluation(name, _TEXTS[name], data, rows.mean, len(rows.losses), int(rows.counts.sum()))


def _parts(split: _Split, held_out: list[Any]) -> Iterator[GapPart]:
    for number, (name, text) in enumerate(_PARTS.items()):
        (before, first), (after, second) = split.rows[number : number + 2]
        paired = not (held_out and after == "evaluation")
        yield GapPart(name, text, before, after, second.minus(first, paired=paired))


def _notes(setup: Setup, evaluator: Evaluator, held_out: list[Any]) -> Iterator[str]:
    if not held_out:
        yield (
            "There are no evaluation batches: the gap and all gains are judged on training batches. Such gains were "
            "found too far off. Hand in eval_batches=."
        )
    if not evaluator.layers:
        yield "No BatchNorm with running statistics moves in training, so their parts are 0."
    layers = setup.model.modules()
    others = {
        type(m).__name__
        for m in layers
        if isinstance(m, nn.modules.instancenorm._InstanceNorm) and m.track_running_stats
    }
    if others:
        yield f"Running statistics of {', '.join(sorted(others))} are not replaced; they count as random_layers."
