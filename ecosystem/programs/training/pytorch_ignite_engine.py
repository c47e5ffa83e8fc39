"""Trains with Ignite's engine, events, metrics and checkpoints."""

import tempfile

import torch
from ignite.engine import Engine, Events, create_supervised_evaluator, create_supervised_trainer
from ignite.handlers import Checkpoint, DiskSaver, EarlyStopping
from ignite.metrics import Accuracy, ConfusionMatrix, Loss, RunningAverage
from torch.utils.data import DataLoader, TensorDataset

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)

x = torch.randn(256, 4)
y = (x[:, 0] > x[:, 1]).long()
loader = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)
model = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2)).to(device)
criterion = torch.nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

trainer = create_supervised_trainer(model, optimizer, criterion, device=device)
metrics = {"accuracy": Accuracy(), "loss": Loss(criterion), "confusion": ConfusionMatrix(2)}
evaluator = create_supervised_evaluator(model, metrics=metrics, device=device)
RunningAverage(output_transform=lambda loss: loss).attach(trainer, "running")
history = []


@trainer.on(Events.EPOCH_COMPLETED)
def evaluate(engine: Engine) -> None:
    evaluator.run(loader)
    history.append(evaluator.state.metrics["loss"])


with tempfile.TemporaryDirectory() as folder:
    saver = Checkpoint({"model": model}, DiskSaver(folder), n_saved=1)
    trainer.add_event_handler(Events.EPOCH_COMPLETED, saver)
    stopping = EarlyStopping(3, score_function=lambda engine: -engine.state.metrics["loss"], trainer=trainer)
    evaluator.add_event_handler(Events.COMPLETED, stopping)
    trainer.run(loader, max_epochs=8)
    restored = torch.load(saver.last_checkpoint)
assert all(torch.equal(value.to(device), model.state_dict()[name]) for name, value in restored.items())
assert int(evaluator.state.metrics["confusion"].sum()) == 256
assert evaluator.state.metrics["accuracy"] > 0.9 and history[-1] < 0.5 * history[0], history
print(f"ignite: loss {history[0]:.3f} to {history[-1]:.3f}")
