"""Engines make the rehearsals of a wave; each yields them in the order asked for."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Protocol

import torch

from normscope.tuning.rehearsal import Rehearsal, rehearse
from normscope.tuning.stacked_rehearsal import NotStacked, rehearse_stacked
from normscope.tuning.stage import Stage


class Engine(Protocol):
    """The interface of an engine. note: a sentence on what it could not do as planned, empty without."""

    note: str

    def run(self, stage: Stage, rates: Sequence[float], steps: int) -> Iterator[Rehearsal]:
        """Rehearse each of the rates for `steps` steps."""

    def close(self) -> None:
        """Release what the engine holds."""


class Local:
    """An engine that rehearses in this process: on a GPU the rates of a wave as one stack, else one after another.

    On a CPU a stack of six copies ran at 0.32 to 0.82 of the speed of one after another.

    Args:
        stacked: whether to rehearse stacks; None does so on a GPU.
    """

    def __init__(self, stacked: bool | None = None) -> None:
        self._stacked = stacked
        self.note = ""

    def run(self, stage: Stage, rates: Sequence[float], steps: int) -> Iterator[Rehearsal]:
        wanted = stage.device.type == "cuda" if self._stacked is None else self._stacked
        made, spent = list[Rehearsal](), 0
        if wanted and len(rates) > 1:
            try:
                made = rehearse_stacked(stage, rates, steps)
            except NotStacked as problem:
                self.note = f"The copies were trained one at a time, not as a stack: {problem}."
                spent = problem.passes
        yield from made
        # Outside the except block: the exception holds the frames, and so the tensors, in memory.
        if self.note and stage.device.type == "cuda":
            torch.cuda.empty_cache()
        for rate in rates[len(made) :]:
            alone = rehearse(stage, rate, steps)
            yield replace(alone, passes=alone.passes + spent)
            spent = 0

    def close(self) -> None:
        """Do nothing: the engine holds nothing."""


def engine_named(name: str, address: str | None) -> Engine:
    """The engine "local" or "ray"; the latter joins the cluster at `address`, or starts one on this machine."""
    if name == "local":
        return Local()
    from normscope.tuning.cluster import Ray

    return Ray(address)
