"""vit_pytorch and x_transformers."""

import torch

from entries import DEPTH, WIDTH, Entry, Unavailable

TOKENS = 64


def _vit(name: str, size: str) -> Entry:
    width, depth = WIDTH[size], DEPTH[size]
    shared = {"dim": width, "depth": depth, "heads": 4, "mlp_dim": 2 * width, "dim_head": 8}
    if name == "es_vit":
        raise Unavailable("its forward crops with torchvision, of which there is no build beside this torch")
    if name == "nest":
        from vit_pytorch.nest import NesT

        options = {"num_hierarchies": 2, "block_repeats": (1, 1), "num_classes": 10, "dim_head": 8}
        return Entry(
            lambda: NesT(image_size=32, patch_size=4, dim=width, heads=4, **options),
            lambda: (torch.randn(8, 3, 32, 32), torch.randint(10, (8,))),
        )
    if name == "vit_nd_rotary":
        raise Unavailable("torch's FlexAttention, on which it is built, has no backward on a CPU")
    assert name == "levjepa_nd", name
    from vit_pytorch.levjepa_nd import LeVJEPAND, NDTransformer

    shape, patch = (4, 16, 16), (1, 8, 8)
    # Self-supervised: its forward gives the loss of one batch without labels.
    return Entry(
        lambda: LeVJEPAND(
            NDTransformer(ndim=3, input_shape=shape, patch_size=patch, **shared),
            input_shape=shape,
            augment_src=_noise,
            augment_tgt=_noise,
            num_classes_K=16,
            projection_hidden=width,
            drop_ratio=0.5,
            sigreg_loss_kwargs={"num_proj": 32, "knots": 9},
        ),
        lambda: torch.randn(8, 3, *shape),
        loss_fn=None,
    )


def _noise(x: torch.Tensor) -> torch.Tensor:
    return x + 0.1 * torch.randn_like(x)


def _x_transformers(name: str, size: str) -> Entry:
    import x_transformers as xt

    width, depth = WIDTH[size], DEPTH[size]
    if name == "XTransformer":
        ends = {"num_tokens": TOKENS, "depth": depth, "heads": 4, "max_seq_len": 16, "attn_dim_head": 8}
        options = {f"{end}_{key}": value for end in ("enc", "dec") for key, value in ends.items()}
        return Entry(
            lambda: xt.XTransformer(dim=width, **options),
            lambda: (torch.randint(1, TOKENS, (8, 16)), torch.randint(1, TOKENS, (8, 16))),
            loss_fn=None,
        )
    assert name == "AutoregressiveWrapper", name
    return Entry(
        lambda: xt.AutoregressiveWrapper(
            xt.TransformerWrapper(
                num_tokens=TOKENS,
                max_seq_len=16,
                attn_layers=xt.Decoder(dim=width, depth=depth, heads=4, attn_dim_head=8, use_rmsnorm=True),
            )
        ),
        lambda: torch.randint(1, TOKENS, (8, 16)),
        loss_fn=None,
    )


ENTRIES = {"vit_pytorch": _vit, "x_transformers": _x_transformers}
