"""transformers: models from configurations, on the dicts that their data collators give."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from entries import DEPTH, WIDTH, Entry

VOCABULARY = 96
_PLAIN = {"vocab_size": VOCABULARY, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}


def _text(
    n: int, length: int, labels: Callable[[Tensor], Tensor], *, mask: bool = True
) -> Callable[[], dict[str, Tensor]]:
    """Token numbers with an attention mask; the labels are made of them."""

    def batch() -> dict[str, Tensor]:
        ids = torch.randint(3, VOCABULARY, (n, length))
        found = {"input_ids": ids, "labels": labels(ids)}
        return found | ({"attention_mask": torch.ones_like(ids)} if mask else {})

    return batch


def _classes(ids: Tensor) -> Tensor:
    return torch.randint(4, (len(ids),))


def _masked(ids: Tensor) -> Tensor:
    """Labels at every fourth token, -100 elsewhere, which the loss leaves out."""
    return torch.where(torch.arange(ids.shape[1]) % 4 == 0, ids, -100)


def _pictures(name: str, labels: tuple[int, ...], side: int = 64, classes: int = 4) -> Callable[[], dict[str, Tensor]]:
    return lambda: {"pixel_values": torch.randn(4, 3, side, side), "labels": torch.randint(classes, (4, *labels))}


def _music(width: int, depth: int) -> Any:
    audio = {
        "model_type": "audioflamingo3_encoder",
        "num_mel_bins": 16,
        "num_hidden_layers": depth,
        "num_attention_heads": 4,
        "intermediate_size": 2 * width,
        "hidden_size": width,
        "max_source_positions": 32,
        "layerdrop": 0.0,
    }
    text = {"model_type": "qwen2", "hidden_size": width, "intermediate_size": 2 * width, "num_hidden_layers": depth}
    text |= {"num_attention_heads": 4, "num_key_value_heads": 2, **_PLAIN}
    return {"audio_config": audio, "text_config": text, "audio_token_id": 95, "audio_bos_token_id": 93} | {
        "audio_eos_token_id": 94
    }


def _sound_and_text() -> dict[str, Tensor]:
    """64 frames of 16 mel bins are 16 audio tokens after the encoder's two halvings."""
    ids = torch.randint(3, 90, (2, 24))
    ids[:, 2:18] = 95
    mask = torch.ones(2, 64, dtype=torch.long)
    sound = {"input_features": torch.randn(2, 16, 64), "input_features_mask": mask}
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids, **sound}


def _configured(name: str, width: int, depth: int) -> tuple[dict[str, Any], Callable[[], dict[str, Tensor]]]:
    """Options of the configuration, and the batch."""
    body = {"hidden_size": width, "num_hidden_layers": depth, "num_attention_heads": 4, "intermediate_size": 2 * width}
    text = body | _PLAIN
    same: Callable[[Tensor], Tensor] = Tensor.clone
    known: dict[str, tuple[dict[str, Any], Callable[[], dict[str, Tensor]]]] = {
        "BertForMaskedLM": (text | {"max_position_embeddings": 32}, _text(8, 16, _masked)),
        "GPTNeoXForTokenClassification": (
            text | {"max_position_embeddings": 32, "num_labels": 4},
            _text(8, 16, lambda ids: torch.randint(4, ids.shape)),
        ),
        "LlamaForCausalLM": (text | {"num_key_value_heads": 2}, _text(8, 16, same)),
        "MambaForCausalLM": (
            {"hidden_size": width, "num_hidden_layers": depth, "state_size": 8, **_PLAIN},
            _text(8, 16, same, mask=False),
        ),
        "MixtralForSequenceClassification": (
            text | {"num_key_value_heads": 2, "num_local_experts": 4, "num_experts_per_tok": 2, "num_labels": 4},
            _text(8, 16, _classes),
        ),
        "MobileNetV2ForImageClassification": ({"image_size": 64, "num_labels": 4}, _pictures("", ())),
        "MobileViTV2ForSemanticSegmentation": (
            {"image_size": 64, "width_multiplier": 0.5, "num_labels": 4},
            _pictures("", (64, 64)),
        ),
        "MusicFlamingoForConditionalGeneration": (_music(width, depth), _sound_and_text),
        "SegformerForSemanticSegmentation": (
            {"hidden_sizes": [width // 2, width, width, width], "depths": [1, 1, 1, 1], "decoder_hidden_size": width}
            | {"num_attention_heads": [1, 2, 2, 2], "num_labels": 4},
            _pictures("", (64, 64)),
        ),
        "T5ForConditionalGeneration": (
            {
                "d_model": width,
                "d_kv": 8,
                "d_ff": 2 * width,
                "num_layers": depth,
                "num_heads": 4,
                "vocab_size": VOCABULARY,
            }
            | {"decoder_start_token_id": 0},
            _text(8, 16, same),
        ),
        "WavLMForSequenceClassification": (
            body
            | {"conv_dim": (width // 2,) * 2, "conv_stride": (5, 4), "conv_kernel": (10, 8), "num_labels": 4}
            | {"num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 2, "mask_time_length": 2},
            lambda: {"input_values": torch.randn(4, 1600), "labels": torch.randint(4, (4,))},
        ),
        "YoutuForCausalLM": (
            text
            | {"num_key_value_heads": 4, "kv_lora_rank": 16, "q_lora_rank": 32, "qk_rope_head_dim": 8}
            | {"v_head_dim": 16, "qk_nope_head_dim": 16},
            _text(8, 16, same),
        ),
    }
    return known[name]


def _transformers(name: str, size: str) -> Entry:
    import transformers

    options, batch = _configured(name, WIDTH[size], DEPTH[size])
    kind = getattr(transformers, name)
    return Entry(lambda: kind(kind.config_class(**options)).train(), batch, loss_fn=None)


ENTRIES = {"transformers": _transformers}
