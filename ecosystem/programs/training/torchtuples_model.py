"""Fits a network with torchtuples' Model, its callbacks and its data loaders."""

import tempfile

import numpy as np
import torch
import torchtuples as tt

np.random.seed(0)
torch.manual_seed(0)
x = np.random.normal(size=(400, 5)).astype("float32")
y = (x[:, :1] ** 2 + x[:, 1:2]).astype("float32")
device = "cuda:0" if torch.cuda.is_available() else "cpu"
network = tt.practical.MLPVanilla(5, [32, 32], 1, batch_norm=True, dropout=0.1)
model = tt.Model(network, torch.nn.MSELoss(), tt.optim.AdamWR(lr=0.01), device=device)
finder = model.lr_finder(x, y, batch_size=100)
assert 1e-7 < finder.get_best_lr() < 100
model.optimizer.set_lr(0.01)
log = model.fit(
    x[:300],
    y[:300],
    batch_size=64,
    epochs=12,
    verbose=False,
    val_data=(x[300:], y[300:]),
    callbacks=[tt.callbacks.EarlyStopping(patience=10)],
)
losses = log.to_pandas()
assert losses["val_loss"].min() < 0.5 * losses["val_loss"].iloc[0], losses
score = model.score_in_batches(x, y)["loss"]
predicted = model.predict(x[:5])
assert predicted.shape == (5, 1)
with tempfile.TemporaryDirectory() as folder:
    model.save_model_weights(f"{folder}/weights.pt")
    model.load_model_weights(f"{folder}/weights.pt")
assert np.allclose(model.predict(x[:5]), predicted)
print(f"torchtuples: score {score:.3f}")
