"""Forms that every name has or has not: functions of in-place methods, NumPy's names of arguments, a tensor as a sequence."""

from __future__ import annotations

from typing import Any

import pytest
from support import from_torch, same, torch

import flambeau

SQUARE = torch.arange(9.0).reshape(3, 3)
PLACES = torch.zeros(1, 3, dtype=torch.int64)
BY_NUMPY = [
    "torch.sum(x, axis=1, keepdims=True)", "x.mean(axis=(0, 1))", "x.std(axis=0)", "torch.var(x, axis=0, keepdims=True)",
    "x.max(axis=1)", "torch.min(x, axis=0)", "x.argmax(axis=1)", "torch.argmin(x, axis=0, keepdims=True)", "x.all(axis=0)",
    "x.any(axis=1)", "torch.amax(x, axis=0)", "x.prod(axis=1)", "torch.median(x, axis=0)", "x.logsumexp(axis=0)",
    "torch.cumsum(x, axis=0)", "x.cumprod(axis=1)", "torch.cummax(x, axis=0)", "torch.softmax(x, axis=0)",
    "x.log_softmax(axis=1)", "torch.cat([x, x], axis=1)", "torch.concat([x], axis=0)", "torch.stack([x, x], axis=2)",
    "torch.unbind(x, axis=1)", "torch.chunk(x, 2, axis=1)", "torch.tensor_split(x, 2, axis=1)", "x.squeeze(axis=0)",
    "x.unsqueeze(axis=1)", "x.select(axis=1, index=2)", "x.narrow(axis=0, start=1, length=2)", "x.size(axis=1)",
    "x.index_select(axis=0, index=p[0])", "torch.gather(x, axis=0, index=p)", "x.scatter(axis=0, index=p, value=7)",
    "torch.take_along_dim(x, p, axis=0)", "torch.sort(x, axis=0, descending=True)", "x.argsort(axis=1)",
    "torch.topk(x, 2, axis=0)", "x.kthvalue(2, axis=1)", "torch.diff(x, axis=0)", "torch.quantile(x, 0.5, axis=1)",
    "torch.count_nonzero(x, axis=0)", "torch.repeat_interleave(x, 2, axis=0)", "torch.cosine_similarity(x, x, axis=0)",
    "torch.linalg.norm(x, axis=1, keepdims=True)", "torch.linalg.vector_norm(x, axis=0)", "torch.linalg.vecdot(x, x, axis=0)",
    "torch.linalg.cross(x, x, axis=0)", "torch.fft.fft(x, axis=0)", "torch.fft.fftshift(x, axis=1)",
    "torch.special.logsumexp(x, axis=1)", "torch.sum(x=x)", "torch.sum(a=x, axis=0)", "torch.cross(x1=x, x2=x, axis=0)",
]  # fmt: skip


def outcome(module: Any, call: str) -> Any:
    theirs = module is torch
    own = {"x": SQUARE if theirs else from_torch(SQUARE), "p": PLACES if theirs else from_torch(PLACES)}
    return eval(call, {"torch": module, **own})


@pytest.mark.parametrize("call", BY_NUMPY)
def test_numpys_names_of_arguments(call: str) -> None:
    same(outcome(flambeau, call), outcome(torch, call), 4, strides=False)


def test_two_names_of_one_argument_are_refused() -> None:
    for module in (torch, flambeau):
        with pytest.raises(TypeError):
            outcome(module, "torch.sum(x, axis=0, dim=1)")


def test_in_place_functions_are_those_of_the_torch_namespace() -> None:
    """All of PyTorch's whose method exists, and no others."""

    def functions(module: Any) -> set[str]:
        return {
            n
            for n in dir(module)
            if n.endswith("_") and not n.startswith("_") and callable(getattr(module, n))
        }

    lacking = {n for n in functions(torch) - functions(flambeau) if hasattr(flambeau.Tensor, n)}
    assert not lacking
    assert not functions(flambeau) - functions(torch)


@pytest.mark.parametrize("name", ["acosh_", "arctan_", "detach_", "fix_", "negative_", "zero_"])
def test_in_place_functions_change_their_argument(name: str) -> None:
    mine, other = from_torch(SQUARE + 1), SQUARE + 1
    changed = getattr(flambeau, name)(mine)
    getattr(torch, name)(other)
    assert changed is mine
    same(mine, other, 4)


def test_a_tensor_is_a_sequence() -> None:
    x = from_torch(SQUARE)
    for mine, other in ((list(x), list(SQUARE)), (reversed(x), reversed(SQUARE))):
        same(mine, other)
    assert reversed(flambeau.tensor(1)).item() == 1
    next(iter(x)).zero_()
    assert x[0].tolist() == [0, 0, 0]  # the rows are views
    for module in (torch, flambeau):
        with pytest.raises(TypeError, match="iteration over a 0-d tensor"):
            iter(module.tensor(1))
        with pytest.raises(TypeError, match="Tensor does not support deleting items"):
            del module.ones(3)[0]


def test_what_a_tensor_is_not() -> None:
    for kind in ("ipu", "maia", "mkldnn", "mps", "mtia", "nested", "sparse_csr", "vulkan", "xla", "xpu"):
        assert getattr(flambeau.ones(1), f"is_{kind}") is getattr(torch.ones(1), f"is_{kind}") is False
    assert flambeau.get_device(flambeau.ones(1)) == torch.get_device(torch.ones(1)) == -1


def test_new_of_old() -> None:
    x = flambeau.ones(2, dtype=flambeau.float64)
    like = torch.ones(2, dtype=torch.float64)
    for args in (([1, 2],), ((1, 2),), ()):
        same(x.new(*args), like.new(*args))
    assert x.new(2, 3).shape == x.new(flambeau.Size([2, 3])).shape == (2, 3)
    for tensor in (x, like):
        with pytest.raises(TypeError, match="data must be a sequence"):
            tensor.new(1.5)
        with pytest.raises(RuntimeError, match="legacy constructor expects device type: cpu"):
            tensor.new([1], device="cuda")


@pytest.mark.filterwarnings("ignore:torch.set_default_tensor_type.. is deprecated")
def test_the_default_type_of_old() -> None:
    for module in (torch, flambeau):
        try:
            module.set_default_tensor_type(module.DoubleTensor)
            assert module.tensor([1.0]).dtype is module.float64
            with pytest.raises(
                TypeError, match="only floating-point types are supported as the default type"
            ):
                module.set_default_tensor_type("torch.IntTensor")
            with pytest.raises(TypeError, match="invalid type object"):
                module.set_default_tensor_type(module.float32)
        finally:
            module.set_default_tensor_type("torch.FloatTensor")
        assert module.tensor([1.0]).dtype is module.float32
    with flambeau.virtual(devices=1):
        try:
            flambeau.set_default_tensor_type("torch.cuda.HalfTensor")
            made = flambeau.zeros(2)
            assert made.is_cuda and made.dtype is flambeau.float16
        finally:
            flambeau.set_default_tensor_type("torch.FloatTensor")
        assert not flambeau.zeros(2).is_cuda
    with pytest.warns(UserWarning, match="is deprecated as of PyTorch 2.1"):
        flambeau.set_default_tensor_type("torch.FloatTensor")


@pytest.mark.parametrize("shape", [(8, 5), (5, 8), (2, 6, 6)])
@pytest.mark.parametrize("kind", ["float64", "complex128"])
def test_low_rank(shape: tuple[int, ...], kind: str) -> None:
    """Of a matrix of rank 3: its singular values and itself are found exactly; columns are orthonormal."""
    flambeau.manual_seed(0)
    dtype = getattr(flambeau, kind)
    x = flambeau.randn(*shape[:-1], 3, dtype=dtype) @ flambeau.randn(*shape[:-2], 3, shape[-1], dtype=dtype)
    for found, of in (
        (flambeau.svd_lowrank(x, 4), x),
        (flambeau.svd_lowrank(x, 4, M=flambeau.ones(shape[-1], dtype=dtype)), x - 1),
        (flambeau.pca_lowrank(x), x - x.mean(-2, True)),
        (flambeau.pca_lowrank(x, 3, center=False), x),
    ):
        left, values, right = found
        assert flambeau.allclose(left * values.to(dtype).unsqueeze(-2) @ right.mH, of)
        assert flambeau.allclose(values[..., :3], flambeau.linalg.svdvals(of)[..., :3])
        assert flambeau.allclose(left.mH @ left, flambeau.eye(left.shape[-1], dtype=dtype))
    for module in (torch, flambeau):
        with pytest.raises(ValueError, match=r"q\(=9\) must be non-negative integer"):
            module.pca_lowrank(module.ones(3, 4), 9)
        with pytest.raises(ValueError, match=r"niter\(=-1\) must be non-negative integer"):
            module.pca_lowrank(module.ones(3, 4), 2, niter=-1)


def test_constants_are_pytorchs() -> None:
    for name in ("e", "inf", "nan", "newaxis", "pi"):
        assert repr(getattr(flambeau, name)) == repr(getattr(torch, name)), name
    assert flambeau.ones(2)[:, flambeau.newaxis].shape == (2, 1)


def test_names_of_other_rooms_at_the_top() -> None:
    for module in (torch, flambeau):
        assert module.GradScaler is module.amp.GradScaler
        assert module.default_generator.initial_seed() == module.initial_seed()


def test_broadcasting_gives_back_what_has_the_shape() -> None:
    for module in (torch, flambeau):
        whole, row = module.ones(2, 3, requires_grad=True), module.ones(3)
        found = module.broadcast_tensors(whole, row)
        assert found[0] is whole and found[1].shape == (2, 3) and found[0].is_leaf
