"""Trains GluonTS's DeepAR and a feed-forward estimator on seasonal series and samples forecasts."""

import numpy
import torch
from gluonts.dataset.common import ListDataset
from gluonts.torch import DeepAREstimator, SimpleFeedForwardEstimator

torch.manual_seed(0)
numpy.random.seed(0)
steps = numpy.arange(72)
series = [10 + 5 * numpy.sin(2 * numpy.pi * (steps + shift) / 12) for shift in range(6)]
data = ListDataset([{"start": "2020-01-01", "target": values[:60]} for values in series], freq="D")
options = {
    "accelerator": "gpu" if torch.cuda.is_available() else "cpu",
    "devices": 1,
    "max_epochs": 4,
    "logger": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}
errors = {}
for name, estimator in (
    (
        "feed-forward",
        SimpleFeedForwardEstimator(
            12, context_length=24, lr=0.01, num_batches_per_epoch=20, trainer_kwargs=options
        ),
    ),
    (
        "DeepAR",
        DeepAREstimator(
            "D",
            12,
            context_length=24,
            hidden_size=16,
            lr=0.01,
            num_batches_per_epoch=10,
            trainer_kwargs=options,
        ),
    ),
):
    predictor = estimator.train(data)
    forecasts = list(predictor.predict(data, num_samples=30))
    assert len(forecasts) == 6 and forecasts[0].mean.shape == (12,)
    errors[name] = float(
        numpy.mean(
            [abs(each.mean - values[60:]).mean() for each, values in zip(forecasts, series, strict=True)]
        )
    )
assert errors["feed-forward"] < 3.2 and errors["DeepAR"] < 6, errors
print(f"gluonts: mean errors {errors}")
