"""Fits a Learner of fastai with the one-cycle policy, mixed callbacks and metrics."""

import torch
from fastai.callback.core import Callback
from fastai.callback.schedule import *  # noqa: F403 (adds fit_one_cycle to Learner, as fastai's documentation does)
from fastai.data.core import DataLoaders
from fastai.data.load import DataLoader
from fastai.learner import Learner
from fastai.losses import CrossEntropyLossFlat
from fastai.metrics import accuracy
from fastai.torch_core import set_seed

device = "cuda" if torch.cuda.is_available() else "cpu"
set_seed(0)

x = torch.randn(256, 4)
y = ((x[:, 0] + x[:, 1]) > 0).long()
rows = list(zip(x, y))
loaders = DataLoaders(
    DataLoader(rows[:192], bs=32, shuffle=True), DataLoader(rows[192:], bs=32), device=torch.device(device)
)


class CountBatches(Callback):
    batches = 0

    def after_batch(self):
        self.batches += int(self.training)


model = torch.nn.Sequential(
    torch.nn.Linear(4, 32), torch.nn.BatchNorm1d(32), torch.nn.ReLU(), torch.nn.Linear(32, 2)
)
learner = Learner(loaders, model, loss_func=CrossEntropyLossFlat(), metrics=accuracy, cbs=CountBatches())
with learner.no_bar(), learner.no_logging():
    before = learner.validate()[0]
    learner.fit_one_cycle(5, 2e-2)
    loss, score = learner.validate()
predictions, targets = learner.get_preds()
assert learner.count_batches.batches == 30
assert score > 0.9 and loss < before, (score, before, loss)
assert abs((predictions.argmax(1) == targets).float().mean().item() - score) < 1e-6
print(f"fastai: loss {before:.3f} to {loss:.3f}, accuracy {score:.3f}")
