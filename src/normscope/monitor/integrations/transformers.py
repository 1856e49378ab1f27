"""Hugging Face: the Monitor as a callback of its Trainer. Needs `pip install normscope[transformers]`."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from normscope.extras import need
from normscope.monitor.monitor import Monitor

need("transformers", "transformers")
need("accelerate", "transformers")
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments  # noqa: E402


class TransformersMonitor(TrainerCallback):
    """Looks on once gradients are accumulated and clipped, before the optimizer's step.

        watch = TransformersMonitor(every=100, sinks=[JSONL("monitor.jsonl")])
        Trainer(model, arguments, train_dataset=data, callbacks=[watch]).train()
        watch.monitor.frame()

    The loss is `model(**inputs).loss` on the batch at hand (the last of those accumulated).
    The Trainer does not hand its inputs to callbacks: a hook on the model remembers them while it trains. One process
    with one device; several are refused, since a callback cannot see how the Trainer joins them.

    Args:
        forward: forward(model, inputs) gives the loss, where the Trainer computes another (label smoothing, your own
            compute_loss).
        options: those of `Monitor`: every, measure, budget, sinks, on_error.
    """

    def __init__(self, *, forward: Callable[[nn.Module, Any], Tensor] | None = None, **options: Any) -> None:
        self.monitor: Monitor | None = None
        self._forward = forward or _loss
        self._options = options
        self._inputs: dict[str, Any] = {}
        self._hook: Any = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if args.world_size > 1 or args.n_gpu > 1:
            raise ValueError(
                f"TransformersMonitor watches one process with one device; this run has {args.world_size} processes, "
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
        # The count is that of all accumulated batches, and the loss its sum over this one divided by it.
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


def _loss(model: nn.Module, inputs: dict[str, Any]) -> Tensor:
    loss = getattr(model(**inputs), "loss", None)
    if loss is None:
        raise ValueError(
            "The model's output has no loss: the Trainer computes it by itself (label smoothing, compute_loss). "
            "Hand in TransformersMonitor(forward=lambda model, inputs: ...) that gives it."
        )
    return loss
