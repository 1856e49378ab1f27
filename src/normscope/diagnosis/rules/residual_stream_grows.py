"""NS306: a residual stream that grows from block to block."""

from collections.abc import Iterator

from normscope.diagnosis.finding import Evidence, layers_in_words
from normscope.diagnosis.look.look import Look
from normscope.diagnosis.registry import Found, rule

GREW = 20.0


@rule("NS306", "residual-stream-grows", needs=("batches",))
def residual_stream_grows(look: Look) -> Iterator[Found]:
    """The residual stream grows from block to block.

    A branch without a normalizer gives outputs of the size of the stream, so each block multiplies its variance. With a
    normalizer in each branch the variance grows by a sum: 24 blocks grow it 25 times at most, its deviation 5 times.

    Why it hurts:
        The stream overflows in half precision, and the last blocks outweigh the first ones.

    Threshold:
        A warning where the root mean square of the stream behind the last of at least four blocks of one class is more
        than 20 times that before the first one. In the development half of NormFaults, clean networks have at most
        1.5, the fault 680,000.

    Switch off:
        The blocks are no residual blocks.

    Fails:
        class Block(nn.Module):
            def __init__(self):
                super().__init__()
                self.branch = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
                nn.init.normal_(self.branch[0].weight, std=0.2)
                nn.init.normal_(self.branch[2].weight, std=0.2)

            def forward(self, x):
                return x + self.branch(x)


        blocks = nn.Sequential(*[Block() for _ in range(12)])
        setup = training(nn.Sequential(blocks, nn.LayerNorm(64), nn.Linear(64, 10)))

    Passes:
        class Block(nn.Module):
            def __init__(self):
                super().__init__()
                self.branch = nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))

            def forward(self, x):
                return x + self.branch(x)


        blocks = nn.Sequential(*[Block() for _ in range(12)])
        setup = training(nn.Sequential(blocks, nn.LayerNorm(64), nn.Linear(64, 10)))
    """
    stacks: dict[str, list[tuple[str, tuple[float, float]]]] = {}
    for name, sizes in look.start.trace.blocks.items():
        stacks.setdefault(name.rpartition(".")[0], []).append((name, sizes))
    for blocks in stacks.values():
        first, last = blocks[0][1][0], blocks[-1][1][1]
        growth = last / first if first > 0 else 0.0
        if len(blocks) >= 4 and growth > GREW:
            names = [name for name, _ in blocks]
            each = growth ** (1 / len(blocks))
            yield Found(
                "warning",
                f"The stream through {layers_in_words(names)} grows {growth:.2g} times over {len(blocks)} blocks, "
                f"{each:.2f} times in each.",
                Evidence("size of the stream behind the last block / before the first", growth, limit=GREW),
                "x = x + branch(nn.LayerNorm(width)(x))  # a normalizer in each branch",
                names,
                source="Zhang et al. 2019, Fixup initialization",
            )
            return
