"""Trains a temporal fusion transformer of pytorch-forecasting with lightning on sine waves."""

import lightning.pytorch as lightning
import numpy
import pandas
import torch
from pytorch_forecasting import TemporalFusionTransformer, TimeSeriesDataSet
from pytorch_forecasting.data import GroupNormalizer
from pytorch_forecasting.metrics import QuantileLoss

lightning.seed_everything(0, verbose=False)
frame = pandas.DataFrame(
    [
        {"time": step, "series": str(series), "value": 2 + numpy.sin(0.5 * step + series), "phase": step % 12}
        for series in range(4)
        for step in range(50)
    ]
)
training = TimeSeriesDataSet(
    frame[frame.time < 42],
    time_idx="time",
    target="value",
    group_ids=["series"],
    max_encoder_length=12,
    max_prediction_length=4,
    static_categoricals=["series"],
    time_varying_known_reals=["time", "phase"],
    time_varying_unknown_reals=["value"],
    target_normalizer=GroupNormalizer(groups=["series"]),
    add_relative_time_idx=True,
)
validation = TimeSeriesDataSet.from_dataset(training, frame, predict=True, stop_randomization=True)
model = TemporalFusionTransformer.from_dataset(
    training,
    learning_rate=0.03,
    hidden_size=8,
    attention_head_size=2,
    hidden_continuous_size=4,
    loss=QuantileLoss(),
)
trainer = lightning.Trainer(
    accelerator="gpu" if torch.cuda.is_available() else "cpu",
    devices=1,
    max_epochs=3,
    limit_train_batches=8,
    gradient_clip_val=0.1,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
loader = training.to_dataloader(train=True, batch_size=16, num_workers=0)
checks = validation.to_dataloader(train=False, batch_size=4, num_workers=0)
before = trainer.validate(model, checks, verbose=False)[0]["val_loss"]
trainer.fit(model, loader)
after = trainer.validate(model, checks, verbose=False)[0]["val_loss"]
assert after < 0.9 * before, (before, after)
print(f"pytorch-forecasting: loss {before:.3f} to {after:.3f}")
