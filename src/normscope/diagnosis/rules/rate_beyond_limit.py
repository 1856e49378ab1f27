"""NS303: a learning rate beyond what the network bears."""

from collections.abc import Iterator

from normscope.diagnosis.finding import Evidence
from normscope.diagnosis.look.look import Look
from normscope.diagnosis.look.rise import rise_of
from normscope.diagnosis.registry import Found, rule


@rule("NS303", "rate-beyond-limit", needs=("batches", "optimizer"))
def rate_beyond_limit(look: Look) -> Iterator[Found]:
    """The learning rate is beyond the stability limit or the critical rate.

    Why it hurts:
        The loss rises instead of falling, and what was learned or loaded is lost. A network that survives it often has
        dead units.

    Threshold:
        An error in three cases of a short training of a copy. It diverges. Or the mean loss of the last quarter of its
        steps is more than 1.6 times the median of the first losses and 1.1 times the largest of them. Or one loss is
        more than 1.7 times the largest of the first losses (more where these differ), and the mean of the last quarter
        above 0.8 times their median. In the development half of NormFaults, clean trainings end at 1.2 times the median
        at most, faults at 2.4 or more. Where training_step makes the step, divergence alone counts: losses of
        adversarial and of reinforcement learning rise in a good training too.

    Switch off:
        The loss is expected to rise at first.

    Fails:
        model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
        setup = training(model, torch.optim.SGD(model.parameters(), lr=30.0, momentum=0.9))

    Passes:
        model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
        setup = training(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    """
    rise = rise_of(look)
    if rise is None:
        return
    yield Found(
        "error",
        rise.text,
        Evidence("loss after a few steps / first loss", rise.ratio, limit=rise.limit),
        f"optimizer = {rise.optimizer}(model.parameters(), lr={rise.lr / 10:.2g})  # or ns.tune(setup).lr",
        cost=rise.price,
        source="Wei et al. 2019; arXiv 2601.16979",
    )
