"""Decomposes a tensor on TensorLy's PyTorch backend (CP, Tucker, tensor train) and differentiates through it."""

import tensorly as tl
import torch
from tensorly.decomposition import parafac, tensor_train, tucker
from tensorly.regression import CPRegressor

tl.set_backend("pytorch")
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
factors = [torch.randn(n, 3, dtype=torch.float64, device=device) for n in (8, 7, 6)]
tensor = torch.einsum("ir,jr,kr->ijk", *factors)

cp = parafac(tensor, rank=3, n_iter_max=300, random_state=0, tol=1e-10)
error = tl.norm(tl.cp_to_tensor(cp) - tensor) / tl.norm(tensor)
assert error.item() < 0.02, error
core, matrices = tucker(tensor, rank=[3, 3, 3], random_state=0)
assert core.shape == (3, 3, 3) and matrices[0].device.type == torch.device(device).type
assert (tl.norm(tl.tucker_to_tensor((core, matrices)) - tensor) / tl.norm(tensor)).item() < 1e-6
train = tensor_train(tensor, rank=[1, 3, 3, 1])
assert torch.allclose(tl.tt_to_tensor(train), tensor, atol=1e-8)

unfolded = tl.unfold(tensor, 1)
assert torch.equal(tl.fold(unfolded, 1, tensor.shape), tensor)
weights = [f.clone().requires_grad_() for f in (core, *matrices)]
loss = tl.norm(tl.tucker_to_tensor((weights[0], weights[1:])) - 2 * tensor)
loss.backward()
assert all(w.grad is not None and w.grad.abs().max() > 0 for w in weights)

x = torch.randn(200, 5, 4, dtype=torch.float64, device=device)
coefficients = torch.outer(torch.arange(1.0, 6), torch.tensor([1.0, -1, 2, 0])).double().to(device)
y = (x * coefficients).sum((1, 2))
model = CPRegressor(weight_rank=1, tol=1e-8, n_iter_max=100, reg_W=1e-4, verbose=0, random_state=0)
model.fit(x, y)
assert torch.allclose(model.weight_tensor_, coefficients, atol=1e-2)
print(f"tensorly: CP error {error.item():.2e}")
