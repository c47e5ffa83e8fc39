"""Batches nested tensors in a TensorDict, maps a module over it, and saves it to a memory map."""

import tempfile

import torch
from tensordict import TensorDict, stack, tensorclass
from tensordict.nn import TensorDictModule, TensorDictSequential

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)

data = TensorDict(
    {"image": torch.randn(8, 3, 4), "meta": {"label": torch.arange(8), "weight": torch.rand(8)}},
    batch_size=[8],
)
data = data.to(device)
assert data["meta", "label"].device.type == device and data[2:5].batch_size == (3,)
assert torch.equal(torch.cat([data[:4], data[4:]])["image"], data["image"])
assert stack([data, data], 0).batch_size == (2, 8)
doubled = data.apply(lambda value: value * 2)
assert torch.equal(doubled["meta", "weight"], data["meta", "weight"] * 2)
assert data.reshape(2, 4).permute(1, 0).batch_size == (4, 2)
data["meta", "new"] = torch.zeros(8, 2, device=device)
assert ("meta", "new") in data.keys(True) and len(list(data.split(3))) == 3

encoder = TensorDictModule(torch.nn.Linear(4, 2), in_keys=["image"], out_keys=["hidden"])
head = TensorDictModule(lambda hidden: hidden.mean((-1, -2)), in_keys=["hidden"], out_keys=["score"])
model = TensorDictSequential(encoder, head).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
target = data["image"].mean((-1, -2)) * 3
for _step in range(60):
    loss = (model(data.clone())["score"] - target).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
assert loss.item() < 0.05, loss

parameters = TensorDict.from_module(encoder.module)
with parameters.data.mul(0.0).to_module(encoder.module):
    assert encoder.module(data["image"]).abs().max() == 0
assert encoder.module(data["image"]).abs().max() > 0


@tensorclass
class Sample:
    image: torch.Tensor
    label: torch.Tensor


sample = Sample(image=torch.randn(4, 3), label=torch.arange(4), batch_size=[4])
assert torch.equal(sample[1:3].label, torch.tensor([1, 2]))
with tempfile.TemporaryDirectory() as folder:
    data.cpu().memmap(folder)
    loaded = TensorDict.load_memmap(folder)
    assert torch.equal(loaded["image"], data["image"].cpu())
print(f"tensordict: {len(data.keys(True, True))} leaves, loss {loss.item():.4f}")
