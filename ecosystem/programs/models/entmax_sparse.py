"""Classifies with sparse attention: entmax's probabilities, gradients and losses."""

import torch
from entmax import Entmax15, EntmaxBisectLoss, entmax15, entmax_bisect, sparsemax, sparsemax_loss

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)

scores = torch.tensor([[2.0, 1.5, -3.0], [0.0, 0.1, 0.2]], device=device)
sparse = sparsemax(scores, dim=-1)
assert torch.allclose(
    sparse.cpu(), torch.tensor([[0.75, 0.25, 0.0], [0.7 / 3, 1 / 3, 1.3 / 3]]), atol=1e-5
), sparse
assert entmax15(scores, dim=-1)[0, 2].item() == 0
softmax = entmax_bisect(scores, alpha=1.0001, dim=-1, n_iter=60)
assert torch.allclose(softmax, scores.softmax(-1), atol=1e-3)
assert torch.allclose(entmax_bisect(scores, alpha=1.5), entmax15(scores), atol=1e-4)

x = torch.randn(4, 6, device=device, dtype=torch.float64, requires_grad=True)
assert torch.autograd.gradcheck(lambda t: entmax15(t, dim=-1), (x,), atol=1e-4)


class Reader(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.out = torch.nn.Linear(8, 1), torch.nn.Linear(8, 4)
        self.attention = Entmax15(dim=1)

    def forward(self, x):
        weights = self.attention(self.query(x))
        return self.out((weights * x).sum(1)), weights


words = torch.randn(128, 10, 8, device=device)
words[:, :, 0] = 0
place = torch.randint(10, (128,), device=device)
rows = torch.arange(128, device=device)
words[rows, place, 0] = 3.0
labels = words[rows, place, 1:5].argmax(1)
model = Reader().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
loss_function = EntmaxBisectLoss(alpha=1.5, n_iter=40)
losses = []
for _step in range(100):
    logits, weights = model(words)
    loss = loss_function(logits, labels).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
assert losses[-1] < 0.3 * losses[0], (losses[0], losses[-1])
assert (weights == 0).float().mean().item() > 0.3
assert sparsemax_loss(logits, labels).mean().item() < 1
share = (weights == 0).float().mean().item()
print(f"entmax: loss {losses[0]:.3f} to {losses[-1]:.3f}, {share:.0%} of weights are 0")
