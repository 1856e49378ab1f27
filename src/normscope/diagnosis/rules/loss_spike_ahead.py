"""NS307: steps so large that the loss is about to jump."""

from collections.abc import Iterator

from normscope.diagnosis.finding import Evidence
from normscope.diagnosis.look.look import Look
from normscope.diagnosis.registry import Found, rule

LARGE = 0.25


@rule("NS307", "loss-spike-ahead", needs=("optimizer",))
def loss_spike_ahead(look: Look) -> Iterator[Found]:
    """The steps of an adaptive optimizer are so large that the loss is about to jump, or jumps again and again.

    Adam divides the gradient by its own size, so that each weight moves by about the rate, whatever the gradient is.

    Why it hurts:
        A few steps in one direction replace the weights. The second moment averages over 1 / (1 - beta2) steps, so it
        is too small after the gradient has grown, and the step is larger still.

    Threshold:
        A warning where the rate is more than 0.25 times the root mean square of the
        weights of the median matrix. In the development half of NormFaults, clean trainings have at most 0.07 and the
        fault has 0.98.

    Switch off:
        The weights are meant to grow fast at the start.

    Fails:
        model = nn.Sequential(nn.Linear(64, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 10))
        setup = training(model, torch.optim.AdamW(model.parameters(), lr=0.1))

    Passes:
        model = nn.Sequential(nn.Linear(64, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 10))
        setup = training(model, torch.optim.AdamW(model.parameters(), lr=0.003))
    """
    optimizer = look.setup.optimizer
    if optimizer is None or not type(optimizer).__name__.lower().rstrip("w").endswith(("adam", "nadam", "radam")):
        return
    ratios = []
    for name, parameter in look.parameters.items():
        group = look.group_of(name)
        if group is None or parameter.ndim < 2 or not parameter.requires_grad:
            continue
        size = float(parameter.detach().float().square().mean().sqrt())
        if size > 0:
            ratios.append(float(group["lr"]) / size)
    if not ratios:
        return
    ratios.sort()
    middle = ratios[len(ratios) // 2]
    if middle > LARGE:
        yield Found(
            "warning",
            f"Each step of {type(optimizer).__name__} moves a weight by about {middle:.0%} of its size.",
            Evidence("rate / root mean square of the weights", middle, limit=LARGE),
            f"optimizer = torch.optim.{type(optimizer).__name__}(model.parameters(), lr="
            f"{float(optimizer.param_groups[0]['lr']) / 30:.1g}, betas=(0.9, 0.95))\n"
            "nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # and a warm-up",
            source="https://github.com/stanford-crfm/levanter/issues/1368",
        )
