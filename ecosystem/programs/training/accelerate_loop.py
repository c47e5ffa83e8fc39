"""Trains with Accelerator: gradient accumulation, clipping, a scheduler, and a saved and restored state."""

import tempfile

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset

set_seed(0)
accelerator = Accelerator(gradient_accumulation_steps=2)
inputs = torch.randn(256, 8)
targets = inputs @ torch.randn(8, 3)
loader = DataLoader(TensorDataset(inputs, targets), batch_size=16, shuffle=True)
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 3))
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-2)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 40, gamma=0.5)
model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)

losses, steps = [], 0
for _epoch in range(8):
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = torch.nn.functional.mse_loss(model(x), y)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 5.0)
                steps += 1
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    losses.append(accelerator.gather_for_metrics(loss.detach()).mean().item())
assert steps == 64 and losses[-1] < 0.2 * losses[0], (steps, losses)

with tempfile.TemporaryDirectory() as folder:
    accelerator.save_state(folder)
    weights = [p.detach().clone() for p in model.parameters()]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    accelerator.load_state(folder)
    assert all(torch.equal(a, b) for a, b in zip(weights, model.parameters()))
assert isinstance(accelerator.unwrap_model(model), torch.nn.Sequential)
accelerator.print(f"accelerate: loss {losses[0]:.3f} to {losses[-1]:.3f}")
