"""SPEC N: communication collectives, torch.cuda.comm."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from gpus import either, gpus, simulated

import flambeau as torch
from flambeau.cuda import comm

pytestmark = either


@pytest.fixture(autouse=True)
def gpus_4() -> Iterator[None]:
    with gpus(devices=4):
        yield


WHERE = ["cpu", "cuda:0", "cuda:3"]


@pytest.mark.parametrize("where", WHERE)
def test_n01_broadcast_to_devices(where: str) -> None:
    x = torch.arange(6.0, device=where).reshape(2, 3).t()
    copies = comm.broadcast(x, [0, "cuda:1", torch.device("cuda:2"), 1])
    assert isinstance(copies, tuple) and [c.get_device() for c in copies] == [0, 1, 2, 1]
    assert all(c.tolist() == x.tolist() for c in copies)
    copies[1].zero_()
    assert x.sum() == 15 and copies[3].sum() == 15
    with pytest.raises(ValueError, match="Expected a cuda device, but got: cpu"):
        comm.broadcast(x, ["cpu"])
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        comm.broadcast(x, [9])


@pytest.mark.parametrize("where", WHERE)
def test_n02_broadcast_out(where: str) -> None:
    x = torch.arange(3.0, device=where)
    out = [torch.zeros(3, device=f"cuda:{i}") for i in (0, 2)]
    result = comm.broadcast(x, out=out)
    assert isinstance(result, tuple) and all(a is b for a, b in zip(result, out, strict=True))
    assert [t.tolist() for t in out] == [[0, 1, 2]] * 2
    good = torch.zeros(3, device="cuda:1")
    with pytest.raises(RuntimeError, match=r"be CUDA tensors, but output tensor at index 1 has device 'cpu'"):
        comm.broadcast(x, out=[good, torch.zeros(3)])
    with pytest.raises(
        RuntimeError,
        match=r"shape as the source tensor \[3\], but output tensor at index 1 has shape \[3, 1\]",
    ):
        comm.broadcast(x, out=[good, torch.zeros(3, 1, device="cuda:1")])
    assert good.tolist() == [0, 0, 0]


def test_n03_exactly_one_of_devices_and_out() -> None:
    x = torch.ones(2)
    for devices, out in ((None, None), ([0], [torch.ones(2, device="cuda:0")])):
        with pytest.raises(RuntimeError, match="Exactly one of 'devices' and 'out' must be specified"):
            comm.broadcast(x, devices, out=out)


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("buffer_size", [1, 40, 10485760])
def test_n04_n06_broadcast_coalesced(where: str, buffer_size: int) -> None:
    kinds = [torch.float32, torch.int64, torch.float32, torch.bool, torch.float32]
    tensors = [torch.arange(i * 2).reshape(2, i).to(kind).to(where) for i, kind in enumerate(kinds)]
    copies = comm.broadcast_coalesced(tensors, [0, 1, 3], buffer_size)
    assert len(copies) == 3
    for index, found in zip((0, 1, 3), copies, strict=True):
        assert [t.get_device() for t in found] == [index] * 5
        assert [t.dtype for t in found] == kinds
        assert [t.tolist() for t in found] == [t.tolist() for t in tensors]
    found = copies[1]
    before = found[4]._version
    found[2].add_(1)
    assert found[4]._version == before, "parts of a buffer change apart from each other"
    assert tensors[2].tolist() == [[0, 1], [2, 3]]


def copies_queued(run) -> int:
    machine = torch.virtual(devices=2)
    with machine:
        kinds: list[str] = []
        tensors = [torch.ones(100, device="cuda:0") for _ in range(8)]
        comm.broadcast(torch.ones(1, device="cuda:0"), [0, 1])  # the pair meets
        torch.cuda.synchronize(0)
        machine.driver.on_command = lambda record: kinds.append(record.kind)
        run(tensors)
        torch.cuda.synchronize(0)
        return kinds.count("copy")


@simulated
def test_n04_small_tensors_travel_in_one_buffer() -> None:
    assert copies_queued(lambda tensors: comm.broadcast_coalesced(tensors, [0, 1])) == 1
    assert copies_queued(lambda tensors: comm.broadcast_coalesced(tensors, [0, 1], 800)) == 4
    assert copies_queued(lambda tensors: [comm.broadcast(t, [0, 1]) for t in tensors]) == 8


def test_n05_one_device() -> None:
    with pytest.raises(RuntimeError, match="must be on one device, but got tensors on cuda:0, cuda:1"):
        comm.broadcast_coalesced([torch.ones(2, device=f"cuda:{i}") for i in range(2)], [0, 1])
    with pytest.raises(ValueError, match="buffer_size must be positive, got 0"):
        comm.broadcast_coalesced([torch.ones(2)], [0, 1], 0)


def test_n07_reduce_add() -> None:
    inputs = [torch.full((2, 2), 10.0**i, device=f"cuda:{i}") for i in range(4)]
    total = comm.reduce_add(inputs)
    assert total.device == torch.device("cuda:0") and total.tolist() == [[1111] * 2] * 2
    assert comm.reduce_add(inputs, 2).device == torch.device("cuda:2")
    with torch.cuda.device(3):
        assert comm.reduce_add(inputs).device == torch.device("cuda:3")
    assert [t.flatten()[0].item() for t in inputs] == [1, 10, 100, 1000]
    assert comm.reduce_add(inputs[1:2], "cuda:1") is inputs[1]
    with pytest.raises(RuntimeError, match="expects destination to be on the same GPU with one of the tens"):
        comm.reduce_add(inputs[1:], 0)


def test_n08_inputs_match() -> None:
    x, y = torch.ones(2, 3, device="cuda:0"), torch.ones(3, 2, device="cuda:1")
    with pytest.raises(ValueError, match="input 1 has invalid size: got 3x2, but expected 2x3"):
        comm.reduce_add([x, y])
    with pytest.raises(RuntimeError, match="expects one dtype"):
        comm.reduce_add([x, y.t().double()])
    with pytest.raises(AssertionError, match="expects all inputs to be on GPUs, but input 1 is on CPU"):
        comm.reduce_add([x, y.t().cpu()])
    half = comm.reduce_add([t.half() for t in (x, y.t())], 1)
    assert half.dtype is torch.float16 and half.shape == (2, 3)


@pytest.mark.parametrize("buffer_size", [1, 30, 10485760])
def test_n07_reduce_add_coalesced(buffer_size: int) -> None:
    kinds = [torch.float32, torch.int64, torch.float32]
    lists = [
        [torch.full((2, j), 10**i, dtype=kind, device=f"cuda:{i}") for j, kind in enumerate(kinds)]
        for i in range(3)
    ]
    sums = comm.reduce_add_coalesced(lists, 1, buffer_size)
    assert [s.dtype for s in sums] == kinds and {s.get_device() for s in sums} == {1}
    assert [s.tolist() for s in sums] == [[[], []], [[111]] * 2, [[111] * 2] * 2]
    with pytest.raises(ValueError, match="lists of one length"):
        comm.reduce_add_coalesced([lists[0], lists[1][:1]])
    with pytest.raises(ValueError, match="of the same shapes"):
        comm.reduce_add_coalesced([[t.t() for t in lists[0]], lists[1], lists[2]])


@pytest.mark.parametrize("where", WHERE)
def test_n09_n11_scatter_in_equal_chunks(where: str) -> None:
    x = torch.arange(24.0, device=where).reshape(4, 6)
    for dim in (0, 1, -1):
        chunks = comm.scatter(x, [0, 1, 2], dim=dim)
        assert [c.get_device() for c in chunks] == [0, 1, 2][: len(chunks)]
        assert [c.tolist() for c in chunks] == [c.tolist() for c in x.chunk(3, dim)]
    with pytest.raises(IndexError, match="Dimension out of range"):
        comm.scatter(x, [0, 1], dim=2)


def test_n10_chunk_sizes() -> None:
    x = torch.arange(10)
    chunks = comm.scatter(x, [0, 1, 0], [1, 7, 2])
    assert [c.tolist() for c in chunks] == [[0], [*range(1, 8)], [8, 9]]
    with pytest.raises(RuntimeError, match=r"len\(devices\) = 2 and len\(chunk_sizes\) = 3"):
        comm.scatter(x, [0, 1], [1, 7, 2])
    with pytest.raises(RuntimeError, match="split_with_sizes expects split_sizes to sum exactly to 10"):
        comm.scatter(x, [0, 1], [1, 7])


@pytest.mark.parametrize("where", ["pinned", "cuda:3"])
def test_n12_streams_order_the_copies(where: str) -> None:
    x = torch.arange(4 << 20)
    x = x.pin_memory() if where == "pinned" else x.to(where)
    streams = [torch.cuda.Stream(0), None]
    default = torch.cuda.current_stream(0)
    torch.cuda.synchronize(0), torch.cuda.synchronize(3)
    with torch.cuda.stream(streams[0] if where == "pinned" else torch.cuda.current_stream(3)):
        torch.cuda._sleep(10**8)
    with torch.cuda.device(2):
        chunks = comm.scatter(x, [0, 1], streams=streams)
        assert torch.cuda.current_device() == 2
    assert not streams[0].query() and default.query()
    default.wait_stream(streams[0])
    assert [c[0].item() for c in chunks] == [0, 2 << 20]
    assert torch.cuda.current_stream(0) == default
    with pytest.raises(
        RuntimeError,
        match=r"the stream at index 1 \(was 0\) to match the device supplied at that index \(exp",
    ):
        comm.scatter(x, [0, 1], streams=[None, streams[0]])


@pytest.mark.parametrize("where", WHERE)
def test_n13_scatter_out(where: str) -> None:
    x = torch.arange(10.0, device=where).reshape(2, 5)
    out = [torch.zeros(2, n, device=f"cuda:{i}") for i, n in enumerate((1, 4))]
    result = comm.scatter(x, out=out, dim=1)
    assert all(a is b for a, b in zip(result, out, strict=True))
    assert [t.tolist() for t in out] == [[[0], [5]], [[1, 2, 3, 4], [6, 7, 8, 9]]]
    for bad, text in (
        ([torch.zeros(2, 5)], "be CUDA tensors, but output tensor at index 0 has device 'cpu'"),
        ([torch.zeros(5, device="cuda")], "incorrect number of dimensions: expected 2, but got 1"),
        ([torch.zeros(1, 5, device="cuda")], r"incorrect shape: expected \[2, 5\], but got \[1, 5\]"),
        ([out[0]], "along scatter dim 1 does not match: expected 5, but got 1"),
        ([], "Expected at least one output tensor to scatter to"),
    ):
        with pytest.raises(RuntimeError, match=text):
            comm.scatter(x, out=bad, dim=1)


def test_n14_n15_what_excludes_out() -> None:
    x, out = torch.ones(2), [torch.ones(2, device="cuda:0")]
    with pytest.raises(RuntimeError, match="Exactly one of 'devices' and 'out'"):
        comm.scatter(x)
    with pytest.raises(RuntimeError, match="'devices' must not be specified when 'out' is specified"):
        comm.scatter(x, [0], out=out)
    with pytest.raises(RuntimeError, match="'chunk_sizes' must not be specified when 'out' is specified"):
        comm.scatter(x, chunk_sizes=[2], out=out)
    with pytest.raises(RuntimeError, match="Expected at least one device to scatter to"):
        comm.scatter(x, [])


def test_n16_n17_gather() -> None:
    parts = [torch.full((2, n), float(n), device=f"cuda:{n}") for n in (1, 3, 2)]
    whole = comm.gather(parts, 1)
    assert whole.device == torch.device("cuda:0")
    assert whole.tolist() == [[1, 3, 3, 3, 2, 2]] * 2
    assert comm.gather((p.t() for p in parts), -2, "cuda:2").shape == (6, 2)
    with pytest.raises(RuntimeError, match=r"at index 1 has invalid shape \[2, 3\], but expected \[2, 1\]"):
        comm.gather(parts, 0)
    with pytest.raises(RuntimeError, match=r"tensor at index 1 has 1 dimensions, \(expected 2\)"):
        comm.gather([parts[0], parts[1][0]])
    with pytest.raises(RuntimeError, match="Expected at least one tensor to gather from"):
        comm.gather([])
    with pytest.raises(RuntimeError, match="be CUDA tensors, but tensor at index 0 has device 'cpu'"):
        comm.gather([torch.ones(2)])


def test_n16_scalars_have_nothing_to_be_joined_along() -> None:
    scalars = [torch.ones((), device=f"cuda:{i}") for i in range(2)]
    with pytest.raises(
        RuntimeError, match=r"zero-dimensional tensor \(at position 0\) cannot be concatenated"
    ):
        comm.gather(scalars)


def test_n18_destinations() -> None:
    parts = [torch.ones(2, device=f"cuda:{i}") for i in range(2)]
    with torch.cuda.device(3):
        assert comm.gather(parts).device == torch.device("cuda:3")
    for where in ("cpu", torch.device("cpu"), "cuda:1", 2):
        expected = torch.device("cuda", where) if isinstance(where, int) else torch.device(where)
        assert comm.gather(parts, destination=where).device == expected
    with pytest.warns(FutureWarning, match="Using -1 to represent CPU tensor is deprecated"):
        assert comm.gather(parts, destination=-1).device == torch.device("cpu")


@pytest.mark.parametrize("where", WHERE)
def test_n19_n20_gather_out(where: str) -> None:
    parts = [torch.full((1, 2), float(i), device=f"cuda:{i}") for i in range(3)]
    out = torch.empty(3, 2, device=where)
    assert comm.gather(parts, out=out) is out
    assert out.tolist() == [[0, 0], [1, 1], [2, 2]]
    with pytest.raises(RuntimeError, match=r"out tensor to have shape \[3, 2\], but got \[2, 3\]"):
        comm.gather(parts, out=out.t())
    with pytest.raises(RuntimeError, match="'destination' must not be specified when 'out' is specified"):
        comm.gather(parts, destination=0, out=out)
