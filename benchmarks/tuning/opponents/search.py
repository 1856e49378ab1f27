"""Searches with a budget: random search, and successive halving of Optuna."""

import math
from typing import Any

import numpy as np
from grid import RATES
from opponents.named import Named, budget
from task import Batch, Parts, Task
from training import Trainer

TRIALS = 4
EVAL_SHARE = 0.25


def _bounds(task: Task) -> tuple[float, float]:
    rates = RATES[task.optimizer]
    return min(rates), max(rates)


def _few(task: Task, parts: Parts, steps: float) -> tuple[list[Batch], float]:
    """Evaluation batches, at least one, that cost at most a quarter of `steps`, and their cost in steps."""
    each = len(parts.eval_batches[0][0]) / task.batch_size / 3
    count = max(1, min(len(parts.eval_batches), int(EVAL_SHARE * steps / each)))
    return parts.eval_batches[:count], count * each


def _loss(trainer: Trainer, batches: list[Batch]) -> float:
    if not trainer.finite:
        return math.inf
    loss = sum(loss for loss, _ in trainer.evaluate(batches)) / len(batches)
    return loss if math.isfinite(loss) else math.inf


def random_search(task: Task, parts: Parts, seed: int) -> Named:
    """Four log-uniform rates over the range of the grid, each with a quarter of the budget; the best loss wins."""
    low, high = _bounds(task)
    each = budget(task) / TRIALS
    batches, price = _few(task, parts, each)
    steps = max(1, int(each - price))
    generator = np.random.default_rng(seed)
    rates = np.exp(generator.uniform(math.log(low), math.log(high), TRIALS))
    results, spent = [], 0.0
    for lr in rates:
        trainer = Trainer(task, seed, float(lr), schedule="constant", steps=task.steps)
        trainer.advance(steps)
        results.append(_loss(trainer, batches))
        spent += trainer.step + price
    return Named(float(rates[int(np.argmin(results))]), spent)


def asha(task: Task, parts: Parts, seed: int) -> Named:
    """Optuna: TPE over the range of the grid and successive halving by 2 from a tenth of the budget to 4 tenths."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    low, high = _bounds(task)
    whole = budget(task)
    least = max(1, int(whole / 10))
    batches, price = _few(task, parts, least)
    rungs = [least, 2 * least, 4 * least]
    spent = 0.0

    def objective(trial: Any) -> float:
        nonlocal spent
        lr = trial.suggest_float("lr", low, high, log=True)
        trainer = Trainer(task, seed, lr, schedule="constant", steps=task.steps)
        loss = math.inf
        for rung in rungs:
            before = trainer.step
            if spent + (rung - before) + price > whole and rung > least:
                break
            trainer.advance(rung)
            loss = min(_loss(trainer, batches), 1e30)
            spent += trainer.step - before + price
            trial.report(loss, rung)
            if trial.should_prune():
                raise optuna.TrialPruned
        return loss

    pruner = optuna.pruners.SuccessiveHalvingPruner(min_resource=least, reduction_factor=2)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed), pruner=pruner)
    while spent + least + price <= whole:
        study.optimize(objective, n_trials=1)
    return Named(float(study.best_params["lr"]), spent, f"{len(study.trials)} trials")


ENTRANTS: dict[str, Any] = {"random search": random_search, "asha": asha}
