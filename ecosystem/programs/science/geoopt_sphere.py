"""Finds a dominant eigenvector on the sphere and an orthogonal matrix on the Stiefel manifold."""

import geoopt
import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
a = torch.randn(6, 6, dtype=torch.float64, device=device)
matrix = a @ a.mT
values, vectors = torch.linalg.eigh(matrix)
point = geoopt.ManifoldParameter(
    geoopt.Sphere().projx(torch.randn(6, dtype=torch.float64, device=device)), manifold=geoopt.Sphere()
)
optimizer = geoopt.optim.RiemannianAdam([point], lr=0.1)
for _step in range(150):
    optimizer.zero_grad()
    loss = -(point @ matrix @ point)
    loss.backward()
    optimizer.step()
assert abs(point.norm().item() - 1) < 1e-9
assert abs(-loss.item() - values[-1].item()) < 1e-3 * values[-1].item(), (loss.item(), values[-1].item())

stiefel = geoopt.Stiefel()
frame = geoopt.ManifoldParameter(stiefel.random(6, 2, dtype=torch.float64, device=device), manifold=stiefel)
sgd = geoopt.optim.RiemannianSGD([frame], lr=0.02, momentum=0.5)
for _step in range(200):
    sgd.zero_grad()
    loss = -torch.trace(frame.mT @ matrix @ frame)
    loss.backward()
    sgd.step()
assert torch.allclose(frame.mT @ frame, torch.eye(2, dtype=torch.float64, device=device), atol=1e-6)
assert abs(-loss.item() - values[-2:].sum().item()) < 0.02 * values.sum().item()

ball = geoopt.PoincareBall()
x = ball.expmap0(torch.tensor([[0.3, 0.2], [-0.5, 0.1]], dtype=torch.float64, device=device))
distance = ball.dist(x[0], x[1])
assert torch.allclose(distance, ball.norm(x[0], ball.logmap(x[0], x[1])))
print(f"geoopt: eigenvalue {values[-1].item():.4f}, distance {distance.item():.4f}")
