"""The Monitor as a Lightning callback, with its numbers in TensorBoard.

    pip install '.[lightning,tensorboard]'          # in a clone of the repository
    python examples/monitor_lightning.py --out runs/lightning && tensorboard --logdir runs

Needs no change of the LightningModule. A few seconds on a CPU.
"""

import argparse
from pathlib import Path

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import normscope as ns
from normscope.monitor import TensorBoard
from normscope.monitor.integrations.lightning import LightningMonitor


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
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/lightning"))
    args = parser.parse_args()

    digits = ns.data.digits(seed=0)
    loader = DataLoader(TensorDataset(digits.x_train, digits.y_train), batch_size=64, shuffle=True)
    watch = LightningMonitor(every=5, measure="full", budget=None, sinks=[TensorBoard(args.out)])
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=2,
        gradient_clip_val=1.0,
        callbacks=[watch],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(Classifier(), loader)
    for verdict in watch.monitor.verdicts if watch.monitor else ():
        print("-", verdict)


if __name__ == "__main__":
    main()
