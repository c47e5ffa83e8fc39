"""The oracle's tests with both libraries on one NVIDIA GPU: a pytest plugin, for a machine whose PyTorch has CUDA.

    PYTHONPATH=tests/gpu python -m pytest -p oracle_on_gpu --driver=cuda tests/oracle

Each tensor that a test makes, ours and PyTorch's, lies on the GPU from its birth, and results are compared on the CPU:
`tests/oracle` stays as it is. PyTorch's CUDA kernels differ from its CPU ones in rounding and in what they implement; the
cases in which they do are named in `oracle_on_gpu.txt` beside this file, each with its reason.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

os.environ.setdefault("FLAMBEAU_DRIVER", "cuda")
TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "oracle")]

import pytest  # noqa: E402
import support  # noqa: E402
import torch  # noqa: E402
from hypothesis import settings  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402
from torch.utils._device import _device_constructors  # noqa: E402
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten  # noqa: E402

import flambeau  # noqa: E402
from flambeau.tensor.tensor import Tensor  # noqa: E402

OPERATORS = [
    "channels_last", "convolution_gradients", "copies", "creation", "fft", "foreach_copies", "functional_activation",
    "functional_convolution", "functional_layouts", "functional_loss", "functional_normalization",
    "functional_pooling", "functional_sampling", "functional_sparse", "indexing", "joining", "linalg",
    "linalg_gradients", "linalg_out", "matmul", "no_gradients", "numerics", "pointwise", "pointwise_forms",
    "pooling_gradients", "promotion", "quantile_gradients", "reductions", "sampling_gradients", "scans", "sorting",
    "special", "statistics", "views",
]  # fmt: skip
"""The modules that are about operators; the others are about the host's side, or run on GPUs by themselves."""

WIDER = ["functional_pooling", "indexing", "numerics", "pointwise", "special", "statistics"]
"""Those in which our CUDA kernels take dtypes that PyTorch's do not: there its CPU is asked instead."""

DIFFER = [
    line.split(": ", 1)
    for line in Path(__file__).with_suffix(".txt").read_text().splitlines()
    if line and not line.startswith("#")
]


class Birthplace(TorchFunctionMode):
    """What PyTorch makes lies on the GPU; random numbers are the CPU's, as tests expect."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.Tensor.numpy:
            args = (args[0].cpu(), *args[1:])
        if (
            func not in _device_constructors()
            or kwargs.get("device") is not None
            or kwargs.get("out") is not None
        ):
            try:
                return func(*args, **kwargs)
            except NotImplementedError:
                if not any(f"test_{name}.py" in os.environ.get("PYTEST_CURRENT_TEST", "") for name in WIDER):
                    raise
                return on_cpu(func, args, kwargs)
        wants_grad = kwargs.pop("requires_grad", False)
        return func(*args, **kwargs).cuda().requires_grad_(wants_grad)


def on_cpu(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """A call that PyTorch has no CUDA kernel for, done by its CPU: results and what changed in place come back."""
    leaves, shape = tree_flatten((args, kwargs))
    moved = [leaf.cpu() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    versions = [leaf._version if isinstance(leaf, torch.Tensor) else None for leaf in moved]
    args, kwargs = tree_unflatten(moved, shape)
    result = func(*args, **kwargs)
    back = {}
    for leaf, twin, version in zip(leaves, moved, versions, strict=True):
        if isinstance(leaf, torch.Tensor):
            back[id(twin)] = leaf if twin._version == version else leaf.copy_(twin)
    return tree_map(lambda x: back.get(id(x), x.cuda()) if isinstance(x, torch.Tensor) else x, result)


def move_births() -> None:
    """From here on tensors of both libraries are made on the GPU, and carried between them there."""
    Birthplace().__enter__()
    from_numpy, from_torch, values = torch.from_numpy, support.from_torch, support.values
    to_torch, to_numpy = support.to_torch, Tensor.numpy
    torch.from_numpy = lambda array: from_numpy(array).cuda()
    support.from_torch = lambda theirs: carry(theirs, from_torch)
    support.to_torch = lambda ours: to_torch(ours.detach()).cuda()
    support.values = lambda ours: values(ours.cpu())
    Tensor.numpy = lambda self, **named: to_numpy(self.cpu(), **named)
    support.INTEGER_PRODUCTS = ()  # no integer products on CUDA devices, in PyTorch neither
    support.HALVES = "float16", "bfloat16"
    import layouts

    layouts.of_torch = whole


def carry(theirs: Any, from_torch: Callable[[Any], Tensor]) -> Tensor:
    """Our tensor on the GPU with the bytes, dtype, shape and strides of PyTorch's."""
    theirs = theirs.detach()
    if not theirs.is_cuda:
        return from_torch(theirs)
    span = 1 + sum((n - 1) * step for n, step in zip(theirs.shape, theirs.stride(), strict=True))
    flat = theirs.as_strided((span if theirs.numel() else 0,), (1,)).cpu()
    return from_torch(flat).cuda().as_strided(tuple(theirs.shape), theirs.stride(), 0)


def whole(theirs: Any) -> Tensor:
    """Our tensor over a copy of PyTorch's whole storage, with the same layout and offset."""
    storage = theirs.untyped_storage()
    flat = torch.empty(0, dtype=theirs.dtype, device="cuda").set_(storage)
    ours = support.from_torch(flat)
    return ours.as_strided(tuple(theirs.shape), theirs.stride(), theirs.storage_offset())


def pytest_configure(config: pytest.Config) -> None:
    settings.register_profile("gpu", max_examples=20, parent=settings.get_profile("default"))
    settings.load_profile("gpu")
    flambeau.cuda.synchronize()  # real GPUs are open from now on: no test puts virtual ones in their place
    move_births()


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Of the oracle's modules only those about operators."""
    name = collection_path.stem
    return True if name.startswith("test_") and name.removeprefix("test_") not in OPERATORS else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for pattern, reason in DIFFER:
            if fnmatchcase(item.nodeid[item.nodeid.index(item.path.name) :], pattern):
                dead = reason.startswith("asserts")
                apart = pytest.mark.xfail(
                    reason=reason, strict="order" not in reason
                )  # sums may agree by luck
                item.add_marker(pytest.mark.skip(reason) if dead else apart)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Iterator[None]:
    return (yield from _skipping_virtual())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    """Ours are made on the GPU too, and nothing is rounded to TF32 (tests/conftest.py sets PyTorch's anew each time)."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    switches = flambeau.backends.cuda.matmul, flambeau.backends.cudnn
    before = [switch.allow_tf32 for switch in switches]
    for switch in switches:
        switch.allow_tf32 = False
    flambeau.set_default_device("cuda")
    try:
        return (yield from _skipping_virtual())
    finally:
        flambeau.set_default_device(None)
        for switch, value in zip(switches, before, strict=True):
            switch.allow_tf32 = value
        _end_if_dead()


def _skipping_virtual() -> Iterator[None]:
    """What needs virtual GPUs is skipped and says so."""
    try:
        return (yield)
    except Exception as error:
        if "flambeau.virtual() was called" in str(error):
            pytest.skip("of virtual GPUs alone")
        raise


def _end_if_dead() -> None:
    """Where the CPU raises, a kernel asserts, ours or PyTorch's: the end of the context, which both share.

    The process goes, and the next test has another.
    """
    try:
        flambeau.cuda.synchronize()
        torch.cuda.synchronize()
    except RuntimeError:
        print("a kernel asserts:", os.environ["PYTEST_CURRENT_TEST"], file=sys.stderr, flush=True)
        os._exit(1)
