"""Random numbers on a real GPU: whole tensors with the bits that PyTorch drew on an H100, and the virtual GPU's."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gpu_kit import GPU, needs_gpu
from support import values

import flambeau as torch
from flambeau.core.dtype import float16, float32, float64, int64
from flambeau.core.meta import Meta
from flambeau.core.random import DrawGrid
from flambeau.driver.protocol import Launch
from flambeau.ops.op import Op
from flambeau.ops.random import random as ops
from flambeau.ops.random.dropout import native_dropout

pytestmark = needs_gpu

GOLDENS = json.loads((Path(__file__).parents[2] / "goldens" / "random_h100.json").read_text())
KINDS = sorted({(row["call"], row["dtype"]) for row in GOLDENS["rows"]})
CALLS: dict[str, Any] = {
    "rand": lambda t: t.uniform_(),
    "uniform": lambda t: t.uniform_(-2, 3),
    "randn": lambda t: t.normal_(),
    "normal": lambda t: t.normal_(1, 2),
    "bernoulli": lambda t: t.bernoulli_(0.3),
    "exponential": lambda t: t.exponential_(),
    "random": lambda t: t.random_(),
    "randint10": lambda t: t.random_(-5, 10),
    "randint_wide": lambda t: t.random_(0, 1 << 40),
    "randint_28": lambda t: t.random_(0, 1 << 28),
    "randint_28_less": lambda t: t.random_(0, (1 << 28) - 1),
    "randperm": lambda t: torch.randperm(t.numel(), dtype=t.dtype, device="cuda"),
}


@pytest.mark.parametrize(("call", "kind"), KINDS, ids=lambda x: x)
def test_pytorchs_bits(call: str, kind: str) -> None:
    """The goldens are of GPUs with as many multiprocessors and threads as an H100."""
    properties = torch.cuda.get_device_properties(0)
    if properties.multi_processor_count != GOLDENS["multi_processor_count"]:
        pytest.skip(f"the goldens are of {GOLDENS['device']}")
    dtype = getattr(torch, kind)
    different = []
    for row in [row for row in GOLDENS["rows"] if (row["call"], row["dtype"]) == (call, kind)]:
        torch.cuda.manual_seed(1234)
        CALLS[call](torch.empty(7, dtype=dtype, device="cuda"))
        drawn = CALLS[call](torch.empty(row["size"], dtype=dtype, device="cuda"))
        assert int.from_bytes(bytes(torch.cuda.get_rng_state().tolist()[8:]), "little") == row["offset"]
        raw = drawn.cpu().contiguous().view(torch.uint8).numpy().tobytes()
        if hashlib.sha256(raw).hexdigest() != row["digest"]:
            different.append(row["size"])
    assert not different


PARAMETERS: dict[str, tuple[Any, ...]] = {
    "uniform_": (-2.0, 3.0), "normal_": (1.0, 2.0), "random_": (-5, 1 << 15, False), "bernoulli_": (0.3,),
    "exponential_": (1.5,), "cauchy_": (1.0, 2.0), "geometric_": (0.2,), "log_normal_": (0.5, 0.25),
}  # fmt: skip
EXACT = {"uniform_", "random_", "bernoulli_"}


DISTRIBUTIONS = (
    ops.uniform, ops.normal, ops.integers, ops.bernoulli, ops.exponential, ops.cauchy, ops.geometric, ops.log_normal,
)  # fmt: skip


@pytest.mark.parametrize("op", DISTRIBUTIONS, ids=lambda op: op.name)
def test_the_host_bodys_numbers(op: Op) -> None:
    """The virtual GPU's values: the same bits where no log, sine or tangent is taken, else a few parts in a million."""
    for kind in (float32, float64, float16, int64):
        if kind in op.dtypes:
            got, want = drawn_both(op, kind, (3000,), (1,))
            if (
                op.name in EXACT and kind is not float64
            ):  # the host rounds a product and a sum of doubles twice
                np.testing.assert_array_equal(got, want)
            elif op.name == "geometric_":
                assert (got != want).mean() < 1e-3
            else:
                rtol = 2e-3 if kind is float16 else 1e-3 if op.name == "cauchy_" else 1e-4
                rtol = 1e-12 if kind is float64 else rtol
                np.testing.assert_allclose(got, want, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("n", [1, 2, 1000, 25_000, 40_000, 3_000_000])
def test_permutations_are_the_host_bodys(n: int) -> None:
    """For a hundred seeds where it is small: about ten of them have places under one key."""
    properties = torch.cuda.get_device_properties(0)
    policy = DrawGrid(properties.multi_processor_count, properties.max_threads_per_multi_processor)
    launch = Launch(ops.randperm.kernel, (Meta.of((n,), (1,), int64, GPU),), (), (None, policy))
    for seed in range(100 if n == 1000 else 2):
        torch.cuda.manual_seed(seed)
        want = np.zeros(n, np.int64)
        ops.randperm.kernel.host(launch)([want], [seed, 0])
        np.testing.assert_array_equal(torch.randperm(n, device=GPU).cpu().numpy(), want)


def test_gaps_and_orders_of_memory() -> None:
    for shape, strides in (((20, 30), (1, 20)), ((20, 30), (40, 1)), ((6, 5, 4), (1, 100, 10))):
        got, want = drawn_both(ops.uniform, float32, shape, strides)
        np.testing.assert_array_equal(got, want)


def drawn_both(op: Op, kind: Any, shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[Any, Any]:
    """The same draw from the GPU's kernel and from the host body."""
    properties = torch.cuda.get_device_properties(0)
    policy = DrawGrid(properties.multi_processor_count, properties.max_threads_per_multi_processor)
    span = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    values = PARAMETERS[op.name]
    memory = torch.zeros(span, dtype=kind, device=GPU)
    view = torch.as_strided(memory, shape, strides)
    torch.cuda.manual_seed(77)
    methods = {"random_": lambda t: t.random_(values[0], values[0] + values[1])}
    methods.get(op.name, lambda t: getattr(t, op.name)(*values))(view)
    meta = Meta.of(shape, strides, kind, GPU)
    signature = op.rule((), (meta, policy))
    host = np.zeros(span, kind.numpy)
    target = np.lib.stride_tricks.as_strided(host, shape, [s * host.itemsize for s in strides])
    op.kernel.host(Launch(op.kernel, signature.outputs, signature.inputs, signature.params))(
        [target], [77, 0, *values]
    )
    return memory.cpu().numpy(), host


def test_draws_are_spread_as_they_should_be() -> None:
    """Mean, variance and the share below a bound, of a million, within five standard errors."""
    torch.cuda.manual_seed(5)
    x = torch.empty(1_000_000, device=GPU)
    for fill, mean, variance in (
        (lambda t: t.uniform_(), 0.5, 1 / 12), (lambda t: t.normal_(2, 3), 2, 9),
        (lambda t: t.exponential_(2.0), 0.5, 0.25), (lambda t: t.bernoulli_(0.3), 0.3, 0.21),
        (lambda t: t.geometric_(0.25), 4, 12), (lambda t: t.log_normal_(0, 0.5), np.exp(0.125), 0.3646959),
    ):  # fmt: skip
        values = fill(x).cpu().numpy().astype(np.float64)
        assert abs(values.mean() - mean) < 5 * (variance / 1e6) ** 0.5
        assert abs(values.var() / variance - 1) < 0.05
    assert abs((x.cauchy_(1, 2).cpu().numpy() < 3).mean() - 0.75) < 0.003


@pytest.mark.parametrize("kind", ("float16", "bfloat16", "float32", "float64"))
@pytest.mark.parametrize("size", (1, 1001, 4096, 3_000_000))
def test_dropout_is_the_host_bodys_and_pytorchs(kind: str, size: int) -> None:
    """PyTorch's where it reads four elements at a time: float32 tensors of a multiple of four."""
    torch.cuda.manual_seed(11)
    x = torch.linspace(-3, 3, size, dtype=getattr(torch, kind), device=GPU)
    got = torch.nn.functional.dropout(x, 0.3)
    properties = torch.cuda.get_device_properties(0)
    policy = DrawGrid(properties.multi_processor_count, properties.max_threads_per_multi_processor)
    signature = native_dropout.rule((x.meta, int, int, float), (policy,))
    launch = Launch(native_dropout.kernel, signature.outputs, signature.inputs, signature.params)
    outputs = [np.empty(size, m.dtype.numpy) for m in signature.outputs]
    native_dropout.kernel.host(launch)(outputs, [values(x.cpu()), 11, 0, 0.7])
    assert values(got.cpu()).tobytes() == outputs[0].tobytes()
    if kind == "float32" and size % 4 == 0:
        theirs = pytest.importorskip("torch")
        theirs.cuda.manual_seed(11)
        want = theirs.nn.functional.dropout(theirs.from_dlpack(x), 0.3)
        assert (want == theirs.from_dlpack(got)).all().item()
