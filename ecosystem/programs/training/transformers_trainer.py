"""Trains GPT-2 with transformers' Trainer: evaluation, a checkpoint, and resuming from it."""

import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

set_seed(0)
rows = [{"input_ids": (torch.arange(12) + start) % 8} for start in range(8)] * 8
for row in rows:
    row["labels"] = row["input_ids"].clone()


def build():
    config = GPT2Config(
        vocab_size=8, n_positions=16, n_embd=32, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0
    )
    return GPT2LMHeadModel(config)


with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        output_dir=folder, per_device_train_batch_size=8, num_train_epochs=5, learning_rate=1e-2, warmup_steps=5,
        weight_decay=0.01, lr_scheduler_type="cosine", logging_steps=10, save_steps=20, eval_strategy="epoch",
        report_to=[], disable_tqdm=True, seed=0,
    )  # fmt: skip
    trainer = Trainer(model=build(), args=arguments, train_dataset=rows, eval_dataset=rows[:8])
    before = trainer.evaluate()["eval_loss"]
    result = trainer.train()
    after = trainer.evaluate()["eval_loss"]
    assert result.global_step in (20, 40)  # 20 with two GPUs
    assert after < 0.4 * before, (before, after)

    resumed = Trainer(model=build(), args=arguments, train_dataset=rows, eval_dataset=rows[:8])
    resumed.train(resume_from_checkpoint=True)
    again = resumed.evaluate()["eval_loss"]
    assert abs(again - after) < 0.05, (after, again)
    predictions = trainer.predict(rows[:4])
    assert predictions.predictions.shape == (4, 12, 8)
print(f"Trainer: loss {before:.3f} to {after:.3f}, {again:.3f} after resuming")
