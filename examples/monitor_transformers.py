"""The Monitor as a callback of Hugging Face's Trainer, on a small BERT that starts from nothing.

    pip install '.[transformers]'          # in a clone of the repository
    python examples/monitor_transformers.py --out monitor-bert.jsonl

The task: which of two tokens is more frequent in a sequence. Some ten seconds on a CPU.
"""

import argparse
import tempfile
from pathlib import Path

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

from normscope.monitor import JSONL
from normscope.monitor.integrations.transformers import TransformersMonitor


def sequences(n: int, length: int, seed: int) -> list[dict[str, torch.Tensor]]:
    tokens = torch.randint(1, 3, (n, length), generator=torch.Generator().manual_seed(seed))
    return [{"input_ids": row, "labels": ((row == 1).sum() * 2 > length).long()} for row in tokens]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("monitor-bert.jsonl"))
    args = parser.parse_args()

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=3, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, num_labels=2
    )
    watch = TransformersMonitor(every=10, measure="full", budget=None, sinks=[JSONL(args.out)])
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            per_device_train_batch_size=32,
            num_train_epochs=2,
            learning_rate=1e-3,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
        )
        data = sequences(960, length=15, seed=0)
        Trainer(BertForSequenceClassification(config), arguments, train_dataset=data, callbacks=[watch]).train()
    for verdict in watch.monitor.verdicts if watch.monitor else ():
        print("-", verdict)


if __name__ == "__main__":
    main()
