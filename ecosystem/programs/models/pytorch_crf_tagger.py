"""Trains a tagger with a conditional random field and compares its likelihood with a sum over all paths."""

import itertools

import torch
from torchcrf import CRF

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
crf = CRF(3, batch_first=True).to(device)
emissions = torch.randn(1, 4, 3, device=device)
tags = torch.tensor([[0, 2, 1, 1]], device=device)


def score(path):
    total = crf.start_transitions[path[0]] + crf.end_transitions[path[-1]]
    total = total + sum(emissions[0, i, tag] for i, tag in enumerate(path))
    return total + sum(crf.transitions[a, b] for a, b in itertools.pairwise(path))


paths = list(itertools.product(range(3), repeat=4))
scores = torch.stack([score(path) for path in paths])
assert torch.allclose(crf(emissions, tags), score(tags[0].tolist()) - scores.logsumexp(0), atol=1e-4)
assert crf.decode(emissions) == [list(paths[scores.argmax().item()])]

words = torch.randint(10, (32, 12), device=device)
labels = words % 3
labels[:, 1:] = torch.where(words[:, :-1] == 0, 0, labels[:, 1:])
mask = torch.arange(12, device=device) < torch.randint(5, 13, (32, 1), device=device)
model = torch.nn.Sequential(torch.nn.Embedding(10, 16), torch.nn.Linear(16, 3)).to(device)
optimizer = torch.optim.Adam([*model.parameters(), *crf.parameters()], lr=0.05)
losses = []
for _step in range(40):
    loss = -crf(model(words), labels, mask=mask, reduction="token_mean")
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
assert losses[-1] < 0.4 * losses[0], (losses[0], losses[-1])
decoded = crf.decode(model(words), mask=mask)
assert [len(path) for path in decoded] == mask.sum(1).tolist()
right = sum(a == b for row, path in zip(labels.tolist(), decoded, strict=True) for a, b in zip(row, path))
assert right > 0.8 * mask.sum().item()
print(f"pytorch-crf: loss {losses[0]:.3f} to {losses[-1]:.3f}, {right} of {mask.sum().item()} right")
