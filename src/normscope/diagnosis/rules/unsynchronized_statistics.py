"""NS115: each process normalizes its small share of the batch alone."""

from collections.abc import Iterator

from torch import nn

from normscope.diagnosis.finding import Evidence, layers_in_words
from normscope.diagnosis.look.look import Look
from normscope.diagnosis.registry import Found, rule

# Samples of one process below which its statistics are noisy: the share of the mean's variance is 1 / samples.
FEW = 8


@rule("NS115", "unsynchronized-statistics", needs=("batches",))
def unsynchronized_statistics(look: Look) -> Iterator[Found]:
    """Each process of a distributed training normalizes its small share of the batch alone.

    Why it hurts:
        The statistics are those of a small batch, however many processes there are.

    Threshold:
        A warning below 8 samples in a process. It is that of small-batch-noise for layers without space; NormFaults
        has one process only, so the number is not calibrated.

    Switch off:
        Independent statistics are wanted.

    Passes:
        setup = training(nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10)))
    """
    if look.processes < 2:
        return
    alone = [
        norm.name
        for norm in look.over_batch
        if norm.layer.training and not isinstance(norm.layer, nn.SyncBatchNorm) and not vars(norm.layer).get("sync")
    ]
    if alone and look.batch_size < FEW:
        yield Found(
            "warning",
            f"Each of {look.processes} processes normalizes {look.batch_size} samples alone in "
            f"{layers_in_words(alone)}.",
            Evidence("samples in a process", look.batch_size, limit=FEW),
            "model = nn.SyncBatchNorm.convert_sync_batchnorm(model)  # before DistributedDataParallel",
            alone,
            source="https://github.com/pytorch/pytorch/issues/2584",
        )
