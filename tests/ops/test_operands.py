"""What may stand beside a tensor: 0-dim CPU tensors, NumPy's scalars and arrays, Python's; and what may not."""

from __future__ import annotations

import operator

import numpy as np
import pytest

import flambeau

BINARY = [operator.add, operator.sub, operator.mul, operator.truediv, operator.pow, operator.lt, operator.eq]
KINDS = [flambeau.float32, flambeau.float64, flambeau.float16, flambeau.int64, flambeau.uint8, flambeau.bool]


@pytest.fixture(scope="module", autouse=True)
def machine():
    with flambeau.virtual(devices=2, profile="v100"):
        yield


def cuda(values, kind=flambeau.float32, index=0):
    return flambeau.tensor(values, dtype=kind, device=f"cuda:{index}")


# -- 0-dim CPU tensors beside CUDA tensors ------------------------------------------------------------------


@pytest.mark.parametrize("apply", BINARY)
@pytest.mark.parametrize("other", KINDS)
@pytest.mark.parametrize("own", [flambeau.float32, flambeau.float16, flambeau.int32])
def test_a_0_dim_cpu_tensor_goes_along_as_a_0_dim_cuda_tensor_would(apply, other, own):
    x, scalar = cuda([3, 1, 2], own), flambeau.tensor(1, dtype=other)
    if apply is operator.sub and other is flambeau.bool:
        with pytest.raises(RuntimeError, match="with a bool tensor is not supported"):
            apply(x, scalar)
        return
    for ours, reference in (
        (apply(x, scalar), apply(x, scalar.cuda())),
        (apply(scalar, x), apply(scalar.cuda(), x)),
    ):
        assert ours.device == flambeau.device("cuda:0")
        assert ours.dtype is reference.dtype
        assert ours.tolist() == reference.tolist()


def test_a_0_dim_cpu_tensor_beside_a_0_dim_cuda_tensor_computes_on_cuda():
    for got in (flambeau.tensor(2.0) + cuda(3.0), cuda(3.0) + flambeau.tensor(2.0)):
        assert got.device == flambeau.device("cuda:0")
        assert got.item() == 5


def test_a_0_dim_cpu_tensor_is_read_when_called():
    scalar, x = flambeau.tensor(2.0), cuda([1.0, 2.0])
    got = x * scalar
    scalar.fill_(100.0)
    assert got.tolist() == [2, 4]


def test_in_place_and_out_take_a_0_dim_cpu_tensor():
    x, scalar = cuda([1.0, 2.0]), flambeau.tensor(3.0)
    assert x.add_(scalar).tolist() == [4, 5]
    x *= scalar
    assert x.tolist() == [12, 15]
    out = cuda([0.0, 0.0])
    assert flambeau.add(scalar, x, out=out) is out
    assert out.tolist() == [15, 18]
    assert flambeau.where(x > 12, x, scalar).tolist() == [3, 15]
    assert flambeau.clamp(x, max=flambeau.tensor(13.0)).tolist() == [12, 13]
    assert flambeau.lerp(x, x + 2, flambeau.tensor(0.5)).tolist() == [13, 16]


def test_a_wide_0_dim_cpu_tensor_wraps_as_the_copy_would():
    x = cuda([1, 2], flambeau.int8)
    assert (x + flambeau.tensor(300)).tolist() == (x + flambeau.tensor(300).cuda()).tolist()


def test_a_0_dim_cpu_tensor_is_no_target_of_cuda_tensors():
    target = flambeau.tensor(1.0)
    for write in (
        lambda: target.add_(cuda(1.0)),
        lambda: flambeau.add(cuda(1.0), cuda(2.0), out=target),
    ):
        with pytest.raises(RuntimeError, match=r"Expected (all tensors|out tensor)"):
            write()
        assert target.item() == 1
        assert target._version == 0


# -- devices that differ --------------------------------------------------------------------------------

WRONG = [
    ("cuda:0", "cpu", lambda a, b: a + b),
    ("cuda:0", "cpu", lambda a, b: b + a),
    ("cuda:0", "cuda:1", lambda a, b: a * b),
    ("cuda:0", "cuda:1", lambda a, b: a.add_(b)),
    ("cuda:0", "cpu", lambda a, b: a.mul_(b)),
    ("cuda:0", "cuda:1", lambda a, b: flambeau.where(a > 0, a, b)),
    ("cuda:0", "cuda:1", lambda a, b: flambeau.addcmul(a, a, b)),
    ("cuda:0", "cuda:1", lambda a, b: a == b),
]


@pytest.mark.parametrize("first, second, run", WRONG)
def test_devices_that_differ_are_refused_in_pytorchs_words_and_nothing_changes(first, second, run):
    a, b = flambeau.ones(3, device=first), flambeau.ones(3, device=second)
    used = flambeau.cuda.memory_allocated(0)
    with pytest.raises(
        RuntimeError, match="Expected all tensors to be on the same device, but found at least two"
    ):
        run(a, b)
    assert flambeau.cuda.memory_allocated(0) == used
    assert (a._version, b._version) == (0, 0)
    assert a.tolist() == b.tolist() == [1, 1, 1]


CHECKED = [  # as PyTorch's builds for CUDA word it
    ("mat2 is on {b}, different from other tensors on {a} (when checking argument in method wrapper_CUDA_mm)",
     lambda a, b: a @ b),
    ("mat2 is on {b}, different from other tensors on {a} (when checking argument in method wrapper_CUDA_bmm)",
     lambda a, b: a[None] @ b[None]),
    ("mat is on {a}, different from other tensors on {b} (when checking argument in method wrapper_CUDA_addmv_)",
     lambda a, b: flambeau.mv(a, b[0])),
    ("tensor is on {b}, different from other tensors on {a} (when checking argument in method wrapper_CUDA__dot)",
     lambda a, b: flambeau.dot(a[0], b[0])),
    ("mat1 is on {b}, different from other tensors on {a} (when checking argument in method wrapper_CUDA_addmm)",
     lambda a, b: flambeau.nn.functional.linear(b, a, a[0])),
    ("tensors is on {b}, different from other tensors on {a} (when checking argument in method wrapper_CUDA_cat)",
     lambda a, b: flambeau.cat([a, b])),
    ("index is on {b}, different from other tensors on {a} (when checking argument in method "
     "wrapper_CUDA__index_select)", lambda a, b: flambeau.nn.functional.embedding(b[0].long(), a)),
]  # fmt: skip


@pytest.mark.parametrize("a, b", [("cuda:0", "cuda:1"), ("cuda:0", "cpu"), ("cpu", "cuda:0")])
@pytest.mark.parametrize("message, run", CHECKED)
def test_the_argument_on_another_device_is_named(message, run, a, b):
    one, other = flambeau.ones(3, 3, device=a), flambeau.ones(3, 3, device=b)
    with pytest.raises(RuntimeError) as error:
        run(one, other)
    text = message.format(a=a, b=b)
    assert str(error.value) == f"Expected all tensors to be on the same device, but got {text}"


@pytest.mark.parametrize("a, b", [("cuda:0", "cpu"), ("cpu", "cuda:0")])
def test_convolutions_name_the_types_of_devices_that_differ(a, b):
    image, weight = flambeau.ones(1, 1, 3, device=a), flambeau.ones(1, 1, 3, device=b)
    with pytest.raises(RuntimeError) as error:
        flambeau.nn.functional.conv1d(image, weight)
    assert (
        str(error.value)
        == f"Input type ({image.type()}) and weight type ({weight.type()}) should be the same"
    )


def test_a_0_dim_cuda_tensor_of_another_gpu_is_refused():
    with pytest.raises(RuntimeError, match=r"found at least two devices, cuda:0 and cuda:1"):
        cuda([1.0, 2.0]) + cuda(1.0, index=1)


def test_out_on_another_device_is_refused_and_untouched():
    a, out = cuda([1.0, 2.0]), flambeau.zeros(2)
    with pytest.raises(RuntimeError, match="Expected out tensor to have device cuda:0, but got cpu instead"):
        flambeau.add(a, a, out=out)
    assert out.tolist() == [0, 0]
    assert out._version == 0


# -- NumPy and Python --------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [np.float32(2), np.float64(2), np.int64(2), np.int8(2), np.uint8(2)])
def test_numpys_scalars_are_python_scalars_beside_cuda_tensors(value):
    x = cuda([1, 2, 4], flambeau.int32 if isinstance(value, np.integer) else flambeau.float16)
    for apply in (operator.add, operator.mul, operator.sub):
        for ours, reference in (
            (apply(x, value), apply(x, value.item())),
            (apply(value, x), apply(value.item(), x)),
        ):
            assert ours.dtype is reference.dtype is x.dtype
            assert ours.tolist() == reference.tolist()
            assert ours.device == x.device


def test_numpys_arrays_beside_cuda_tensors_are_refused():
    x = cuda([1.0, 2.0])
    for run in (lambda: x + np.ones(2), lambda: np.ones(2) + x, lambda: np.sin(x)):
        with pytest.raises(TypeError):
            run()


@pytest.mark.parametrize(
    "run", [lambda x, n: x + n, lambda x, n: n * x, lambda x, n: x.add_(n), lambda x, n: x < n]
)
@pytest.mark.parametrize("where", ["cpu", "cuda"])
@pytest.mark.parametrize(
    "number, text",
    [(2**64, "int too big to convert"), (-(2**63) - 1, "can't convert negative int to unsigned")],
)
def test_ints_of_more_than_64_bits_are_refused_and_nothing_changes(run, where, number, text):
    x = flambeau.ones(2, dtype=flambeau.int64, device=where)
    with pytest.raises(OverflowError, match=text):
        run(x, number)
    assert x.tolist() == [1, 1]
    assert x._version == 0
