"""The Monitor as a callback of the Hugging Face Trainer. Needs the extra `transformers`."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from normscope.importing.extras import need
from normscope.monitor.monitor import Monitor

need("transformers", "transformers")
need("accelerate", "transformers")
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments  # noqa: E402


class TransformersMonitor(TrainerCallback):
    """A Hugging Face callback that calls `Monitor.step` before each optimizer step, after accumulation and clipping.

        watch = TransformersMonitor(every=100, sinks=[JSONL("monitor.jsonl")])
        Trainer(model, arguments, train_dataset=data, callbacks=[watch]).train()
        watch.monitor.frame()

    The loss is `model(**inputs).loss` on the present batch (the last one, if gradients are accumulated over several).
    The Trainer does not hand its inputs to callbacks, so a hook on the model stores them at every training forward
    pass. Only one process with one device is supported: a callback cannot see how the Trainer joins several.

    Args:
        forward: forward(model, inputs) returns the loss, if the Trainer's loss is not `model(**inputs).loss` (label
            smoothing, your own compute_loss).
        options: keyword arguments of `Monitor`: every, measure, budget, sinks, on_error.

    Raises:
        ValueError: when training starts with several processes or several devices.
    """

    def __init__(self, *, forward: Callable[[nn.Module, Any], Tensor] | None = None, **options: Any) -> None:
        self.monitor: Monitor | None = None
        self._forward = forward or _output_with_loss
        self._options = options
        self._inputs: dict[str, Any] = {}
        self._hook: Any = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if args.world_size > 1 or args.n_gpu > 1:
            raise ValueError(
                f"TransformersMonitor measures one process with one device; this run has {args.world_size} processes, "
                f"with {args.n_gpu} devices each. Under DDP use normscope.Monitor in a loop of your own."
            )
        self._end()
        self.monitor = Monitor(
            kwargs["model"],
            forward=self._forward,
            autocast=torch.bfloat16 if args.bf16 else torch.float16 if args.fp16 else None,
            first_step=state.global_step,
            **self._options,
        )
        self._hook = kwargs["model"].register_forward_pre_hook(self._remember, with_kwargs=True)

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self.monitor is None:
            return
        # `num_items_in_batch` counts the items of all accumulated batches, and the model divides the sum of its losses
        # by it; here the loss is of one batch, so the count is divided by the number of accumulated batches.
        count = self._inputs.get("num_items_in_batch")
        share = {} if count is None else {"num_items_in_batch": count / args.gradient_accumulation_steps}
        self.monitor.step(self._inputs | share, optimizer=kwargs["optimizer"])

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._end()

    def _end(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook, self._inputs = None, {}
        if self.monitor is not None:
            self.monitor.close()

    def _remember(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if module.training:
            self._inputs = dict(kwargs)


def _output_with_loss(model: nn.Module, inputs: dict[str, Any]) -> Any:
    """The model's whole output: the kind of the loss is found from the predictions in it."""
    output = model(**inputs)
    if getattr(output, "loss", None) is None:
        raise ValueError(
            "The model's output has no loss: the Trainer computes the loss itself (label smoothing, compute_loss). "
            "Hand in TransformersMonitor(forward=lambda model, inputs: ...) that returns the loss."
        )
    return output
