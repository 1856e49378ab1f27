"""The learning rate of Hugging Face's Trainer, tuned before it trains a small BERT that starts from nothing.

    pip install '.[transformers]'          # in a clone of the repository
    python examples/tune_transformers.py

The task: which of two tokens is more frequent in a sequence. Some ten seconds on a CPU.
"""

import tempfile

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

import normscope as ns

STEPS = 300


def sequences(n: int, length: int, seed: int) -> list[dict[str, torch.Tensor]]:
    tokens = torch.randint(1, 3, (n, length), generator=torch.Generator().manual_seed(seed))
    return [{"input_ids": row, "labels": ((row == 1).sum() * 2 > length).long()} for row in tokens]


def main() -> None:
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=3, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, num_labels=2
    )
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            per_device_train_batch_size=32,
            max_steps=STEPS,
            lr_scheduler_type="linear",
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
        )
        trainer = Trainer(
            BertForSequenceClassification(config), arguments, train_dataset=sequences(3200, length=15, seed=0)
        )
        optimizer = trainer.create_optimizer()
        tuning = ns.tune(
            trainer.model,
            None,
            trainer.get_train_dataloader(),
            optimizer,
            steps=STEPS,
            schedule="linear",
            forward=lambda model, batch: model(**batch).loss,
        )
        print(tuning)
        tuning.apply(optimizer)  # before the Trainer builds its scheduler
        print(f"Trained to a loss of {trainer.train().training_loss:.3f}.")


if __name__ == "__main__":
    main()
