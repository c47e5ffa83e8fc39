"""Trains a LightningModule with validation, a checkpoint and early stopping, and restores the checkpoint."""

import logging
import tempfile
import warnings

import lightning as L
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset

warnings.simplefilter("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
L.seed_everything(0, verbose=False)


class Classifier(L.LightningModule):
    def __init__(self, width=32, lr=0.02):
        super().__init__()
        self.save_hyperparameters()
        self.net = torch.nn.Sequential(torch.nn.Linear(4, width), torch.nn.ReLU(), torch.nn.Linear(width, 2))

    def training_step(self, batch, index):
        loss = torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, index):
        self.log("val_accuracy", (self.net(batch[0]).argmax(1) == batch[1]).float().mean())

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=self.hparams.lr)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 5)}


x = torch.randn(256, 4)
y = ((x[:, 0] * x[:, 1]) > 0).long()
train = DataLoader(TensorDataset(x[:192], y[:192]), batch_size=32, shuffle=True)
valid = DataLoader(TensorDataset(x[192:], y[192:]), batch_size=32)
with tempfile.TemporaryDirectory() as folder:
    best = ModelCheckpoint(folder, monitor="val_accuracy", mode="max")
    trainer = L.Trainer(
        max_epochs=8, accelerator="auto", devices=1, default_root_dir=folder, logger=False, gradient_clip_val=1.0,
        callbacks=[best, EarlyStopping("val_accuracy", mode="max", patience=5)],
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Classifier(), train, valid)
    accuracy = trainer.callback_metrics["val_accuracy"].item()
    model = Classifier.load_from_checkpoint(best.best_model_path)
    restored = trainer.validate(model, valid, verbose=False)[0]["val_accuracy"]
assert accuracy > 0.85, accuracy
assert abs(restored - best.best_model_score.item()) < 1e-6, (restored, best.best_model_score)
print(f"lightning: accuracy {accuracy:.3f}, best {restored:.3f}")
