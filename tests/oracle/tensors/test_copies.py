"""Copies and conversions on the CPU, against PyTorch."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import from_torch, same, torch

import flambeau
from flambeau.core.dtype import DTYPES

names = [d.name for d in DTYPES]


def values(source: str, target: str) -> Any:
    """Numbers of `source` whose conversion to `target` C defines: no float beyond an integer's range."""
    s, t = getattr(torch, source), getattr(torch, target)
    g = torch.Generator().manual_seed(7)
    x = torch.randn(200, generator=g, dtype=torch.float64) * 20
    x[:6] = torch.tensor([0.0, -0.0, 0.5, -0.5, 1.5, 2.5])
    if "uint" in source or "uint" in target:
        x = x.abs()
    if s.is_floating_point and (t.is_floating_point or t.is_complex):
        x[6:10] = torch.tensor([float("nan"), float("inf"), -float("inf"), 1e30])
    return (torch.complex(x, x.flip(0)) if s.is_complex else x).to(s)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("target", names)
@pytest.mark.parametrize("source", names)
def test_every_conversion(source: str, target: str) -> None:
    x = values(source, target)
    same(from_torch(x).to(getattr(flambeau, target)), x.to(getattr(torch, target)))


def test_integers_wrap() -> None:
    x = torch.tensor([300, -1, 2**40 + 5, -(2**63)])
    for name in ("uint8", "int8", "int16", "int32", "uint16", "uint64"):
        same(from_torch(x).to(getattr(flambeau, name)), x.to(getattr(torch, name)))


def test_complex_to_real_warns() -> None:
    with pytest.warns(UserWarning, match="Casting complex values to real discards the imaginary part"):
        flambeau.tensor([1j]).to(flambeau.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert flambeau.tensor([1j]).to(flambeau.bool).tolist() == [True]


@given(st.data())
def test_copy_into_views(data: Any) -> None:
    """Targets and sources of any strides, sources broadcast."""
    shape = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    kinds = [data.draw(st.sampled_from(["float32", "int32", "bfloat16", "complex64"])) for _ in range(2)]
    order = data.draw(st.permutations(range(len(shape))))
    step = data.draw(st.integers(1, 2))
    source_shape = [1 if data.draw(st.booleans()) else n for n in shape]
    target = torch.zeros([n * step for n in shape], dtype=getattr(torch, kinds[0]))
    source = (
        torch.arange(1, 1 + int(torch.tensor(source_shape).prod()))
        .view(source_shape)
        .to(getattr(torch, kinds[1]))
    )
    ours = from_torch(target)
    views = []
    for t in (target, ours):
        view = t.permute(order)
        views.append(view[tuple(slice(None, None, step) for _ in shape)])
    source = source.expand(shape).permute(order)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        views[0].copy_(source)
        views[1].copy_(from_torch(source))
    same(ours, target)


CALLS = [
    "torch.zeros(3).copy_(torch.ones(2))", "torch.zeros(3).copy_(torch.ones(2, 3))", "torch.zeros(3).copy_(1)",
    "torch.zeros(3).copy_([1])", "torch.zeros(1).expand(3).copy_(torch.ones(3))", "torch.zeros(1).expand(3).fill_(1)",
    "torch.zeros(3).fill_(1+1j)", "torch.zeros(3, dtype=torch.int32).fill_(2.7)", "torch.zeros(3).fill_(torch.ones(1))",
    "torch.zeros(2, dtype=torch.int32).fill_(float('nan'))", "torch.zeros(2, dtype=torch.int8).fill_(300)",
    "torch.zeros(2, dtype=torch.int32).fill_(torch.tensor(2**40))", "torch.full((2,), 3)._version",
    "torch.ones(2).double()._version", "torch.ones(2, 2).t().clone()._version", "torch.zeros(2).fill_(1)._version",
    "torch.zeros(2).zero_()._version", "torch.zeros(2).copy_(torch.ones(2))._version", "torch.ones(2, 2).item()",
    "torch.ones(0).item()", "torch.tensor([[3]]).item()", "torch.tensor(2.5, dtype=torch.bfloat16).item()",
    "torch.tensor(1j).item()", "torch.tensor([[True], [False]]).tolist()", "torch.tensor(7).tolist()", "torch.zeros(2, 0).tolist()",
    "bool(torch.ones(2))", "bool(torch.ones(0))", "bool(torch.zeros(1, 1))", "float(torch.ones(2))", "int(torch.tensor([2.7]))",
    "complex(torch.tensor(2.))", "float(torch.tensor(1+1j))", "torch.tensor(2.).__index__()", "[1, 2, 3][torch.tensor(1)]",
    "len(torch.tensor(1))", "len(torch.ones(3, 2))", "torch.ones(2).type()", "torch.ones(2).type(torch.int32)",
    "torch.ones(2).type('torch.DoubleTensor')", "torch.ones(2).type('foo')", "torch.ones(2).type(int)",
    "torch.ones(2).type(torch.LongTensor)", "torch.ones(2).to(torch.int32)", "torch.ones(2).to('cpu')",
    "torch.ones(2).to('cpu', torch.int32)", "torch.ones(2).to(torch.ones(1, dtype=torch.int32))",
    "torch.ones(2).to(dtype=torch.int32, copy=True)", "torch.ones(2).to()", "torch.ones(2).to(int)", "torch.ones(2).to(None)",
    "torch.ones(2).to('int32')", "torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last).stride()",
    "torch.ones(2, 3, 4, 5).contiguous(memory_format=torch.channels_last).stride()",
    "torch.ones(2, 3, 4, 5).clone(memory_format=torch.channels_last).is_contiguous(memory_format=torch.channels_last)",
    "torch.ones(2, 3).t().clone().stride()", "torch.ones(2, 3).t().contiguous().stride()", "torch.ones(2, 3).t().double().stride()",
    "torch.ones(2, 1, 4).expand(2, 3, 4).clone().stride()", "torch.ones(2).get_device()", "torch.ones(2).is_pinned()",
    "torch.ones(2).resize_(2, 2).shape == (2, 2)", "torch.arange(6).resize_(2, 2)", "torch.ones(2).resize_as_(torch.ones(3, 1)).stride()",
    "torch.ones(2).nbytes", "torch.ones(2).itemsize", "torch.ones(2).is_cuda", "torch.ones(2).record_stream(None)",
    "torch.is_tensor(1)", "torch.is_tensor(torch.ones(1))", "torch.ones(2).double().type()", "torch.ones(2).to(torch.int32).dtype == torch.int32",
    "torch.ones(2).set_(torch.arange(6.).untyped_storage(), 2, (2,), (1,))", "torch.ones(2).set_(torch.arange(3.))",
    "torch.ones(2).untyped_storage().nbytes()", "len(torch.ones(2).untyped_storage())", "repr(torch.ones(2).untyped_storage())",
]  # fmt: skip


FORMATS = (
    "None",
    "torch.contiguous_format",
    "torch.preserve_format",
    "torch.channels_last",
    "torch.channels_last_3d",
)
CALLS += [
    f"{x}.{function}({size}memory_format={form}).stride()"
    for form in FORMATS
    for x in ("torch.ones(3, 2).t()", "torch.ones(2)", "torch.ones(1, 2, 3, 4, 1).transpose(1, 2)")
    for function, size in (
        ("resize_", "2, 3, "), ("resize_", "1, 3, 2, 4, 1, "), ("resize_", "2, 3, 2, 2, "),
        ("resize_as_", "torch.ones(2, 3), "), ("resize_as_", "torch.ones(2, 3).t().t(), "),
        ("resize_as_", "torch.ones(2, 3, 4, 5).contiguous(memory_format=torch.channels_last), "),
        ("resize_as_", "torch.ones(1, 3, 2, 4, 1).contiguous(memory_format=torch.channels_last_3d), "),
    )
]  # fmt: skip


@pytest.mark.parametrize("call", CALLS)
def test_calls(call: str) -> None:
    results = []
    for module in (flambeau, torch):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                results.append(eval(call, {"torch": module}))
            except Exception as error:
                results.append((type(error), str(error).split("\n")[0]))
    ours, theirs = results
    if isinstance(theirs, torch.Tensor):
        same(ours, theirs)
    else:
        assert ours == theirs


def test_to_returns_itself_when_nothing_changes() -> None:
    x = flambeau.ones(2)
    assert x.to("cpu") is x and x.float() is x and x.cpu() is x and x.contiguous() is x and x.to(x) is x
    assert x.to(flambeau.float32, copy=True) is not x and x.clone() is not x


def test_views_keep_their_counter_and_copies_do_not() -> None:
    x = flambeau.zeros(4)
    x[1:].fill_(2)
    assert x._version == 1 and x.clone()._version == 0


def test_overlapping_copy_is_refused() -> None:
    x = flambeau.arange(4)
    with pytest.raises(
        RuntimeError, match="some elements of the input tensor and the written-to tensor refer to a single"
    ):
        x[1:].copy_(x[:-1])
    assert x.tolist() == [0, 1, 2, 3]
