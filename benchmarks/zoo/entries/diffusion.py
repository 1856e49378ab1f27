"""diffusers: parts of generators, trained with squared error on noise."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from entries import DEPTH, WIDTH, Entry


def _sample_loss(out: Any, target: Tensor) -> Tensor:
    """Squared error of the sample in diffusers' outputs."""
    return F.mse_loss(out.sample, target)


def _condition(size: str) -> tuple[dict[str, Any], Callable[[], Any], dict[str, Any]]:
    width = WIDTH[size]

    def batch() -> tuple[dict[str, Tensor], Tensor]:
        ones = torch.ones(4, 8)
        inputs = {
            "text_hidden_states": torch.randn(4, 8, width),
            "text_attention_mask": ones,
            "lyric_hidden_states": torch.randn(4, 8, width),
            "lyric_attention_mask": ones,
            "refer_audio_acoustic_hidden_states_packed": torch.randn(4, 8, 16),
            "refer_audio_order_mask": torch.arange(4),
        }
        return inputs, torch.randn(4, 17, width)

    options = {"hidden_size": width, "intermediate_size": 2 * width, "text_hidden_dim": width, "timbre_hidden_dim": 16}
    options |= {"num_lyric_encoder_hidden_layers": DEPTH[size], "num_timbre_encoder_hidden_layers": DEPTH[size]}
    options |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
    return options, batch, {"loss_fn": lambda out, y: F.mse_loss(out[0], y)}


def _video(size: str) -> tuple[dict[str, Any], Callable[[], Any], dict[str, Any]]:
    options = {"num_attention_heads": 4, "attention_head_dim": 12, "in_channels": 4, "out_channels": 4, "text_dim": 16}
    options |= {"freq_dim": 16, "ffn_dim": 2 * WIDTH[size], "num_layers": DEPTH[size], "vace_layers": [0, 2]}
    options |= {"vace_in_channels": 4, "rope_max_seq_len": 32}

    def batch() -> tuple[dict[str, Tensor], Tensor]:
        inputs = {
            "hidden_states": torch.randn(4, 4, 2, 8, 8),
            "timestep": torch.randint(1000, (4,)),
            "encoder_hidden_states": torch.randn(4, 6, 16),
            "control_hidden_states": torch.randn(4, 4, 2, 8, 8),
        }
        return inputs, torch.randn(4, 4, 2, 8, 8)

    return options, batch, {}


def _unet(size: str) -> tuple[dict[str, Any], Callable[[], Any], dict[str, Any]]:
    width = WIDTH[size]
    options = {"sample_size": 16, "block_out_channels": (width, 2 * width), "layers_per_block": 1, "norm_num_groups": 8}
    options |= {
        "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
        "up_block_types": ("AttnUpBlock2D", "UpBlock2D"),
    }

    def batch() -> tuple[dict[str, Tensor], Tensor]:
        inputs = {"sample": torch.randn(4, 3, 16, 16), "timestep": torch.randint(1000, (4,))}
        return inputs, torch.randn(4, 3, 16, 16)

    return options, batch, {}


def _pictures() -> tuple[Tensor, Tensor]:
    x = torch.rand(4, 3, 32, 32)
    return x, x


def _film() -> tuple[Tensor, Tensor]:
    x = torch.rand(2, 3, 5, 16, 16)
    return x, x


def _configured(name: str, size: str) -> tuple[dict[str, Any], Callable[[], Any], dict[str, Any]]:
    """Options of the model, its batch, and further fields of the entry."""
    width = WIDTH[size]
    if name == "AceStepConditionEncoder":
        return _condition(size)
    if name == "WanVACETransformer3DModel":
        return _video(size)
    if name == "UNet2DModel":
        return _unet(size)
    if name == "AutoencoderTiny":
        blocks = {"encoder_block_out_channels": (width,) * 3, "decoder_block_out_channels": (width,) * 3}
        return blocks | {"num_encoder_blocks": (1, 1, 1), "num_decoder_blocks": (1, 1, 1)}, _pictures, {}
    if name == "AutoencoderVidTok":
        return {"ch": width // 2, "ch_mult": [1, 2, 2], "num_res_blocks": 1, "z_channels": 4}, _film, {}
    assert name == "MiniMaxMusic3RVQDepthDecoder", name
    options = {
        "hidden_size": width,
        "num_layers": DEPTH[size],
        "num_attention_heads": 4,
        "intermediate_size": 2 * width,
    }
    decoder = options | {"audio_vocab_size": 32, "num_codebooks": 4}
    return decoder, lambda: (torch.randn(4, 8, width), torch.randn(4, 8, width)), {"loss_fn": F.mse_loss}


def _diffusers(name: str, size: str) -> Entry:
    import diffusers

    options, batch, more = _configured(name, size)

    def build() -> nn.Module:
        made: nn.Module = getattr(diffusers, name)(**options).train()
        return made

    return Entry(build, batch, **({"loss_fn": _sample_loss} | more))


ENTRIES = {"diffusers": _diffusers}
