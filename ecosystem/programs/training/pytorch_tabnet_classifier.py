"""Trains TabNet on a table, explains its predictions, and writes and reads the model."""

import tempfile
from pathlib import Path

import numpy as np
import torch
from pytorch_tabnet.pretraining import TabNetPretrainer
from pytorch_tabnet.tab_model import TabNetClassifier

device = "cuda" if torch.cuda.is_available() else "cpu"
draw = np.random.default_rng(0)
x = draw.normal(size=(400, 6)).astype(np.float32)
x[:, 5] = draw.integers(0, 4, 400)
y = ((x[:, 0] + 0.5 * x[:, 1] > 0) | (x[:, 5] == 3)).astype(np.int64)

options = {
    "n_d": 8, "n_a": 8, "n_steps": 2, "cat_idxs": [5], "cat_dims": [4], "cat_emb_dim": 2, "seed": 0, "verbose": 0,
    "device_name": device, "optimizer_params": {"lr": 0.03},
}  # fmt: skip
pretrained = TabNetPretrainer(**options)
pretrained.fit(
    x[:256], eval_set=[x[300:]], max_epochs=2, batch_size=128, virtual_batch_size=64, drop_last=False
)
model = TabNetClassifier(**options)
model.fit(
    x[:300], y[:300], eval_set=[(x[300:], y[300:])], eval_metric=["accuracy", "auc"], max_epochs=14, patience=14,
    batch_size=100, virtual_batch_size=50, drop_last=False, from_unsupervised=pretrained,
)  # fmt: skip
accuracy = (model.predict(x[300:]) == y[300:]).mean()
assert accuracy > 0.7, accuracy
assert model.history["loss"][-1] < model.history["loss"][0]
explained, masks = model.explain(x[300:])
assert explained.shape == (100, 6)
assert len(masks) == 2
with tempfile.TemporaryDirectory() as folder:
    path = model.save_model(str(Path(folder) / "tabnet"))
    again = TabNetClassifier(device_name=device)
    again.load_model(path)
    assert np.allclose(again.predict_proba(x[300:]), model.predict_proba(x[300:]), atol=1e-5)
print(f"pytorch-tabnet: accuracy {accuracy:.2f}")
