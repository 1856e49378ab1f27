"""NS304: the learning rate of a network with BatchNorm, kept without it."""

from collections.abc import Iterator

from normscope.diagnosis.finding import Evidence
from normscope.diagnosis.look.look import Look
from normscope.diagnosis.look.rise import rise_of
from normscope.diagnosis.registry import Found, rule


@rule("NS304", "old-rate-after-swap", needs=("batches", "optimizer"))
def old_rate_after_swap(look: Look) -> Iterator[Found]:
    """A normalizer was swapped or removed, and the learning rate of the old one was kept.

    BatchNorm bears rates that the same network without it, with dynamic tanh or with another normalizer does not.

    Why it hurts:
        The loss rises, or training is slower than at a rate of the new network's own.

    Threshold:
        That of NS303, for networks without BatchNorm whose rate is one that is usual with it: the rate was probably
        not chosen for this network. Only the present network is seen, so the swap itself is a guess.

    Switch off:
        Never: NS303 finds the same.

    Fails:
        model = nn.Sequential(nn.Linear(64, 32), nn.Identity(), nn.ReLU(), nn.Linear(32, 10))
        setup = training(model, torch.optim.SGD(model.parameters(), lr=30.0, momentum=0.9))

    Passes:
        model = nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))
        setup = training(model)
    """
    if look.over_batch:
        return
    rise = rise_of(look)
    if rise is not None:
        yield Found(
            "warning",
            f"The rate {rise.lr:.3g} is too large for this network without BatchNorm; a rate chosen for another "
            "normalizer does not carry over.",
            Evidence("loss after a few steps / first loss", rise.ratio, limit=rise.limit),
            "lr = ns.tune(model, loss_fn, loader, optimizer, steps=steps).lr  # tune the rate again",
            cost=rise.price,
            source="https://github.com/jiachenzhu/DyT/issues/18",
        )
