"""Adapts a frozen network with low-rank matrices, merges and saves them."""

import loralib as lora
import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
model = torch.nn.Sequential(lora.Linear(8, 16, r=4), torch.nn.ReLU(), lora.Linear(16, 2, r=2)).to(device)
lora.mark_only_lora_as_trainable(model)
frozen = model[0].weight.detach().clone()
trained = [p for p in model.parameters() if p.requires_grad]
assert len(trained) == 4
optimizer = torch.optim.Adam(trained, lr=0.02)
x = torch.randn(64, 8, device=device)
y = torch.stack([x[:, 0], x[:, 1]], 1)
losses = []
for _step in range(60):
    loss = (model(x) - y).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
assert torch.equal(frozen, model[0].weight) and losses[-1] < 0.5 * losses[0], losses
before = model(x)
model.eval()
assert torch.allclose(model(x), before, atol=1e-2) and not torch.equal(frozen, model[0].weight)
assert sorted(lora.lora_state_dict(model)) == ["0.lora_A", "0.lora_B", "2.lora_A", "2.lora_B"]
print(f"loralib: loss {losses[0]:.3f} to {losses[-1]:.3f}")
