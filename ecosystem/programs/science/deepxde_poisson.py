"""Solves the Poisson equation with a physics-informed network on DeepXDE's PyTorch backend."""

import os

os.environ["DDE_BACKEND"] = "pytorch"
import deepxde as dde
import numpy as np
import torch

dde.config.set_random_seed(0)


def residual(x, y):
    return -dde.grad.hessian(y, x) - np.pi**2 * torch.sin(np.pi * x)


geometry = dde.geometry.Interval(-1, 1)
boundary = dde.icbc.DirichletBC(geometry, lambda x: np.sin(np.pi * x), lambda _, on: on)
data = dde.data.PDE(geometry, residual, boundary, 24, 2, solution=lambda x: np.sin(np.pi * x), num_test=50)
network = dde.nn.FNN([1, 24, 24, 1], "tanh", "Glorot uniform")
model = dde.Model(data, network)
model.compile("adam", lr=0.01, metrics=["l2 relative error"])
history, state = model.train(iterations=400, display_every=100, verbose=0)
assert np.sum(history.loss_train[-1]) < 0.02 * np.sum(history.loss_train[0]), history.loss_train
model.compile("L-BFGS", metrics=["l2 relative error"])
dde.optimizers.set_LBFGS_options(maxiter=200)
history, state = model.train(display_every=100, verbose=0)
x = np.linspace(-1, 1, 41)[:, None]
error = np.abs(model.predict(x) - np.sin(np.pi * x)).max()
assert error < 0.08, error
print(f"deepxde: largest error {error:.4f}")
