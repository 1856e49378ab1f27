"""The learning rate of a LightningModule, tuned by a callback in the place of LearningRateFinder.

    pip install '.[lightning]'          # in a clone of the repository
    python examples/tune_lightning.py

Needs no change of the LightningModule. A few seconds on a CPU.
"""

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import normscope as ns
from normscope.tuning.integrations.lightning import LightningTuner


class Classifier(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(
            nn.Flatten(), nn.Linear(64, 100), nn.BatchNorm1d(100), nn.ReLU(), nn.Dropout(0.2), nn.Linear(100, 10)
        )

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        x, y = batch
        return F.cross_entropy(self.network(x), y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters())


def main() -> None:
    digits = ns.data.digits(seed=0)
    torch.manual_seed(0)
    loader = DataLoader(TensorDataset(digits.x_train, digits.y_train), batch_size=64, shuffle=True)
    tuner = LightningTuner(schedule="constant")
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=20,
        callbacks=[tuner],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(Classifier(), loader)
    print(tuner.tuning)
    print(f"Trained with lr = {trainer.optimizers[0].param_groups[0]['lr']:.2g}.")


if __name__ == "__main__":
    main()
