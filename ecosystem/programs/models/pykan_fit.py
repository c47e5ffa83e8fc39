"""Fits a Kolmogorov-Arnold network to a formula."""

import tempfile

import torch
from kan import KAN, create_dataset

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
data = create_dataset(
    lambda x: torch.exp(torch.sin(torch.pi * x[:, [0]]) + x[:, [1]] ** 2),
    n_var=2,
    train_num=200,
    test_num=100,
    device=device,
)
with tempfile.TemporaryDirectory() as folder:
    model = KAN(width=[2, 3, 1], grid=3, k=3, seed=0, device=device, ckpt_path=folder, auto_save=False)
    results = model.fit(data, opt="LBFGS", steps=8, lamb=0.001)
    assert results["test_loss"][-1] < 0.5 * float(results["test_loss"][0]), results["test_loss"]
    before = results["test_loss"][-1]
    model.saveckpt(
        f"{folder}/model"
    )  # no refine(): it needs least squares without full rank, which CUDA lacks
    copy = KAN.loadckpt(f"{folder}/model").to(device)
    assert torch.allclose(copy(data["test_input"]), model(data["test_input"]), atol=1e-5)
    adam = model.fit(data, opt="Adam", steps=20, lr=0.01)
    assert adam["test_loss"][-1] < 0.6
    assert torch.isfinite(model(data["test_input"])).all()
print(f"pykan: loss {results['test_loss'][0]:.3f} to {before:.3f}, {adam['test_loss'][-1]:.3f}")
