"""Tensors that reach beyond a storage that was made smaller: nothing reads, writes or hands on what is not there."""

from __future__ import annotations

import copy
import gc
import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import flambeau as torch

BEYOND = r"setStorage: sizes .* are out of bounds for storage of size 4"


@pytest.fixture(scope="module", autouse=True)
def thawed() -> Iterator[None]:
    """Undo conftest.py's freeze for this module: to find a frozen storage's tensors takes a whole collection each time."""
    gc.unfreeze()
    yield
    gc.collect()
    gc.freeze()


@pytest.mark.parametrize("fill", [
    lambda out: torch.exp(torch.ones(3), out=out),
    lambda out: torch.add(torch.ones(3), torch.ones(3), out=out),
    lambda out: torch.frexp(torch.ones(3), out=(out, torch.empty(0, dtype=torch.int32))),
    lambda out: out.resize_(3),
])  # fmt: skip
def test_a_tensor_of_its_own_memory_grows_without_a_search_for_others(fill: Any, monkeypatch: Any) -> None:
    out, searches = torch.empty(0), []
    monkeypatch.setattr(gc, "get_referrers", lambda *of: searches.append(of) or [])
    fill(out)
    assert out.shape == (3,) and not searches


@pytest.fixture(params=["cpu", "cuda", "pinned"])
def where(request: pytest.FixtureRequest) -> Iterator[str]:
    with torch.virtual(devices=2):
        yield request.param


def new(where: str, n: int = 10) -> Any:
    x = torch.arange(float(n)).reshape(2, n // 2)
    return x.pin_memory() if where == "pinned" else x.to(where)


def cut(where: str) -> Any:
    x = new(where)
    x.untyped_storage().resize_(4)
    return x


READS: dict[str, Any] = {
    "add": lambda x: x + 1, "binary": lambda x: x + x, "unary": lambda x: x.exp(), "sum": lambda x: x.sum(), "clone": lambda x: x.clone(),
    "matmul": lambda x: x @ x.t(), "linear": lambda x: torch.nn.functional.linear(x, x.new_ones(3, 5)), "compare": lambda x: x == 1,
    "tolist": lambda x: x.tolist(), "print": str, "cpu": lambda x: x.to("cpu", copy=True), "cuda": lambda x: x.to("cuda:1"),
    "dtype": lambda x: x.double(), "item of a view": lambda x: x.reshape(10)[9].item(), "foreach": lambda x: torch._foreach_add([x], 1),
    "cat": lambda x: torch.cat([x, x]), "index": lambda x: x[torch.tensor([0], device=x.device)], "dlpack": lambda x: x.__dlpack__(),
    "expand": lambda x: x.expand(3, 2, 5), "part": lambda x: x[1], "narrow": lambda x: x.narrow(0, 1, 1), "as_strided": lambda x: x.as_strided((10,), (1,)),
    "copy": copy.copy, "equal": lambda x: torch.equal(x, x.new_ones(2, 5)), "where": lambda x: torch.where(x.new_ones(2, 5) > 0, x, 0),
    "out of others": lambda x: x.new_ones(2, 5).copy_(x), "chunk": lambda x: x.chunk(2), "viewed": lambda x: x.view(5, 2) + 1,
    "transposed": lambda x: x.t() + 1, "detached": lambda x: x.detach() + 1, "data": lambda x: x.data + 1, "contiguous": lambda x: x.t().contiguous(),
    "rows": lambda x: torch.nn.utils.rnn.pack_padded_sequence(x, [5, 5], batch_first=True),
}  # fmt: skip
WRITES: dict[str, Any] = {
    "fill_": lambda x: x.fill_(3), "zero_": lambda x: x.zero_(), "copy_": lambda x: x.copy_(x.new_ones(2, 5)), "add_": lambda x: x.add_(1),
    "from the host": lambda x: x.copy_(torch.ones(2, 5)), "from a device": lambda x: x.copy_(torch.ones(2, 5, device="cuda:1")),
    "out": lambda x: torch.add(x.new_ones(2, 5), 1, out=x), "item": lambda x: x.__setitem__((1, 4), 3), "uniform_": lambda x: x.uniform_(),
    "foreach": lambda x: torch._foreach_add_([x], 1), "from another dtype": lambda x: x.copy_(torch.ones(2, 5, dtype=torch.int64)),
    "expanded": lambda x: x.view(2, 5, 1).detach().fill_(1), "out of another dtype": lambda x: torch.add(x.new_ones(2, 5).double(), 1, out=x),
}  # fmt: skip


@pytest.mark.parametrize("name", [*READS, *WRITES])
def test_reading_and_writing_raise(where: str, name: str) -> None:
    x = cut(where)
    with pytest.raises(RuntimeError, match=BEYOND):
        {**READS, **WRITES}[name](x)
    if where == "cuda":
        torch.cuda.synchronize()  # nothing was launched that breaks the device


def test_numpy_and_other_exports_raise() -> None:
    x = cut("cpu")
    for call in (
        x.numpy,
        x.__array__,
        lambda: np.asarray(x),
        lambda: x.detach().numpy(),
        lambda: torch.from_dlpack(x),
    ):
        with pytest.raises(RuntimeError, match=BEYOND):
            call()


def test_arrays_that_were_exported_before_keep_the_memory() -> None:
    x = torch.arange(10)
    array, other = x.numpy(), torch.from_dlpack(x)
    x.untyped_storage().resize_(4)
    gc.collect()
    assert array.tolist() == other.tolist() == list(range(10))


def test_what_needs_no_memory_still_works(where: str) -> None:
    x = cut(where)
    assert (
        x.shape == (2, 5)
        and x.stride() == (5, 1)
        and x.nbytes == 40
        and x.is_contiguous()
        and x.storage_offset() == 0
    )
    assert x.untyped_storage().nbytes() == 4 and x.data_ptr() == x.untyped_storage().data_ptr()
    assert (
        x.view(10).shape == (10,)
        and x.t().shape == (5, 2)
        and x.detach().shape == (2, 5)
        and x.unsqueeze(0).shape == (1, 2, 5)
    )
    assert (x[:0] + 1).shape == (0, 5) and torch.empty_like(x).shape == (2, 5)
    assert x.view(10)[:1].tolist() == [0] and x.view(10)[0] == 0  # within the four bytes
    assert x.set_(x.new_ones(3)).tolist() == [1, 1, 1]


def test_all_tensors_over_the_storage_are_whole_when_it_grows(where: str) -> None:
    x = new(where)
    tensors = [x, x[1], x.view(10), x.t(), x.detach(), x.view(torch.int32)]
    x.untyped_storage().resize_(20)
    assert tensors[5][0].shape == (5,) and x[0].shape == (5,)  # these lie within
    for t in tensors:
        with pytest.raises(RuntimeError, match="out of bounds for storage of size 20"):
            t + 1
    tensors.append(x.reshape(5, 2))  # made meanwhile
    x.untyped_storage().resize_(40)
    assert [(t + 1).shape for t in tensors] == [t.shape for t in tensors]
    assert x[0].tolist() == [0, 1, 2, 3, 4]
    x.copy_(torch.ones(2, 5))
    assert x.sum() == 10 and tensors[-1].sum() == 10


def test_emptied_storages_come_back(where: str) -> None:
    """As programs that shard parameters do."""
    x = new(where)
    flat = x.view(10)
    for _ in range(3):
        x.untyped_storage().resize_(0)
        with pytest.raises(RuntimeError, match="out of bounds for storage of size 0"):
            x + 1
        x.untyped_storage().resize_(40)
        flat.copy_(torch.arange(10.0))
        assert x[1].tolist() == [5, 6, 7, 8, 9]


def test_parts_within_stay_whole(where: str) -> None:
    x = new(where)
    within, beyond = x.view(10)[:4], x.view(10)[4:]
    x.untyped_storage().resize_(16)
    assert (within * 2).tolist() == [0, 2, 4, 6]
    with pytest.raises(RuntimeError, match="storage offset 4, and itemsize 4 requiring a storage size of 40"):
        beyond * 2


def test_what_backward_needs_raises_too(where: str) -> None:
    x = new(where).requires_grad_()
    y = (x * x).sum()
    x.untyped_storage().resize_(4)
    with pytest.raises(RuntimeError, match=BEYOND):
        y.backward()
    x.untyped_storage().resize_(40)
    with torch.no_grad():
        x.detach().fill_(3)


def test_resize_of_the_tensor_makes_it_whole(where: str) -> None:
    x = cut(where)
    assert x.resize_(2, 5) is x and x.untyped_storage().nbytes() == 4  # as in PyTorch
    assert x.resize_(10).fill_(2).sum() == 20 and x.untyped_storage().nbytes() == 40


def test_a_saved_one_does_not_load() -> None:
    file = io.BytesIO()
    torch.save(cut("cpu"), file)
    file.seek(0)
    with pytest.raises(RuntimeError, match=BEYOND):
        torch.load(file)


def test_collectives_refuse_it() -> None:
    from flambeau.distributed.collectives import collective_checks

    for call in (
        lambda: collective_checks.single(cut("cpu"), "tensor"),
        lambda: collective_checks.tensor_list([cut("cpu")], "tensors"),
    ):
        with pytest.raises(RuntimeError, match=BEYOND):
            call()


def test_plans_of_calls_are_not_used_for_it(where: str) -> None:
    """The same call ran before, so that all caches have its plan."""
    x, y = new(where), new(where)
    for call in READS.values():
        call(x)
    x.untyped_storage().resize_(4)
    for name, call in READS.items():
        with pytest.raises(RuntimeError, match=BEYOND):
            call(x)
        call(y), name
