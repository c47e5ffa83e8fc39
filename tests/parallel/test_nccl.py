"""`torch.cuda.nccl`: collectives over the GPUs of one process, against NumPy; what they refuse, what they order."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from gpus import either, gpus, needs, simulated

import flambeau as torch
from flambeau.cuda import nccl

pytestmark = either

DTYPES = ["float32", "float64", "float16", "bfloat16", "int8", "uint8", "int32", "int64", "bool", "complex64"]
OPS = {0: np.add, 1: np.multiply, 2: np.maximum, 3: np.minimum}


@pytest.fixture(autouse=True)
def two_gpus() -> Iterator[None]:
    with gpus(devices=2):
        needs(2)
        yield


def pair(dtype: str, shape: tuple[int, ...] = (8,), seed: int = 0) -> tuple[list[Any], list[np.ndarray]]:
    """A tensor of small whole numbers on each GPU, and the same as float64, complex128 or bool."""
    rng = np.random.default_rng(seed)
    kind = {"bool": np.bool_, "complex64": np.complex128}.get(dtype, np.float64)
    whole = [rng.integers(0, 2 if dtype == "bool" else 4, shape).astype(kind) for _ in range(2)]
    if dtype == "complex64":
        whole = [x + 1j * rng.integers(0, 4, shape) for x in whole]
    tensors = [torch.tensor(x).to(getattr(torch, dtype)).to(f"cuda:{i}") for i, x in enumerate(whole)]
    return tensors, whole


def same(tensor: Any, want: np.ndarray) -> bool:
    got = tensor.cpu().to(torch.complex128 if tensor.is_complex() else torch.float64).numpy()
    return got.shape == want.shape and bool((got == want).all())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", OPS)
def test_reductions(dtype: str, op: int) -> None:
    if dtype == "complex64" and op:
        tensors, _ = pair(dtype)
        with pytest.raises(RuntimeError, match="complex64"):
            nccl.all_reduce(tensors, op=op)
            torch.cuda.synchronize()
        return
    tensors, whole = pair(dtype, (2, 4))
    want = OPS[op](*whole)
    outs = [torch.empty_like(t) for t in tensors]
    nccl.all_reduce(tensors, outs, op)
    assert all(same(t, x) for t, x in zip(tensors, whole, strict=True)) and all(same(t, want) for t in outs)
    parts = [torch.empty(4, dtype=t.dtype, device=t.device) for t in tensors]
    nccl.reduce_scatter(tensors, parts, op)
    assert same(parts[0], want[0]) and same(parts[1], want[1])
    nccl.reduce(tensors, root=1, op=op)
    assert same(tensors[0], whole[0]) and same(tensors[1], want)


@pytest.mark.parametrize("dtype", [*DTYPES, "int16", "float8_e5m2", "complex128"])
def test_moves_take_every_dtype(dtype: str) -> None:
    tensors, whole = pair(dtype if dtype != "complex128" else "complex64")
    tensors = [t.to(getattr(torch, dtype)) for t in tensors]
    outs = [torch.empty(2, 8, dtype=t.dtype, device=t.device) for t in tensors]
    nccl.all_gather(tensors, outs)
    assert all(same(t, np.stack(whole)) for t in outs)
    nccl.broadcast(tensors, root=1)
    assert all(same(t, whole[1]) for t in tensors)


def test_the_mean_and_reductions_in_place() -> None:
    tensors, whole = pair("float32")
    before = [t._version for t in tensors]
    nccl.all_reduce(tensors, op=4)
    assert all(same(t, (whole[0] + whole[1]) / 2) for t in tensors)
    assert [t._version for t in tensors] == [v + 1 for v in before]
    out = torch.zeros(8, device="cuda:0")
    nccl.reduce(tensors, out)
    assert same(out, whole[0] + whole[1])


def test_it_runs_on_the_current_streams_or_those_given() -> None:
    streams = [torch.cuda.Stream(i) for i in range(2)]
    tensors, whole = pair("float32", (1 << 16,))
    torch.cuda.synchronize()
    for t, stream in zip(tensors, streams, strict=True):
        stream.wait_stream(torch.cuda.current_stream(t.device))
        with torch.cuda.stream(stream):
            torch.cuda._sleep(20_000_000)
            t.mul_(2)
    nccl.all_reduce(tensors, streams=streams)
    for t, stream in zip(tensors, streams, strict=True):
        torch.cuda.current_stream(t.device).wait_stream(stream)
    assert all(same(t, 2 * (whole[0] + whole[1])) for t in tensors)
    with pytest.raises(RuntimeError, match=r"^number of streams is not equal to number of inputs$"):
        nccl.all_reduce(tensors, streams=streams[:1])
    with pytest.raises(RuntimeError, match="Expected a stream of cuda:0, but got one of"):
        nccl.all_reduce(tensors, streams=streams[::-1])


@simulated
def test_work_of_another_stream_that_nobody_orders_is_a_race() -> None:
    with torch.virtual(devices=2, races="error"):
        tensors, _ = pair("float32")
        nccl.all_reduce(tensors)
        with torch.cuda.stream(torch.cuda.Stream(1)), pytest.raises(torch.RaceError, match="all_reduce"):
            tensors[1] + 1


@simulated
def test_what_came_before_any_part_is_ordered_before_what_follows_each() -> None:
    with torch.virtual(devices=2, races="error"):
        tensors, _ = pair("float32")
        before = torch.full((4,), 3.0, device="cuda:1")
        nccl.all_reduce(tensors)
        other = torch.cuda.Stream(1)
        other.wait_stream(torch.cuda.current_stream(0))
        with torch.cuda.stream(other):
            assert (before + 1).tolist() == [4] * 4
            with pytest.raises(
                torch.RaceError, match="all_reduce"
            ):  # device 1 may write on when device 0 is done
                tensors[1] + 0


def test_members_of_several_threads_join_by_an_id() -> None:
    tensors, whole = pair("float32")
    unique, failures = nccl.unique_id(), []
    assert len(unique) == 128 and unique != nccl.unique_id()

    def member(rank: int) -> None:
        try:
            torch.cuda.set_device(rank)
            comm = nccl.init_rank(2, unique, rank)
            nccl.all_reduce([tensors[rank]], comms=[comm])
            nccl.broadcast([tensors[rank]], 1, comms=[comm])
            torch.cuda.synchronize()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=member, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures and all(same(t, whole[0] + whole[1]) for t in tensors)


def test_available_for_contiguous_tensors_each_on_its_own_gpu() -> None:
    tensors, _ = pair("float32", (4, 4))
    assert nccl.is_available(tensors) and nccl.is_available(tensors[:1])
    assert not nccl.is_available([tensors[0], tensors[0]])
    assert not nccl.is_available([tensors[0], tensors[1].t()])
    assert not nccl.is_available([tensors[0], torch.zeros(4)])
    assert nccl.version() >= (2, 24) and len(nccl.version()) == 3


def test_refusals_change_nothing() -> None:
    tensors, whole = pair("float32")
    a, b = tensors
    refused = [
        ("inputs should be a collection of tensors", TypeError, lambda: nccl.all_reduce(a)),
        ("input sequence can't be empty", RuntimeError, lambda: nccl.all_reduce([])),
        ("inputs must be on unique devices", RuntimeError, lambda: nccl.all_reduce([a, a])),
        ("have to be cuda dense Tensors", RuntimeError, lambda: nccl.all_reduce([a, b.cpu()])),
        ("must be of the same Tensor dtype", RuntimeError, lambda: nccl.all_reduce([a, b.double()])),
        ("must be contiguous", RuntimeError, lambda: nccl.all_reduce([a[::2], b[::2]])),
        ("the same number of elements", RuntimeError, lambda: nccl.broadcast([a, b[:4]])),
        ("have to be of the same length", RuntimeError, lambda: nccl.all_reduce([a, b], [a])),
        ("must be on the same device", RuntimeError, lambda: nccl.all_reduce([a, b], [b, a])),
        ("output must be of size", RuntimeError, lambda: nccl.all_gather([a, b], [a, b])),
        ("output must be of size", RuntimeError, lambda: nccl.reduce_scatter([a, b], [a, b])),
        ("invalid root", RuntimeError, lambda: nccl.broadcast([a, b], root=2)),
        ("invalid argument: there is no op 9", RuntimeError, lambda: nccl.all_reduce([a, b], op=9)),
        ("number of communicators", RuntimeError, lambda: nccl.all_reduce([a, b], comms=[None])),
        ("can not be both specified", ValueError, lambda: nccl.reduce([a, b], a, outputs=[a, b])),
    ]
    for text, kind, call in refused:
        with pytest.raises(kind, match=f"(?i){text}"):
            call()
    assert all(same(t, x) for t, x in zip(tensors, whole, strict=True))


def test_the_old_form_of_reduce_warns_and_works() -> None:
    tensors, whole = pair("float32")
    outs = [torch.zeros_like(t) for t in tensors]
    with pytest.warns(FutureWarning, match="output tensor list is deprecated"):
        nccl.reduce(tensors, outs, 1)
    assert same(outs[1], whole[0] + whole[1]) and not outs[0].any()
