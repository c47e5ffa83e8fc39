"""Learns an embedding with mined triplets and measures nearest-neighbour accuracy."""

import torch
from pytorch_metric_learning import distances, losses, miners, reducers, samplers
from torch.utils.data import DataLoader, TensorDataset

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)

labels = torch.arange(160) % 4
centers = torch.randn(4, 12)
inputs = torch.cat([centers[labels], 2.0 * torch.randn(160, 12)], 1) + 0.3 * torch.randn(160, 24)
sampler = samplers.MPerClassSampler(labels, m=8, length_before_new_iter=160)
loader = DataLoader(TensorDataset(inputs, labels), batch_size=32, sampler=sampler)

model = torch.nn.Sequential(torch.nn.Linear(24, 32), torch.nn.ReLU(), torch.nn.Linear(32, 8)).to(device)
distance = distances.CosineSimilarity()
triplet = losses.TripletMarginLoss(margin=0.2, distance=distance, reducer=reducers.ThresholdReducer(low=0))
miner = miners.TripletMarginMiner(margin=0.2, distance=distance, type_of_triplets="semihard")
proxy = losses.ProxyAnchorLoss(num_classes=4, embedding_size=8).to(device)
optimizer = torch.optim.Adam([*model.parameters(), *proxy.parameters()], lr=1e-2)


def precision():
    with torch.no_grad():
        embedded = model(inputs.to(device)).cpu()
    similar = torch.nn.functional.normalize(embedded) @ torch.nn.functional.normalize(embedded).T
    nearest = similar.fill_diagonal_(-2).argmax(1)
    return (labels[nearest] == labels).float().mean().item()


before = precision()
history = []
for _epoch in range(8):
    for x, y in loader:
        embedded, y = model(x.to(device)), y.to(device)
        loss = triplet(embedded, y, miner(embedded, y)) + 0.1 * proxy(embedded, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    history.append(loss.item())
after = precision()
assert after > 0.95 and after > before, (before, after)
assert losses.ContrastiveLoss()(embedded, y).isfinite()
print(f"pytorch-metric-learning: nearest neighbour {before:.2f} to {after:.2f}")
