"""Trains DeepFM and DCN of DeepCTR-Torch on clicks that depend on two features together."""

import numpy
import torch
from deepctr_torch.inputs import DenseFeat, SparseFeat, get_feature_names
from deepctr_torch.models import DCN, DeepFM
from sklearn.metrics import roc_auc_score

device = "cuda:0" if torch.cuda.is_available() else "cpu"
random = numpy.random.default_rng(0)
data = {
    "user": random.integers(0, 10, 800),
    "item": random.integers(0, 8, 800),
    "age": random.random(800).astype("float32"),
}
clicks = ((data["user"] + data["item"]) % 2 == 0).astype("float32")[:, None]
columns = [
    SparseFeat("user", 10, embedding_dim=8),
    SparseFeat("item", 8, embedding_dim=8),
    DenseFeat("age", 1),
]
assert get_feature_names(columns) == ["user", "item", "age"]
scores = {}
for kind in (DeepFM, DCN):
    model = kind(
        columns, columns, task="binary", device=device, dnn_hidden_units=(32, 16), l2_reg_embedding=0, seed=1
    )
    model.compile(torch.optim.Adam(model.parameters(), lr=0.01), "binary_crossentropy", metrics=["auc"])
    history = model.fit(data, clicks, batch_size=80, epochs=10, verbose=0, validation_split=0.1)
    scores[kind.__name__] = roc_auc_score(clicks, model.predict(data, 200))
    assert len(history.history["loss"]) == 10
assert all(score > 0.9 for score in scores.values()), scores
print(f"deepctr-torch: AUC {scores}")
