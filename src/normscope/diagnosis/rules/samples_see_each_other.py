"""NS207: samples that see each other through batch statistics."""

from collections.abc import Iterator

from normscope.diagnosis.finding import Evidence, layers_in_words
from normscope.diagnosis.look.comparing import compares_samples
from normscope.diagnosis.look.costs import cost_of_batch_statistics
from normscope.diagnosis.look.look import Look
from normscope.diagnosis.registry import Found, rule

# Samples of a share of the batch up to which its statistics give the samples away.
SHARE = 16
# Relative difference between the loss of a batch and the mean loss of its halves.
APART = 0.02


@rule("NS207", "samples-see-each-other", needs=("batches",))
def samples_see_each_other(look: Look) -> Iterator[Found]:
    """Samples see each other through batch statistics where the loss compares them.

    In contrastive learning a query and its key may be normalized in the same small share of the batch. The share leaves
    a mark on both, and the loss falls by recognizing the mark.

    Why it hurts:
        The network learns the mark and not the task; evaluation, where there is no mark, is bad.

    Threshold:
        A warning where two facts meet. The loss compares samples: in eval mode the loss of a batch is not the mean of
        the losses of its halves, by more than 2 %. And a layer takes statistics over a share of at most 16 samples and
        of at most half of the batch. Statistics of the whole batch are clean.

    Switch off:
        The shares are drawn again between the two views, as in MoCo's shuffled BatchNorm.

    Fails:
        class Shares(nn.Module):
            def __init__(self):
                super().__init__()
                self.net = nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 8))

            def forward(self, x):
                shares = x.chunk(32 if self.training else 1)
                z = torch.cat([self.net(share) for share in shares])
                return z @ z.T


        pairs = [(a, torch.arange(64)) for a, b in batches]
        setup = training(Shares(), batches=pairs)

    Passes:
        class Whole(nn.Module):
            def __init__(self):
                super().__init__()
                self.net = nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 8))

            def forward(self, x):
                z = self.net(x)
                return z @ z.T


        pairs = [(a, torch.arange(64)) for a, b in batches]
        setup = training(Whole(), batches=pairs)
    """
    most = min(SHARE, look.batch_size // 2)
    shares = {
        name: min(call.samples for call in calls)
        for name, calls in look.start.trace.inputs.items()
        if any(call.training for call in calls)
    }
    small = [name for name, samples in shares.items() if samples <= most]
    if not small or not compares_samples(look, APART):
        return
    least = min(shares[name] for name in small)
    yield Found(
        "warning",
        f"The loss compares samples, and {layers_in_words(small)} normalizes them in shares of {least} of a batch of "
        f"{look.batch_size}, which mark the samples of a share.",
        Evidence("samples of a share", least, limit=most),
        "z = encoder(torch.cat([queries, keys]))  # statistics of the whole batch, or ns.swap_norms(model, 'group')",
        small,
        cost_of_batch_statistics(look),
        "https://github.com/facebookresearch/moco/issues/46",
    )
