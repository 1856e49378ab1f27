"""NS109: the last batch of an epoch has one sample."""

from collections.abc import Iterator

from normscope.diagnosis.finding import Evidence
from normscope.diagnosis.look.look import Look
from normscope.diagnosis.registry import Found, rule


@rule("NS109", "last-batch-of-one", needs=("batches",))
def last_batch_of_one(look: Look) -> Iterator[Found]:
    """The last batch of an epoch has one sample, whose batch statistics mean nothing.

    Why it hurts:
        Without space, torch raises "Expected more than 1 value per channel". With space, one step a epoch is made with
        the statistics of one sample, and they enter the running statistics with the weight of a whole batch: they are
        the last ones before the evaluation.

    Threshold:
        One sample in a batch where the first batch has at least four. It is arithmetic.

    Switch off:
        The training skips that batch.

    Fails:
        image = nn.Unflatten(1, (1, 8, 8))
        net = nn.Sequential(image, nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(288, 10))
        setup = training(net, batches=list(zip(x[:129].split(32), y[:129].split(32))))

    Passes:
        image = nn.Unflatten(1, (1, 8, 8))
        net = nn.Sequential(image, nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(288, 10))
        setup = training(net, batches=list(zip(x[:128].split(32), y[:128].split(32))))
    """
    live = [norm.name for norm in look.over_batch if norm.layer.training]
    ones = sum(size == 1 for size in look.sizes)
    if live and ones and look.batch_size >= 4:
        yield Found(
            "warning",
            f"{ones} of {len(look.sizes)} batches {'has' if ones == 1 else 'have'} one sample, and BatchNorm "
            "normalizes by its statistics.",
            Evidence("samples in the smallest batch", 1, limit=1),
            "DataLoader(dataset, batch_size, shuffle=True, drop_last=True)",
            live,
            source="https://github.com/pytorch/pytorch/issues/4534",
        )
