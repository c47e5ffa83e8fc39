"""Wrong and unusual arguments: Flambeau accepts or refuses what PyTorch does, with the same type of error."""

import warnings

import pytest
from hunt.api_calls import brief, differs
from support import torch

import flambeau

CALLS = """
T.cat([T.ones(3)], True)
T.stack([T.ones(3)], dim=True)
T.ones(2, 3).transpose(True, 0)
T.ones(2, 3).unsqueeze(True)
T.var_mean(T.ones(2, 3), dim=True)
T.var_mean(T.ones(2, 3), True)
T.ones(2, 3).sum((0, True))
T.pca_lowrank(T.zeros(4, 4), True, niter=True)
T.svd_lowrank(T.zeros(4, 4), True, True)[1]
F.max_unpool1d(T.ones(1, 1, 2), T.zeros(1, 1, 2, dtype=T.int64), True)
F.max_unpool2d(T.ones(1, 1, 1, 1), T.zeros(1, 1, 1, 1, dtype=T.int64), (True, 2), padding=False)
F.max_unpool1d(T.ones(1, 1, 2), T.zeros(1, 1, 2, dtype=T.int64), 1.0)
F.gaussian_nll_loss(T.ones(3), T.ones(3), 1)
F.gaussian_nll_loss(T.ones(3), T.ones(3), -1.0)
F.gaussian_nll_loss(T.ones(3), T.ones(3), T.ones(3, dtype=T.int64))
F.gaussian_nll_loss(T.ones(3), T.ones(3), T.ones(3), reduction="x")
T.linalg.tensorinv(T.ones(()))
T.linalg.tensorinv(T.ones(1), 2)
T.logspace(0, 1, 1 << 63)
T.logspace(0, float("nan"), 3, dtype=T.int32)
T.linspace(0, 1, 1 << 63)
T.linspace(0, float("inf"), 3, dtype=T.int64)
T.linspace(0.9, 3.9, 3, dtype=T.int64)
T.range(0, 3, dtype=T.complex64)
T.tensor([float("inf") + 0j, 1j]).nan_to_num_(posinf=T.tensor(1.0))
T.ones(4).view(T.int32, dtype=T.int32)
T.ones(4).view(1 << 63)
T.ones(4).view((2, 1 << 63))
T.ones(4).view(size=4)
T.ones(4).reshape(1 << 63)
T.ones(4).expand(2, 1 << 63)
T.ones(4).expand(size=4)
T.ones(4).permute(dims=0)
T.linalg.lu_factor(T.ones(0, 3, dtype=T.float16))
T.linalg.svd(T.ones(0, 3, dtype=T.float16))
T.linalg.cholesky(T.ones(2, 0, 0, dtype=T.bfloat16))
T.linalg.eigh(T.ones(0, 0, dtype=T.int64))
T.linalg.solve(T.ones(0, 0, dtype=T.int64), T.ones(0, 3, dtype=T.int64))
T.linalg.lu_factor(T.ones(3, 3, dtype=T.float16))
F.rrelu(T.ones(3), float("nan"))
F.rrelu(T.ones(3), 0.5, float("inf"))
T.triangular_solve(T.ones(2, 2, dtype=T.int64), T.eye(2, dtype=T.int64))
T.triangular_solve(T.ones(2, 2), T.eye(2, dtype=T.float64))
T.constant_pad_nd(T.ones(3), (1, 1), T.tensor(2.0))
T.constant_pad_nd(T.ones(3), (1, 1), T.tensor(1j))
F.pad(T.ones(3), (1, 1), value=T.tensor([2.0, 1.0]))
F.kl_div(T.ones(3, dtype=T.int64), T.ones(3, dtype=T.int64), reduction="x")
F.kl_div(T.ones(3), T.ones(3), size_average=False, reduction="batchmean")
F.fractional_max_pool2d(T.ones(1, 1, 4, 4), 2, output_size=(0, 2))
F.fractional_max_pool3d(T.ones(1, 1, 4, 4, 4), 2, output_size=0)
F.fractional_max_pool2d(T.ones(1, 0, 4, 4), 1, output_size=1)
F.adaptive_max_pool3d_with_indices(T.ones(1, 2, 3, 3), 2, return_indices=False)
F.adaptive_max_pool1d_with_indices(T.ones(2, 3), 2, False)
F.cross_entropy(T.ones(1, 2, 3), T.ones(1, dtype=T.int64), T.float64)
T.is_signed(None)
T.affine_grid_generator(T.ones(3), [2, 1, 3], None)
T.affine_grid_generator(T.ones(1, 2, 3), (1, 1, 2, 2), True)
T.norm_except_dim(T.float32)
T.norm_except_dim(T.ones(()))
T.norm_except_dim(T.ones(2, 3), 2, 5)
T.norm_except_dim(T.ones(2, 3), 2, -2)
T.grid_sampler([T.ones(2)], 1, 0, 0, True)
T.grid_sampler(T.ones(1, 2, 3, 3), T.zeros(1, 2, 2, 2), 2.0, 0, True)
T.frobenius_norm(T.ones(2, 3), None)
T.frobenius_norm(T.ones(2, 3), (1.5,))
T.frobenius_norm(T.ones(2, 3), True)
T.frobenius_norm(T.ones(2, 3), 1, 3)
T.frobenius_norm(T.ones(2, 3, 2), (0, 1, 2))
T.frobenius_norm(3, 1)
T.nuclear_norm(None)
T.nuclear_norm(T.ones(2, 3), 1)
T.nuclear_norm(T.ones(2, 3), None)
T.nuclear_norm(T.ones(2, 3), (0.5, 1))
T.nuclear_norm(T.ones(2, 3), dim=True)
T.fill(T.ones(2), None)
T.fill(T.ones(2), "x")
T.fill(T.ones(2))
T.fill(T.ones(2), T.ones(2))
T.fill(3, 3)
T._softmax_backward_data(T.ones(2), T.ones(2), 1.5, T.float32)
T._shape_as_tensor(3)
F.fractional_max_pool2d(T.ones(1, 1, 0, 4), 2, output_ratio=(float("inf"), 0.5))
T.unsafe_split(T.ones(3), T.ones(2).numpy().shape[0])
T.unsafe_split(T.ones(3), T.ones(1, dtype=T.int64).numpy()[0])
T.unsafe_split(T.ones(3), True)
T.unsafe_split(T.ones(3), [1, 2])
T.split(T.ones(3), T.tensor(float("nan")))
T.split(T.ones(3), T.tensor(float("inf")))
T.split(T.ones(3), T.tensor([2.0]))
T.split(T.ones(3), T.tensor([1, 2]))
T.trapz(T.ones(0, dtype=T.uint8))
T.trapezoid(T.ones(2, 0, requires_grad=True)).requires_grad
T.ones(3).bernoulli_(T.ones(3, dtype=T.int64))
T.ones(0).bernoulli_(T.ones(0, dtype=T.int64))
T.arange(6.0).reshape(2, 3).kthvalue(2, dim=T.ones(1, dtype=T.int64).numpy()[0])
"""


def _outcome(module, call):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return eval(call, {"T": module, "F": module.nn.functional})
        except Exception as error:
            return error


@pytest.mark.parametrize("call", CALLS.strip().splitlines())
def test_call_ends_as_in_pytorch(call):
    theirs, ours = (_outcome(module, call) for module in (torch, flambeau))
    assert not differs(theirs, ours), f"PyTorch: {brief(theirs)}; Flambeau: {brief(ours)}"


GRADIENTS = """
T.logdet(T.stack([x[0], x[2], x[2], x[4]]).reshape(2, 2))
T.special.logit(x, eps=-1.0)
T.special.logit(x)
T.xlogy(x, -1.0)
T.xlogy(x, T.tensor([1.0, 2.0, -1.0, 0.0, 3.0, 1.0, 2.0]))
T.xlogy(x[:2], 1e300)
T.remainder(T.tensor([float("inf"), 1.0]), x[5:])
T.linalg.vector_norm(x, 0)
"""


@pytest.mark.parametrize("call", GRADIENTS.strip().splitlines())
def test_gradient_at_ends_is_pytorchs(call):
    grads = []
    for module in (torch, flambeau):
        x = module.tensor([2.0, -0.0, 1.0, 0.0, -1.0, float("nan"), -3.0], requires_grad=True)
        eval(call, {"T": module, "x": x}).sum().backward()
        grads.append([0.0] * 7 if x.grad is None else x.grad.tolist())
    assert grads[1] == pytest.approx(grads[0], nan_ok=True)


def test_gaussian_nll_loss_passes_gradients_below_eps():
    grads = []
    for module in (torch, flambeau):
        var = module.tensor([0.0, 0.5], requires_grad=True)
        module.nn.functional.gaussian_nll_loss(module.ones(2), module.zeros(2), var, eps=0.1).backward()
        grads.append(var.grad.tolist())
    assert grads[0] == pytest.approx(grads[1])


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_padding_takes_a_number_of_any_device(device):
    with flambeau.virtual(1):
        for other in ("cpu", "cuda"):
            value = flambeau.tensor(2.0, device=other)
            padded = flambeau.constant_pad_nd(flambeau.ones(1, device=device), (1, 0), value)
            assert padded.tolist() == [2.0, 1.0]
