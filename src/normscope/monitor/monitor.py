"""The Monitor: measurements in anybody's loop."""

import sys
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from normscope.choices import check_choice
from normscope.environment import environment
from normscope.invocation import command
from normscope.isolation.batch_loss import Task
from normscope.isolation.coming_update import plain_optimizer
from normscope.isolation.unwrapping import loss_of, unwrapped
from normscope.loss_kinds import FLAT, Kind, kind_by_name
from normscope.monitor.loss_kind_here import UNKNOWN, kind_here, noted
from normscope.monitor.probes.registry import probes
from normscope.monitor.record import Record, Result, frame_of, latest_verdicts, layers_of
from normscope.monitor.schedule import Budget, schedule
from normscope.monitor.sinks.trackers import Sink
from normscope.monitor.snapshot import Snapshot, snapshot_of
from normscope.reporting import Reportable
from normscope.setup import Setup, gathered
from normscope.stability.verdict import Verdict

if TYPE_CHECKING:
    import pandas as pd

# Processes agree on every try to make up for a look that was put off; not at every step.
RETRY = 10
_FIXED_DRAWS = "The forward draws random numbers (dropout, noise); every pass of a look draws the same ones."


class Monitor(Reportable):
    """Measures a training run while it goes on, and leaves it bit for bit as it would have been.

        monitor = Monitor(model, loss_fn)
        for x, y in loader:
            loss = loss_fn(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            monitor.step(x, y, optimizer)       # after backward and clipping, before the optimizer's step
            optimizer.step()
        monitor.frame()

    Every pass is made in the modes the model is in, on the batch handed in, on copies. Under DDP losses and gradients
    are averaged over the processes as DDP does, each with its own batch statistics, or synchronized ones where the
    model synchronizes them; the first process decides when to look.

    Args:
        model: any module, wrapped in DDP or compiled or not, or an `ns.Setup`. FSDP and DataParallel are refused.
        loss_fn: loss_fn(outputs, targets) is the scalar loss; None where the model or forward gives the loss.
        forward: forward(model, batch) gives the outputs, or without loss_fn the loss. Batches that are no pair (x, y)
            are handed over whole: step(batch, optimizer=...).
        every: look every so many steps, at "log" spaced ones, or at the steps of a list.
        measure: "light" (critical step: forward passes alone), "standard" (and landscape, health), "full" (and
            activations, covariate shift); or names, "curvature" among them, and measurement objects such as
            LandscapeProbe(DLN_FACTORS).
        budget: time that looking may take, as a share of the training's own; looks are put off to keep it. None: no
            limit.
        sinks: where records go besides memory: JSONL, TensorBoard, WandB or your own. Opened here, with `settings()`.
        on_error: "warn" says what failed and lets the run go on; "raise" is for tests.
        autocast: the dtype of mixed precision, where step is called outside its region.
        first_step: number of the next step, for a run that is resumed.
    """

    def __init__(
        self,
        model: nn.Module | Setup,
        loss_fn: Callable[..., Any] | None = None,
        *,
        forward: Callable[[nn.Module, Any], Any] | None = None,
        every: int | str | Iterable[int] = 50,
        measure: str | Sequence[Any] = "standard",
        budget: float | None = 0.05,
        sinks: Sequence[Sink] = (),
        on_error: str = "warn",
        autocast: torch.dtype | None = None,
        first_step: int = 0,
    ) -> None:
        check_choice("on_error", on_error, ("warn", "raise"))
        if first_step < 0:
            raise ValueError(f"first_step counts steps from 0 on; got {first_step}.")
        setup = gathered(model, loss_fn=loss_fn, forward=forward, autocast=autocast)
        inner, processes, convention = unwrapped(setup.model)
        self._task = Task(inner, loss_of(setup.objective), setup.autocast, processes, setup.objective)
        named = kind_by_name(setup.loss_fn)
        self._kind = Kind(named) if named else UNKNOWN
        self._due = schedule(every)
        self._probes = probes(measure)
        self._budget = Budget(budget)
        self._sinks = list(sinks) if processes.first else []
        self._on_error = on_error
        self._notes = (convention,) if convention else ()
        self._warned: set[str] = set()
        self._put_off = 0
        self._owed = False
        self._next = first_step
        self._follow: list[Any] = []
        self.records: list[Record] = []
        for sink in self._sinks:
            sink.open(self.settings())

    def step(
        self,
        x: Any,
        y: Any = None,
        optimizer: Any = None,
        *,
        lr: float | None = None,
        scale: float = 1.0,
    ) -> Record | None:
        """Looks at this step if it is one to look at; call it at every step, between backward and optimizer.step().

        Args:
            x, y: the batch; with forward= the whole batch as x.
            optimizer: the one that trains the model; gives the learning rate and the coming update.
            lr: the learning rate of plain gradient steps, where there is no optimizer.
            scale: the present `.grad` is divided by it; GradScaler.get_scale() before unscale_.
        """
        self._budget.step()
        number, self._next = self._next, self._next + 1
        follow, self._follow = self._follow, []
        chosen = self._probes if self._now_looks(number) else follow
        if not chosen:
            return None
        started = self._now()
        batch = x if y is None else (x, y)
        record = self._look(chosen, number, batch, optimizer, lr, scale, started)
        if chosen is self._probes:
            self._follow = [m for m in chosen if getattr(m, "follow_up", False) and m.name in record.results]
        self.records.append(record)
        self._write(record)
        self._budget.pay(self._now() - started, follows=chosen is follow)
        return record

    def _write(self, record: Record) -> None:
        for sink in self._sinks:
            try:
                sink.write(record)
            except Exception as error:
                self._said(f"{type(sink).__name__} did not take what was measured", record.step, error)

    def _now_looks(self, number: int) -> bool:
        """At a step asked for, or a later tenth one to make up for it, once the budget allows."""
        due = self._due(number)
        if not due and not (self._owed and number % RETRY == 0):
            return False
        self._owed = not self._task.processes.decided(self._budget.allows())
        self._put_off += due and self._owed
        return not self._owed

    def _now(self) -> float:
        if torch.cuda.is_initialized():
            device = next((p.device for p in self._task.model.parameters()), torch.device("cpu"))
            if device.type == "cuda":
                torch.cuda.synchronize(device)
        return time.perf_counter()

    def _look(
        self,
        chosen: Sequence[Any],
        number: int,
        batch: Any,
        optimizer: Any,
        lr: float | None,
        scale: float,
        started: float,
    ) -> Record:
        together = self._task.processes.together
        results: dict[str, Result] = {}
        errors: dict[str, str] = {}
        loss, notes = float("nan"), list(self._notes)
        watchers = [m.watch for m in chosen if hasattr(m, "watch")]
        try:
            with ExitStack() as stack:

                def enter() -> Snapshot:
                    for probe in chosen:
                        if hasattr(probe, "start"):
                            probe.start()
                    return stack.enter_context(
                        snapshot_of(
                            self._task,
                            batch,
                            optimizer=None if optimizer is None else plain_optimizer(optimizer),
                            lr=lr,
                            step=number,
                            scale=scale,
                            watchers=watchers,
                            forward_only=all(m.forward_only for m in chosen),
                            traced=any(hasattr(m, "watch") or getattr(m, "traces", False) for m in chosen),
                        )
                    )

                try:
                    snapshot = together(enter)
                    loss = together(lambda: snapshot.loss)
                    notes += [_FIXED_DRAWS] if snapshot.drew else []
                    if self._kind in (UNKNOWN, FLAT):
                        self._kind = together(lambda: kind_here(snapshot.at))
                    notes += noted(self._kind)
                except Exception as error:
                    errors["look"] = self._said("nothing was measured", number, error)
                    chosen = ()
                for probe in chosen:
                    try:
                        results[probe.name] = together(lambda: probe.measure(snapshot))  # noqa: B023
                    except Exception as error:
                        errors[probe.name] = self._said(f"{probe.name} was not measured", number, error)
        except Exception as error:
            errors["look"] = self._said("something was not put back", number, error)
        verdicts: list[Verdict] = []
        for name, result in results.items():
            try:
                verdicts += result.verdicts(self._kind.name)
            except Exception as error:
                errors[name] = self._said(f"{name} has no verdict", number, error)
        seconds = self._now() - started
        return Record(number, seconds, loss, results, tuple(verdicts), tuple(notes), errors)

    def _said(self, what: str, number: int, error: Exception) -> str:
        if self._on_error == "raise":
            raise error
        text = f"{type(error).__name__}: {error}"
        if text not in self._warned:
            self._warned.add(text)
            said = f"normscope: {what} at step {number}, and the run goes on. {text}"
            try:
                warnings.warn(said, stacklevel=4)
            except UserWarning:
                # Where warnings are errors, this one still does not end the run.
                print(said, file=sys.stderr)
        return text

    def frame(self) -> "pd.DataFrame":
        """One row a look: step, seconds, loss, and the summary of every measurement."""
        return frame_of(self.records)

    def layers(self) -> "pd.DataFrame":
        """One row a look and layer, with the layer's numbers of every measurement."""
        return layers_of(self.records)

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """The latest of each measurement."""
        return latest_verdicts(self.records)

    @property
    def notes(self) -> tuple[str, ...]:
        """Conventions used, and how the budget spaced the looks."""
        notes = dict.fromkeys(note for record in self.records for note in record.notes)
        if self._put_off:
            notes[
                f"budget={self._budget.share:g} put off {self._put_off} of the looks asked for; "
                f"looking took {self._budget.used:.1%} of the training's own time. A larger budget looks more often."
            ] = None
        return tuple(notes)

    def settings(self) -> dict[str, Any]:
        """What is watched and where, for the head of a file; the kind of an unnamed loss is known after a snapshot."""
        return {
            "model": type(self._task.model).__name__,
            "loss": self._kind.name,
            "measure": [m.name for m in self._probes],
            "budget": self._budget.share,
            "command": command(),
            "environment": environment(next((p.device for p in self._task.model.parameters()), "cpu")),
        }

    def _sections(self) -> Sequence[Any]:
        from normscope.report.sections.monitor import monitor_course
        from normscope.report.sections.training import training_section

        settings = self.settings()
        label = f"Training of {settings['model']}"
        return [training_section(label, [monitor_course(label, self.records, settings, self.notes)])]

    def close(self) -> None:
        for sink in self._sinks:
            try:
                sink.close()
            except Exception as error:
                self._said(f"{type(sink).__name__} was not closed", self._next, error)

    def __enter__(self) -> "Monitor":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
