"""NS211: evaluation with folded or quantized layers that changes the output."""

from collections.abc import Iterator

from normscope.diagnosis.finding import Evidence
from normscope.diagnosis.look.costs import cost_of_eval_path
from normscope.diagnosis.look.look import Look
from normscope.diagnosis.look.passes import NotLooked
from normscope.diagnosis.registry import Found, rule

COSTS, ERRORS = 0.02, 3.0


@rule("NS211", "folding-changes-output", needs=("batches", "optimizer"))
def folding_changes_output(look: Look) -> Iterator[Found]:
    """Folding a normalizer or quantizing after it changes the output by more than it may.

    The weights of a convolution times the scales of its BatchNorm span many sizes. One step of quantization for the
    whole layer rounds the small ones to zero.

    Why it hurts:
        What is evaluated or deployed is not what was trained.

    Threshold:
        A trained copy is evaluated twice with the same statistics: in eval mode, and in train mode with BatchNorm and
        dropout in eval mode. A warning where eval mode has a loss that is larger by 2 % of the first loss and by three
        standard errors. In the development half of NormFaults, clean networks have the same loss to the last digit, the
        fault 4 %.

    Switch off:
        Train mode has other parts on purpose, such as outputs that evaluation leaves out.

    Fails:
        class Folded(nn.Module):
            def __init__(self):
                super().__init__()
                self.linear, self.norm = nn.Linear(64, 32, bias=False), nn.BatchNorm1d(32)
                nn.init.zeros_(self.norm.bias)
                self.norm.weight.data.mul_(torch.logspace(-2, 1, 32))

            def forward(self, x):
                if self.training:
                    return self.norm(self.linear(x)).relu()
                scale = self.norm.weight / (self.norm.running_var + self.norm.eps).sqrt()
                weight, shift = self.linear.weight * scale[:, None], self.norm.bias - self.norm.running_mean * scale
                step = weight.abs().max() / 3
                return nn.functional.linear(x, (weight / step).round() * step, shift).relu()


        setup = training(nn.Sequential(Folded(), nn.Linear(32, 10)), eval_batches=batches[:6])

    Passes:
        model = nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))
        setup = training(model, eval_batches=batches[:6])
    """
    if look.trained.diverged_at is not None or not look.over_batch:
        return
    try:
        cost = cost_of_eval_path(look)
    except NotLooked:
        return
    if cost.share > COSTS and cost.value > ERRORS * (cost.spread if cost.spread == cost.spread else 0.0):
        yield Found(
            "warning",
            "Eval mode computes another function than train mode with the same statistics: folding or quantization "
            "changes the output.",
            Evidence("loss in eval mode above that of the layers as trained", cost.value, cost.spread),
            "largest = weight.abs().amax(dim=(1, 2, 3), keepdim=True)  # a step for each channel, or more bits",
            cost=cost,
            source="https://github.com/Xilinx/brevitas/issues/388",
        )
