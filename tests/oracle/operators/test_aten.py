"""torch.ops.aten: calls that PyTorch makes below autograd, made again here; names, schemas and errors."""

from __future__ import annotations

import random
import warnings
from datetime import UTC, datetime
from typing import Any

import numpy as np
import opinfo_kit as kit
import pytest
import torch as oracle

import flambeau as torch
from flambeau._aten import table
from flambeau.utils._pytree import tree_leaves

DAY = int(datetime.now(UTC).strftime("%Y%m%d"))
# Results that are random, that are not unique, or whose memory is not written.
NOT_COMPARED = (
    "rand", "normal", "bernoulli", "empty", "exponential", "uniform", "geometric", "cauchy", "dropout", "multinomial",
    "rrelu", "eig", "svd", "qr", "lstsq", "resize", "randperm", "poisson", "gamma", "binomial", "lu_factor", "geqrf",
)  # fmt: skip
# Values that PyTorch computes otherwise: series of another length, a cut of singular values at another rank, results
# that nothing asked for, which of several equal elements stands for them.
OTHER_VALUES = {
    "_linalg_det",  # PyTorch factors the transposed matrix
    "linalg_matrix_exp",
    "linalg_pinv",
    "unique_consecutive",
    "native_batch_norm",
    "_native_batch_norm_legit",
    "nanmedian",
    "median",
    "mode",
    "kthvalue",
}


def logged_calls(count: int) -> list[tuple[str, Any, Any, Any]]:
    """Return calls of some operators drawn by the day, forward and backward."""
    ops = random.Random(DAY).sample(kit.op_infos(), count)
    calls: dict[str, list[Any]] = {}
    for op in ops:
        if oracle.float32 not in op.dtypes:
            continue
        with warnings.catch_warnings(), kit.CallLog() as log:
            warnings.simplefilter("ignore")
            try:
                for sample in kit.samples(op, 2, DAY, requires_grad=op.supports_autograd):
                    out = op(sample.input, *sample.args, **sample.kwargs)
                    leaves = [
                        t for t in oracle.utils._pytree.tree_leaves(out) if getattr(t, "requires_grad", False)
                    ]
                    if leaves:
                        oracle.autograd.backward(leaves, [oracle.ones_like(t) for t in leaves])
            except (RuntimeError, ValueError, AssertionError):
                pass  # PyTorch lacks what the sample needs; the calls before it are kept
        for call in log.calls:
            calls.setdefault(call[0], []).append(call)
    return [call for listed in calls.values() for call in listed[:3]]


@pytest.mark.filterwarnings("ignore")
def test_calls_give_pytorchs_results() -> None:
    compared, differing, known = 0, [], set(table.names())
    for name, args, kwargs, expected in logged_calls(120):
        namespace, base, overload = name.split(".")
        if namespace != "aten" or base not in known or any(word in base for word in NOT_COMPARED):
            continue
        try:
            args, kwargs, expected = kit.convert(args), kit.convert(kwargs), kit.convert(expected)
        except kit.CannotConvert:
            continue
        compared += 1
        result = getattr(getattr(torch.ops.aten, base), overload)(*args, **kwargs)
        if base not in OTHER_VALUES and not agree(result, expected):
            differing.append((name, args, kwargs, result, expected))
    assert compared > 100, compared
    assert not differing, (len(differing), differing[0])


def agree(result: Any, expected: Any) -> bool:
    """Return True if results are close and have one type, shape and dtype."""
    ours, theirs = tree_leaves(result), tree_leaves(expected)
    if len(ours) != len(theirs):
        return False
    for x, y in zip(ours, theirs, strict=True):
        if not isinstance(y, torch.Tensor):
            if x != y and x == x:
                return False
        elif (
            x.shape != y.shape
            or x.dtype is not y.dtype
            or not np.allclose(x.detach().numpy(), y.numpy(), rtol=1e-3, atol=1e-4, equal_nan=True)
        ):
            return False
    return True


def test_schemas_are_pytorchs() -> None:
    for name in table.names():
        packet, theirs = getattr(torch.ops.aten, name), getattr(oracle.ops.aten, name)
        listed = [each for each in theirs.overloads() if each in packet.overloads()]
        assert packet.overloads() == listed
        for overload in listed:
            ours, other = getattr(packet, overload), getattr(theirs, overload)
            assert str(ours._schema) == str(other._schema)
            assert (ours.name(), str(ours), repr(ours)) == (other.name(), str(other), repr(other))
            tags = {tag.name for tag in other.tags if tag.name != "generated"}
            assert {tag.name for tag in ours.tags} - {"pt2_compliant_tag"} == tags - {"pt2_compliant_tag"}


def test_packets_choose_pytorchs_overload() -> None:
    for library in (torch, oracle):
        x, aten = library.ones(2, 3), library.ops.aten
        assert aten.add(x, 1).tolist() == [[2.0] * 3] * 2
        assert aten.sum(x, [1]).tolist() == [3.0, 3.0]
        assert type(aten.max(x, 1)) is tuple
        assert type(aten.split(x, 1)) is list
        assert aten.add.Tensor.overloadpacket is aten.add
        assert aten.mul.out(x, x, out=library.empty(2, 3)).tolist() == x.tolist()


@pytest.mark.parametrize(
    "call",
    [
        lambda aten, x: aten.nope,
        lambda aten, x: aten.add.nope,
        lambda aten, x: aten.add.Tensor(x),
        lambda aten, x: aten.mm.default(x, 3),
        lambda aten, x: aten.mm.default(x, x, x, x),
        lambda aten, x: aten.add("s", 2),
        lambda aten, x: aten.sum.default(x, nothing=1),
    ],
)
def test_errors_are_pytorchs(call: Any) -> None:
    with pytest.raises((AttributeError, RuntimeError, TypeError)) as theirs:
        call(oracle.ops.aten, oracle.ones(2, 2))
    with pytest.raises(theirs.type) as ours:
        call(torch.ops.aten, torch.ones(2, 2))
    assert str(ours.value).split(". ")[0].split("\n")[0] == str(theirs.value).split(". ")[0].split("\n")[0]


def test_gradients_pass() -> None:
    x = torch.ones(2, 3, requires_grad=True)
    torch.ops.aten.addmm.default(torch.ones(2), x, torch.ones(3, 2)).sum().backward()
    assert x.grad.tolist() == [[2.0] * 3] * 2
