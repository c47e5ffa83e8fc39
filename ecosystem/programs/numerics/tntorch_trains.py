"""Compresses a function into a tensor train with tntorch and completes it from samples."""

import tntorch
import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
grid = torch.meshgrid(*[torch.linspace(0, 1, 12, device=device)] * 3, indexing="ij")
full = torch.sin(grid[0] + 2 * grid[1]) * grid[2] + grid[0] * grid[2]
train = tntorch.Tensor(full, ranks_tt=4)
assert max(train.ranks_tt.tolist()) <= 4
assert torch.allclose(train.torch(), full, atol=1e-2), (train.torch() - full).abs().max()
assert abs(tntorch.mean(train).item() - full.mean().item()) < 1e-2
assert tntorch.relative_error(full, 2 * train - train) < 1e-2
assert torch.allclose((train * train)[:, 3].torch(), full[:, 3] ** 2, atol=2e-2)
tucker = tntorch.Tensor(full, ranks_tucker=4)
assert tntorch.relative_error(full, tucker) < 1e-2
guess = tntorch.rand([12, 12, 12], ranks_tt=3, requires_grad=True, device=device)
seen = torch.randint(12, (900, 3), device=device)
values = full[seen[:, 0], seen[:, 1], seen[:, 2]]


def loss(tensor):
    """Return the relative error at the samples."""
    return tntorch.relative_error(values, tensor[seen].torch()) ** 2


tntorch.optimize(guess, loss, tol=1e-5, max_iter=500, verbose=False)
error = tntorch.relative_error(full, guess).item()
assert error < 0.5, error
print(f"tntorch: {train.numcoef()} of {full.numel()} numbers, completion error {error:.4f}")
