"""NS206: averaged weights that are evaluated with running statistics that are not theirs."""

from collections.abc import Iterator

from normscope.diagnosis.finding import Cost, Evidence
from normscope.diagnosis.look.averaging import average_of
from normscope.diagnosis.look.look import Look
from normscope.diagnosis.registry import Found, rule

# Cost of copied statistics, as a share of the loss before training, and in standard errors.
COSTS, ERRORS = 0.2, 3.0


@rule("NS206", "averaged-weights-foreign-buffers", needs=("batches", "optimizer"))
def averaged_weights_foreign_buffers(look: Look) -> Iterator[Found]:
    """Averaged weights are evaluated with running statistics that are not theirs.

    A moving average of the parameters has activations of its own. A hand-written average often skips buffers, so its
    statistics stay those of the first step. `torch.optim.swa_utils.AveragedModel` copies the buffers of the network
    that trains, which are those of other weights where the rate is large.

    Why it hurts:
        The averaged network is evaluated as another function, often far worse than the network it averages.

    Threshold:
        A shift is added to the running statistics of the network, and the average is updated as often as planned. An
        error where the shift does not arrive and the average's statistics are not the population's either. Where the
        statistics are copied, a warning if those of the population lower the loss of the average after a short training
        by more than 20 % of the first loss and three standard errors. The start of a training, where weights move fast,
        overstates that cost. With SGD at rates up to 0.05 a small network has 2 % to 8 %, and is clean. The fault in
        the development half of NormFaults, at a rate of 0.3, has 24 % to 28 %.

    Switch off:
        The statistics of the average are computed again before every evaluation.

    Fails:
        class Average(nn.Module):
            def __init__(self, model):
                super().__init__()
                self.module = copy.deepcopy(model)

            def forward(self, x):
                return self.module(x)

            @torch.no_grad()
            def update_parameters(self, model):
                for mine, theirs in zip(self.module.parameters(), model.parameters()):
                    mine.lerp_(theirs, 0.1)


        model = nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))
        setup = training(model, averaged_model=Average(model), steps=200)

    Passes:
        model = nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))
        average = torch.optim.swa_utils.AveragedModel(model, use_buffers=True)
        setup = training(model, averaged_model=average, steps=200)
    """
    tracked = [norm for norm in look.over_batch if norm.tracks and not look.rests_in_training(norm)]
    if look.setup.averaged_model is None or not tracked or look.trained.diverged_at is not None:
        return
    average = average_of(look, tracked)
    if average is None:
        return
    names = [norm.name for norm in tracked]
    fix = (
        "torch.optim.swa_utils.update_bn(loader, averaged_model)  # before evaluation; or "
        "AveragedModel(model, use_buffers=True)"
    )
    source = "https://github.com/huggingface/pytorch-image-models/issues/106"
    if not average.follows and not average.recomputed:
        yield Found(
            "error",
            "The running statistics of the averaged weights never follow those of training.",
            Evidence("share of a change of the statistics that arrives in the average", average.arrived, limit=0.01),
            fix,
            names,
            average.cost if average.cost.value > 0 else Cost(),
            source,
        )
    elif average.copied and average.cost.share > COSTS and average.cost.value > ERRORS * average.cost.spread:
        yield Found(
            "warning",
            "The averaged weights are evaluated with running statistics copied from the network that trains, whose "
            "weights are others.",
            Evidence("loss by these statistics above that by its own", average.cost.value, average.cost.spread),
            fix,
            names,
            average.cost,
            source,
        )
