"""NS305: attention that looks at one position."""

from collections.abc import Iterator

from normscope.diagnosis.finding import Evidence
from normscope.diagnosis.look.look import Look
from normscope.diagnosis.registry import Found, rule

SHARP = 0.8


@rule("NS305", "attention-logits-grow", needs=("batches",))
def attention_logits_grow(look: Look) -> Iterator[Found]:
    """Attention logits are or become so large that attention looks at one position.

    Why it hurts:
        The softmax is saturated, so queries and keys get no gradient; in long trainings the loss jumps.

    Threshold:
        A warning where the largest weight of attention, averaged over samples, heads and the later half of the
        positions, is above 0.8 in some layer before any step. In the development half of NormFaults, clean
        transformers have at most 0.17, the fault 0.97.

    Switch off:
        The network is trained already, and its attention is sharp for good reason.

    Fails:
        class Attention(nn.Module):
            def __init__(self, size):
                super().__init__()
                self.qkv, self.head, self.size = nn.Linear(8, 24), nn.Linear(64, 10), size

            def forward(self, x):
                q, k, v = self.qkv(x.view(-1, 1, 8, 8)).chunk(3, -1)
                return self.head(nn.functional.scaled_dot_product_attention(self.size * q, k, v).flatten(1))


        setup = training(Attention(size=1000.0))

    Passes:
        class Attention(nn.Module):
            def __init__(self, size):
                super().__init__()
                self.qkv, self.head, self.size = nn.Linear(8, 24), nn.Linear(64, 10), size

            def forward(self, x):
                q, k, v = self.qkv(x.view(-1, 1, 8, 8)).chunk(3, -1)
                return self.head(nn.functional.scaled_dot_product_attention(self.size * q, k, v).flatten(1))


        setup = training(Attention(size=1.0))
    """
    sharpest = max(look.start.trace.attention, default=0.0)
    if sharpest > SHARP:
        yield Found(
            "warning",
            f"Attention looks at one position: its largest weight is {sharpest:.2f} on average.",
            Evidence("largest weight of attention", sharpest, limit=SHARP),
            "q, k = nn.functional.rms_norm(q, q.shape[-1:]), nn.functional.rms_norm(k, k.shape[-1:])  # QK-norm",
            source="https://github.com/facebookresearch/deit/issues/29",
        )
