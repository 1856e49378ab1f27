"""The callback in real Lightning: the run it watches is the run it would have been."""

import math

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn

from normscope.monitor import JSONL, records_of
from normscope.monitor.integrations.lightning import LightningMonitor

pytestmark = [
    pytest.mark.slow,
    # Lightning 2.6 makes a leaf of a pytree in a way that torch 2.13 has deprecated.
    pytest.mark.filterwarnings("ignore:`isinstance\\(treespec, LeafSpec\\)` is deprecated:FutureWarning"),
    # Its advice for real loaders.
    pytest.mark.filterwarnings("ignore:The 'train_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:The number of training batches"),
]


def _module(**options):
    class Small(LightningModule):
        def __init__(self, *, manual=False, raises_at=None):
            super().__init__()
            torch.manual_seed(0)
            layers = [nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3)]
            self.network = nn.Sequential(*layers)
            self.automatic_optimization = not manual
            self.raises_at, self.calls, self.clipped = raises_at, 0, []

        def training_step(self, batch, batch_idx):
            self.calls += 1
            if batch_idx == self.raises_at:
                raise RuntimeError("the user's own error")
            x, y = batch
            loss = nn.functional.cross_entropy(self.network(x), y)
            self.log("train_loss", loss, on_step=False, on_epoch=True)
            if not self.automatic_optimization:
                optimizer = self.optimizers()
                optimizer.zero_grad()
                self.manual_backward(loss)
                optimizer.step()
            return {"loss": loss}

        def configure_gradient_clipping(self, optimizer, gradient_clip_val=None, gradient_clip_algorithm=None):
            self.clip_gradients(optimizer, gradient_clip_val, gradient_clip_algorithm)
            self.clipped.append(sum(float(p.grad.square().sum()) for p in self.parameters()) ** 0.5)

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=0.05)

    return Small(**options)


def _fit(module, folder, callbacks=(), **options):
    generator = torch.Generator().manual_seed(1)
    data = torch.utils.data.TensorDataset(
        torch.randn(96, 8, generator=generator), torch.randint(3, (96,), generator=generator)
    )
    options = {"max_epochs": 2, "accelerator": "cpu", "logger": False, "enable_checkpointing": False} | options
    trainer = Trainer(
        default_root_dir=folder,
        callbacks=list(callbacks),
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )
    torch.manual_seed(2)
    trainer.fit(module, torch.utils.data.DataLoader(data, batch_size=12))
    return trainer


def _state(module, trainer):
    (optimizer,) = trainer.optimizers
    tensors = list(module.state_dict().values())
    tensors += [v for held in optimizer.state.values() for v in held.values()]
    logged = [trainer.callback_metrics[name] for name in sorted(trainer.callback_metrics)]
    return [t.clone() for t in [*tensors, *logged, torch.get_rng_state()]]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"precision": "bf16-mixed"},
        {"accumulate_grad_batches": 2, "gradient_clip_val": 0.05},
    ],
    ids=["float32", "bf16-mixed", "accumulated and clipped"],
)
def test_the_run_is_the_same_bit_for_bit(tmp_path, options):
    plain, watched = _module(), _module()
    expected = _state(plain, _fit(plain, tmp_path, **options))
    sink = JSONL(tmp_path / "run.jsonl")
    callback = LightningMonitor(every=2, measure="full", budget=None, on_error="raise", sinks=[sink])
    trainer = _fit(watched, tmp_path, [callback], **options)
    found = _state(watched, trainer)
    assert len(found) == len(expected)
    assert all(map(torch.equal, found, expected))
    assert vars(watched).keys() == vars(plain).keys()
    steps = 8 if "accumulate_grad_batches" in options else 16
    assert trainer.global_step == steps
    # Activations take a second snapshot at the step after.
    assert [record.step for record in callback.monitor.records] == list(range(steps))
    snapshots = callback.monitor.frame().dropna(subset="beta")
    columns = ["loss", "loss_min", "loss_max", "beta", "critical_step", "shift_max", "mean_drift"]
    assert snapshots[columns].map(math.isfinite).all(axis=None)
    assert len(records_of(tmp_path / "run.jsonl")) == len(callback.monitor.records)
    assert callback.monitor.notes[0].startswith("The forward pass draws random numbers")


def test_the_coming_update_is_made_of_clipped_gradients(tmp_path):
    sizes = []

    class Size:
        name, forward_only = "size", True

        def measure(self, probe):
            grads = [p.grad for p in probe.at.lent.originals]
            sizes.append(sum(float(g.square().sum()) for g in grads) ** 0.5)
            raise ValueError("seen")

    module = _module()
    callback = LightningMonitor(every=1, measure=[Size()], budget=None)
    with pytest.warns(UserWarning, match="size was not measured"):
        _fit(module, tmp_path, [callback], gradient_clip_val=0.05)
    assert len(sizes) == 16
    assert max(sizes) < 0.0501
    assert sizes == module.clipped


def test_mixed_precision_is_measured_in_mixed_precision(tmp_path):
    losses = {}
    for precision in ("32-true", "bf16-mixed"):
        callback = LightningMonitor(every=[0], budget=None, on_error="raise")
        _fit(_module(), tmp_path, [callback], precision=precision, max_epochs=1)
        losses[precision] = callback.monitor.records[0].loss
    assert losses["32-true"] != losses["bf16-mixed"]
    assert losses["32-true"] == pytest.approx(losses["bf16-mixed"], rel=0.02)


def test_manual_optimization_needs_a_forward_and_has_one(tmp_path):
    with pytest.raises(ValueError, match=r"LightningMonitor\(forward="):
        _fit(_module(manual=True), tmp_path, [LightningMonitor()])

    def forward(module, batch):
        return nn.functional.cross_entropy(module.network(batch[0]), batch[1])

    plain, watched = _module(manual=True), _module(manual=True)
    expected = _state(plain, _fit(plain, tmp_path))
    callback = LightningMonitor(forward=forward, every=4, measure="full", budget=None, on_error="raise")
    assert all(map(torch.equal, _state(watched, _fit(watched, tmp_path, [callback])), expected))
    assert callback.monitor.frame()["beta"].count() == 4


def test_after_an_error_of_the_users_everything_is_put_back(tmp_path):
    module = _module(raises_at=5)
    names = set(vars(module))
    sink = JSONL(tmp_path / "run.jsonl")
    with pytest.raises(RuntimeError, match="the user's own error"):
        _fit(module, tmp_path, [LightningMonitor(every=1, budget=None, sinks=[sink])])
    assert "configure_gradient_clipping" not in set(vars(module)) - names
    assert sink._file.closed
    assert len(records_of(tmp_path / "run.jsonl")) == 5
