"""The Monitor takes snapshots inside any training loop."""

import sys
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from normscope.isolation.batch_loss import Task
from normscope.isolation.coming_update import plain_optimizer
from normscope.isolation.memory_bound import check_max_memory
from normscope.isolation.unwrapping import loss_of, unwrapped
from normscope.loss_kinds import FLAT, LossKind, kind_by_name
from normscope.messages.choices import check_choice
from normscope.monitor.loss_course import ABOUT, loss_verdict
from normscope.monitor.loss_kind_here import UNKNOWN, kind_here, unknown_kind_note
from normscope.monitor.probes.probe import Probe, Result
from normscope.monitor.probes.registry import probes
from normscope.monitor.record import Record, frame_of, latest_verdicts, layers_of
from normscope.monitor.schedule import Budget, schedule
from normscope.monitor.sinks.sink import Sink
from normscope.monitor.snapshot import NoStep, Snapshot, snapshot_of
from normscope.results.environment import environment
from normscope.results.invocation import command
from normscope.results.reporting import Reportable
from normscope.setup import Setup, gathered
from normscope.stability.verdict import Verdict

if TYPE_CHECKING:
    import pandas as pd

# A postponed snapshot is tried again at every tenth step: under DDP each try costs one message between the processes.
RETRY = 10
_FIXED_DRAWS = "The forward pass draws random numbers (dropout, noise); all passes of one snapshot draw the same ones."


class Monitor(Reportable):
    """Measures a training run while it goes on; the run stays bit for bit what it would have been without it.

        monitor = Monitor(model, loss_fn)
        for x, y in loader:
            loss = loss_fn(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            monitor.step(x, y, optimizer)       # after backward and clipping, before the optimizer's step
            optimizer.step()
        monitor.frame()

    A snapshot is everything the Monitor measures at one training step. All its passes run on copies of the
    parameters, on the batch handed in, with every module in its present mode (train or eval). Under DDP, losses and
    gradients are averaged over the processes as DDP averages them. Each process has its own batch statistics, unless
    the model synchronizes them. The first process decides when a snapshot is taken.

    Args:
        model: any module, plain, compiled or wrapped in DDP, or an `ns.Setup`. FSDP and DataParallel are refused.
        loss_fn: loss_fn(outputs, targets) returns the scalar loss. None if the model or `forward` returns the loss.
        forward: forward(model, batch) returns the outputs, or the loss if there is no loss_fn. A batch that is not a
            pair (x, y) is handed over whole: step(batch, optimizer=...).
        every: steps between two snapshots, "log" (eight steps a decade), or a list of step numbers.
        measure: a preset or a list of probes. Presets: "light" (critical rate, forward passes only), "standard"
            (critical rate, landscape, health), "full" (also activations and covariate shift). A list holds names of
            probes, "curvature" among them, and probe objects such as LandscapeProbe(DLN_FACTORS).
        budget: largest cost of measuring, as a share of the training's own, between 0 and 1, counted in gradient
            passes (one forward and one backward; a forward is a third). A training step counts as one pass, or as many
            as the Setup has in `accumulate`. Snapshots are postponed to keep it, at the same steps in every repetition
            of a run. None: no limit. The default of 5 % is hardly felt in a run.
        sinks: objects that store every record, besides memory: JSONL, TensorBoard, WandB or your own. They are opened
            here, with `settings()`.
        on_error: "warn" reports a failed measurement and lets the run go on; "raise" raises it and is for tests.
        autocast: the dtype of mixed precision, if `step` is called outside the autocast region.
        first_step: number of the next step, for a resumed run.
        max_memory: bytes that copies of parameters, buffers and the batch may take; a snapshot that would take more is
            refused before any copy is made. Gradients, activations and the optimizer's coming update come beside.

    Raises:
        ValueError: an unknown name in `measure` or `on_error`, a `first_step` below 0, or a model that cannot be
            lent (FSDP, DataParallel).

    Example:
        >>> import torch
        >>> from torch import nn
        >>> model, loss_fn = nn.Linear(3, 1), nn.MSELoss()
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> monitor = Monitor(model, loss_fn, every=1, measure="light", budget=None)
        >>> x, y = torch.randn(8, 3), torch.randn(8, 1)
        >>> loss_fn(model(x), y).backward()
        >>> record = monitor.step(x, y, optimizer)
        >>> sorted(record.summary())
        ['critical_rate', 'critical_step', 'loss', 'seconds', 'step']
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
        max_memory: float | None = None,
    ) -> None:
        check_choice("on_error", on_error, ("warn", "raise"))
        if first_step < 0:
            raise ValueError(f"first_step counts steps from 0 on; got {first_step}.")
        check_max_memory(max_memory)
        setup = gathered(model, loss_fn=loss_fn, forward=forward, autocast=autocast)
        inner, processes, convention = unwrapped(setup.model)
        self._task = Task(inner, loss_of(setup.objective), setup.autocast, processes, setup.objective, max_memory)
        named = kind_by_name(setup.loss_fn)
        self._loss_kind = LossKind(named) if named else UNKNOWN
        self._is_due = schedule(every)
        self._probes = probes(measure)
        self._budget = Budget(budget, setup.accumulate)
        self._sinks = list(sinks) if processes.first else []
        self._on_error = on_error
        self._notes = (convention,) if convention else ()
        self._warned: set[str] = set()
        self._due = self._postponed = 0
        self._owed = False
        self._next_step = first_step
        self._follow_ups: list[Probe] = []
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
        """Take a snapshot if one is due at this step. Call it at every step, between backward and optimizer.step().

        Args:
            x: the inputs of the batch. With forward=, hand in the whole batch as x.
            y: the targets of the batch.
            optimizer: the optimizer that trains the model. The probes read its learning rates and its coming update.
            lr: learning rate of plain gradient steps, if there is no optimizer.
            scale: the present `.grad` is divided by this number: GradScaler.get_scale() if `unscale_` has not run yet.

        Returns:
            The snapshot's record, or None if no snapshot was taken at this step.
        """
        self._budget.step()
        number, self._next_step = self._next_step, self._next_step + 1
        follow_ups, self._follow_ups = self._follow_ups, []
        chosen = self._probes if self._takes_snapshot(number) else follow_ups
        if not chosen:
            return None
        started = self._now()
        batch = x if y is None else (x, y)
        record, passes = self._snapshot(chosen, number, batch, optimizer, lr, scale, started)
        if chosen is self._probes:
            self._follow_ups = [p for p in chosen if getattr(p, "follow_up", False) and p.name in record.results]
        self.records.append(record)
        self._write(record)
        self._budget.pay(passes, self._now() - started, follows=chosen is follow_ups)
        return record

    def _write(self, record: Record) -> None:
        for sink in self._sinks:
            try:
                sink.write(record)
            except Exception as error:
                self._reported(f"{type(sink).__name__} did not store the record", record.step, error)

    def _takes_snapshot(self, number: int) -> bool:
        """Whether a snapshot is due at this step, or postponed and to be tried again, and the budget allows it."""
        due = self._is_due(number)
        if not due and not (self._owed and number % RETRY == 0):
            return False
        self._owed = not self._task.processes.decided(self._budget.allows())
        self._due += due
        self._postponed += due and self._owed
        return not self._owed

    def _now(self) -> float:
        if torch.cuda.is_initialized():
            device = next((p.device for p in self._task.model.parameters()), torch.device("cpu"))
            if device.type == "cuda":
                torch.cuda.synchronize(device)
        return time.perf_counter()

    def _snapshot(
        self,
        chosen: Sequence[Probe],
        number: int,
        batch: Any,
        optimizer: Any,
        lr: float | None,
        scale: float,
        started: float,
    ) -> tuple[Record, float]:
        """The record, and the gradient passes that it took."""
        together = self._task.processes.together
        results: dict[str, Result] = {}
        errors: dict[str, str] = {}
        loss, notes = float("nan"), list(self._notes)
        snapshot: Snapshot | None = None
        watchers = [probe.watch for probe in chosen if hasattr(probe, "watch")]
        try:
            with ExitStack() as stack:

                def enter() -> Snapshot:
                    for probe in chosen:
                        if hasattr(probe, "begin"):
                            probe.begin()
                    return stack.enter_context(
                        snapshot_of(
                            self._task,
                            batch,
                            optimizer=None if optimizer is None else plain_optimizer(optimizer),
                            lr=lr,
                            step=number,
                            scale=scale,
                            watchers=watchers,
                            forward_only=all(probe.forward_only for probe in chosen),
                            traced=any(hasattr(probe, "watch") or getattr(probe, "traces", False) for probe in chosen),
                        )
                    )

                try:
                    snapshot = together(enter)
                    loss = together(lambda: snapshot.loss)
                    notes += [_FIXED_DRAWS] if snapshot.drew else []
                    notes += snapshot.notes
                    if self._loss_kind in (UNKNOWN, FLAT):
                        self._loss_kind = together(lambda: kind_here(snapshot.at))
                    notes += unknown_kind_note(self._loss_kind)
                except Exception as error:
                    errors["snapshot"] = self._reported("nothing was measured", number, error)
                else:
                    for probe in chosen:
                        try:
                            results[probe.name] = together(partial(probe.measure, snapshot))
                            notes += getattr(probe, "notes", ())
                        except NoStep as reason:
                            # A warm-up begins at a rate of 0: no failure of the measurement.
                            notes += [str(reason)] if str(reason) not in notes else []
                        except Exception as error:
                            errors[probe.name] = self._reported(f"{probe.name} was not measured", number, error)
        except Exception as error:
            errors["snapshot"] = self._reported("something was not put back", number, error)
        verdicts: list[Verdict] = []
        for name, result in results.items():
            try:
                verdicts += result.verdicts(self._loss_kind.name)
            except Exception as error:
                errors[name] = self._reported(f"{name} has no verdict", number, error)
        verdicts += [] if "snapshot" in errors else self._on_the_course(number, loss)
        seconds = self._now() - started
        record = Record(number, seconds, loss, results, tuple(verdicts), tuple(notes), errors)
        return record, 0.0 if snapshot is None else snapshot.at.lent.gradient_passes

    def _on_the_course(self, number: int, loss: float) -> list[Verdict]:
        """A verdict where the loss rose again after it had fallen, and one where it has recovered from that."""
        before = [(record.step, record.loss) for record in self.records if "snapshot" not in record.errors]
        found = loss_verdict([*before, (number, loss)])
        told = any(verdict.about == ABOUT for record in self.records for verdict in record.verdicts)
        return [found] if told or not found.good else []

    def _reported(self, failure: str, number: int, error: Exception) -> str:
        """The error as text, after one warning for each distinct error; raises it if on_error="raise"."""
        if self._on_error == "raise":
            raise error
        text = f"{type(error).__name__}: {error}"
        if text not in self._warned:
            self._warned.add(text)
            message = f"normscope: {failure} at step {number}, and the run goes on. {text}"
            try:
                warnings.warn(message, stacklevel=4)
            except UserWarning:
                # The user turned warnings into errors; this one must not end the run all the same.
                print(message, file=sys.stderr)
        return text

    def frame(self) -> "pd.DataFrame":
        """A table with one row a snapshot: step, seconds, loss, and the summary of every probe."""
        return frame_of(self.records)

    def layers(self) -> "pd.DataFrame":
        """A table with one row for each snapshot and layer: the layer's numbers from every probe."""
        return layers_of(self.records)

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """The latest verdict on each subject."""
        return latest_verdicts(self.records)

    @property
    def notes(self) -> tuple[str, ...]:
        """Conventions used, and the number of snapshots that the budget postponed."""
        notes = dict.fromkeys(note for record in self.records for note in record.notes)
        if self._postponed:
            notes[
                f"budget={self._budget.share:g} postponed {self._postponed} of {self._due} snapshots due; measuring "
                f"took {self._budget.used:.1%} of the training's gradient passes and {self._budget.time_used:.1%} of "
                "its time. A larger budget gives more snapshots."
            ] = None
        return tuple(notes)

    def settings(self) -> dict[str, Any]:
        """Model, loss, probes, budget, command and environment, as plain JSON: the header of a stored file.

        The kind of a loss without a known name is found in the first snapshot, and is "unknown" before.
        """
        return {
            "model": type(self._task.model).__name__,
            "loss": self._loss_kind.name,
            "measure": [probe.name for probe in self._probes],
            "budget": self._budget.share,
            "command": command(),
            "environment": environment(next((p.device for p in self._task.model.parameters()), "cpu")),
        }

    def _sections(self) -> Sequence[Any]:
        from normscope.report.sections.monitor_records import monitor_course
        from normscope.report.sections.monitor_runs import monitor_section

        settings = self.settings()
        label = f"Training of {settings['model']}"
        return [monitor_section(label, [monitor_course(label, self.records, settings, self.notes)])]

    def close(self) -> None:
        """Close every sink; a sink that fails is reported, and the others are still closed."""
        for sink in self._sinks:
            try:
                sink.close()
            except Exception as error:
                self._reported(f"{type(sink).__name__} was not closed", self._next_step, error)

    def __enter__(self) -> "Monitor":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
