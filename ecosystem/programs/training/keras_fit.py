"""Trains a Keras model on its PyTorch backend, writes its weights and reads them."""

import os
import tempfile

os.environ["KERAS_BACKEND"] = "torch"
import keras
import numpy as np
import torch

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
x = rng.normal(size=(512, 8, 8, 1)).astype("float32")
y = (x[:, :4].mean((1, 2, 3)) > x[:, 4:].mean((1, 2, 3))).astype("int64")


def build():
    return keras.Sequential(
        [
            keras.layers.Input((8, 8, 1)),
            keras.layers.Conv2D(8, 3, padding="same", activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.AveragePooling2D(2),
            keras.layers.Flatten(),
            keras.layers.Dropout(0.1),
            keras.layers.Dense(32, activation="gelu"),
            keras.layers.Dense(2),
        ]
    )


model = build()
model.compile(
    optimizer=keras.optimizers.Adam(0.01),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
history = model.fit(x, y, batch_size=64, epochs=6, verbose=0, validation_split=0.1)
losses = history.history["loss"]
assert losses[-1] < 0.6 * losses[0], losses
_, accuracy = model.evaluate(x, y, verbose=0)
assert accuracy > 0.8, accuracy
expected = model.predict(x[:10], verbose=0)
with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "model.weights.h5")
    model.save_weights(path)
    other = build()
    other.load_weights(path)
assert np.allclose(other.predict(x[:10], verbose=0), expected, atol=1e-4)
assert isinstance(model(x[:2]), torch.Tensor)
print(f"keras: loss {losses[0]:.3f} to {losses[-1]:.3f}, accuracy {accuracy:.3f}")
