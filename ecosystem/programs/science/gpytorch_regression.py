"""Fits an exact Gaussian process and a variational one, and checks the posterior against the closed form."""

import gpytorch
import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
torch.set_default_dtype(torch.float64)

x = torch.linspace(0, 1, 40, device=device)
y = torch.sin(2 * torch.pi * x) + 0.1 * torch.randn(40, device=device)


class Exact(gpytorch.models.ExactGP):
    def __init__(self, x, y, likelihood):
        super().__init__(x, y, likelihood)
        self.mean = gpytorch.means.ConstantMean()
        self.kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))


class Variational(gpytorch.models.ApproximateGP):
    def __init__(self, points):
        distribution = gpytorch.variational.CholeskyVariationalDistribution(len(points))
        super().__init__(gpytorch.variational.VariationalStrategy(self, points, distribution))
        self.mean = gpytorch.means.ZeroMean()
        self.kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(nu=2.5))

    forward = Exact.forward


def fit(model, likelihood, objective, steps, lr):
    optimizer = torch.optim.Adam([*model.parameters(), *likelihood.parameters()], lr=lr)
    model.train(), likelihood.train()
    for _step in range(steps):
        optimizer.zero_grad()
        loss = -objective(model(x), y)
        loss.backward()
        optimizer.step()
    model.eval(), likelihood.eval()
    return loss.item()


likelihood = gpytorch.likelihoods.GaussianLikelihood().to(device)
exact = Exact(x, y, likelihood).to(device)
loss = fit(exact, likelihood, gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, exact), 50, 0.1)
test = torch.linspace(0.05, 0.95, 9, device=device)
with torch.no_grad(), gpytorch.settings.fast_pred_var(False):
    posterior = exact(test)
    prior = exact.kernel(x).to_dense() + likelihood.noise * torch.eye(40, device=device)
    cross = exact.kernel(test, x).to_dense()
    mean = exact.mean(test) + cross @ torch.linalg.solve(prior, y - exact.mean(x))
    covariance = exact.kernel(test).to_dense() - cross @ torch.linalg.solve(prior, cross.T)
assert torch.allclose(posterior.mean, mean, atol=1e-3), (posterior.mean - mean).abs().max()
assert torch.allclose(posterior.covariance_matrix, covariance, atol=1e-3)

noise = gpytorch.likelihoods.GaussianLikelihood().to(device)
sparse = Variational(torch.linspace(0, 1, 8, device=device)).to(device)
fit(sparse, noise, gpytorch.mlls.VariationalELBO(noise, sparse, num_data=40), 100, 0.1)
error = (noise(sparse(test)).mean - torch.sin(2 * torch.pi * test)).abs().max().item()
assert error < 0.3, error
print(f"gpytorch: negative log likelihood {loss:.3f}, error of the sparse model {error:.3f}")
