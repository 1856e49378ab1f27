"""The callback in real Lightning: the rate is tuned before the first step, and nothing else is changed."""

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import nn

from normscope.tuning.integrations.lightning import LightningTuner

pytestmark = [
    pytest.mark.slow,
    # Lightning 2.6 makes a leaf of a pytree in a way that torch 2.13 has deprecated.
    pytest.mark.filterwarnings("ignore:`isinstance\\(treespec, LeafSpec\\)` is deprecated:FutureWarning"),
    # Lightning's advice for real loaders.
    pytest.mark.filterwarnings("ignore:The 'train_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:The number of training batches"),
]
STEPS = 240


class Small(LightningModule):
    def __init__(self, scheduler=None, manual=False):
        super().__init__()
        torch.manual_seed(0)
        self.network = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3))
        self.scheduler, self.automatic_optimization = scheduler, not manual

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.cross_entropy(self.network(x), y)
        self.log("train_loss", loss)
        return {"loss": loss}

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=1e-9, momentum=0.9)
        if self.scheduler is None:
            return optimizer
        made = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": made, "interval": self.scheduler}}


class Rates(Callback):
    """The weights before the first step, and the rate of every step."""

    def __init__(self):
        self.first, self.seen = None, []

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if self.first is None:
            self.first = {name: value.clone() for name, value in pl_module.state_dict().items()}
        self.seen.append(trainer.optimizers[0].param_groups[0]["lr"])


def loader():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(96, 8, generator=generator)
    data = torch.utils.data.TensorDataset(x, (x[:, 0] > 0).long() + (x[:, 1] > 0).long())
    return torch.utils.data.DataLoader(data, batch_size=12, shuffle=True)


def fit(module, tuner, folder, **options):
    rates = Rates()
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = Trainer(
        default_root_dir=folder, accelerator="cpu", max_epochs=STEPS // 8, callbacks=[*tuner, rates],
        enable_model_summary=False, **quiet, **options,
    )  # fmt: skip
    torch.manual_seed(2)
    trainer.fit(module, loader())
    return rates


def test_training_begins_at_the_tuned_rate_with_untouched_weights(tmp_path):
    tuner = LightningTuner()
    rates = fit(Small(), [tuner], tmp_path)
    assert tuner.tuning.steps == STEPS
    assert set(rates.seen) == {tuner.tuning.lr}
    assert tuner.tuning.lr > 1e-4
    plain = fit(Small(), [], tmp_path)
    assert all(torch.equal(value, plain.first[name]) for name, value in rates.first.items())
    assert all(torch.equal(value, Small().state_dict()[name]) for name, value in rates.first.items())
    assert tuner.tuning.cost.share <= 0.1


def test_the_batches_and_draws_of_the_training_stay_those_of_a_run_without_it(tmp_path):
    tuner, module = LightningTuner(), Small()
    fit(module, [tuner], tmp_path)
    other = Small()

    class At(Callback):
        def on_train_start(self, trainer, pl_module):
            trainer.optimizers[0].param_groups[0]["lr"] = tuner.tuning.lr

    fit(other, [At()], tmp_path)
    assert all(torch.equal(value, other.state_dict()[name]) for name, value in module.state_dict().items())


def test_the_scheduler_of_the_trainer_starts_from_the_tuned_rate(tmp_path):
    tuner = LightningTuner()
    rates = fit(Small(scheduler="step"), [tuner], tmp_path, gradient_clip_val=1.0, accumulate_grad_batches=1)
    assert tuner.tuning.schedule == "cosine"
    assert rates.seen[0] == tuner.tuning.lr
    assert rates.seen[STEPS // 2] == pytest.approx(tuner.tuning.lr / 2)
    assert rates.seen[-1] < 0.01 * tuner.tuning.lr


@pytest.mark.parametrize(
    ("module", "options", "message"),
    [
        (lambda: Small(scheduler="epoch"), {}, "stepped after every epoch"),
        (lambda: Small(manual=True), {}, "manual optimization"),
        (lambda: Small(), {"max_epochs": -1}, "steps="),
    ],
)
def test_what_cannot_be_tuned_is_refused(tmp_path, module, options, message):
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = Trainer(
        **{"default_root_dir": tmp_path, "accelerator": "cpu", "max_epochs": 2, "callbacks": [LightningTuner()]}
        | quiet
        | options,
        enable_model_summary=False,
    )
    with pytest.raises(ValueError, match=message):
        trainer.fit(module(), loader())
