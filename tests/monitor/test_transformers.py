"""The callback in Hugging Face's real Trainer: the run it watches is the run it would have been."""

import math

import pytest
import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from normscope.monitor import JSONL, records_of
from normscope.monitor.integrations.transformers import TransformersMonitor

pytestmark = pytest.mark.slow


def _bert():
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    return BertForSequenceClassification(BertConfig(vocab_size=20, max_position_embeddings=16, **sizes))


def _gpt2(dropout=0.1):
    torch.manual_seed(0)
    drops = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), dropout)
    return GPT2LMHeadModel(GPT2Config(vocab_size=20, n_positions=16, n_embd=16, n_layer=2, n_head=2, **drops))


def _gpt2_without_dropout():
    return _gpt2(0.0)


def _data(kind):
    generator = torch.Generator().manual_seed(1)
    rows = []
    for _ in range(32):
        tokens = torch.randint(1, 20, (10,), generator=generator)
        labels = torch.randint(2, (), generator=generator) if kind is _bert else tokens
        rows.append({"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": labels})
    return rows


class _Keep(TrainerCallback):
    """Keeps the state that the Trainer ends with."""

    def on_train_end(self, args, state, control, **kwargs):
        held = kwargs["optimizer"].state_dict()["state"].values()
        tensors = list(kwargs["model"].state_dict().values()) + [v for row in held for v in row.values()]
        self.state = [t.clone() for t in [*tensors, torch.get_rng_state()]]


def _train(kind, folder, callbacks=(), **options):
    options = {
        "per_device_train_batch_size": 4,
        "learning_rate": 1e-3,
        "logging_steps": 4,
    } | options
    arguments = TrainingArguments(
        str(folder),
        num_train_epochs=1,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        dataloader_pin_memory=False,
        **options,
    )
    model, keep = kind(), _Keep()
    trainer = Trainer(model, arguments, train_dataset=_data(kind), callbacks=[keep, *callbacks])
    trainer.train()
    return model, keep.state, trainer


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (_bert, {}),
        (_gpt2, {}),
        (_bert, {"bf16": True}),
        (_gpt2, {"gradient_accumulation_steps": 2, "max_grad_norm": 0.1}),
    ],
    ids=["bert", "gpt2", "bert in bf16", "gpt2 accumulated and clipped"],
)
def test_the_run_is_the_same_bit_for_bit(tmp_path, kind, options):
    _, expected, plain = _train(kind, tmp_path, **options)
    sink = JSONL(tmp_path / "run.jsonl")
    callback = TransformersMonitor(every=2, measure="full", budget=None, on_error="raise", sinks=[sink])
    model, found, watched = _train(kind, tmp_path, [callback], **options)
    assert len(found) == len(expected)
    assert all(map(torch.equal, found, expected))
    assert not model._forward_pre_hooks
    logs = [
        [(row["step"], row.get("loss"), row.get("grad_norm")) for row in t.state.log_history] for t in (plain, watched)
    ]
    assert logs[0] == logs[1]
    steps = 4 if "gradient_accumulation_steps" in options else 8
    assert [record.step for record in callback.monitor.records] == list(range(steps))
    snapshots = callback.monitor.frame().dropna(subset="beta")
    assert len(snapshots) == steps // 2
    columns = ["loss", "loss_min", "loss_max", "beta", "critical_step", "shift_max", "mean_drift"]
    assert snapshots[columns].map(math.isfinite).all(axis=None)
    assert len(records_of(tmp_path / "run.jsonl")) == len(callback.monitor.records)


def test_the_loss_is_the_trainers_own(tmp_path):
    """Logged at every step, without accumulation: the same numbers; with it, means of the same size."""
    callback = TransformersMonitor(every=1, measure="light", budget=None, on_error="raise")
    _, _, trainer = _train(_gpt2_without_dropout, tmp_path, [callback], logging_steps=1)
    logged = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    assert [record.loss for record in callback.monitor.records] == pytest.approx(logged, rel=1e-5)
    accumulated = TransformersMonitor(every=1, measure="light", budget=None, on_error="raise")
    _train(_gpt2_without_dropout, tmp_path, [accumulated], gradient_accumulation_steps=4)
    assert accumulated.monitor.records[0].loss == pytest.approx(logged[0], rel=0.02)


@pytest.mark.parametrize("network", [_bert, _gpt2])
def test_the_kind_of_the_models_own_loss_is_found(tmp_path, network):
    callback = TransformersMonitor(every=2, measure="light", budget=None, on_error="raise")
    _train(network, tmp_path, [callback])
    assert callback.monitor.settings()["loss"] == "cross_entropy"
    assert not any("neither cross-entropy" in note for note in callback.monitor.notes)


def test_a_loss_that_the_model_does_not_give_is_said_and_can_be_handed_in(tmp_path):
    with pytest.warns(UserWarning, match=r"no loss: .* TransformersMonitor\(forward="):
        _train(_bert, tmp_path, [TransformersMonitor()], label_smoothing_factor=0.1)

    def forward(model, inputs):
        return model(**inputs).logits.square().mean()

    callback = TransformersMonitor(forward=forward, budget=None, on_error="raise")
    _train(_bert, tmp_path, [callback], label_smoothing_factor=0.1)
    assert math.isfinite(callback.monitor.records[0].loss)


def test_several_devices_are_refused_by_name(tmp_path, monkeypatch):
    monkeypatch.setattr(TrainingArguments, "world_size", 2)
    with pytest.raises(ValueError, match="measures one process with one device; this run has 2 processes"):
        _train(_bert, tmp_path, [TransformersMonitor()])
