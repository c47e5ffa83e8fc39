"""A host without memory or address space is named as such; no virtual GPU fails with a device-side assert."""

from __future__ import annotations

import errno
import gc
import mmap
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flambeau
from flambeau.core.host import array_grants, host_memory
from flambeau.core.host.host_memory import address_space_left, is_shortage

# The child opens a virtual GPU, limits its address space, and then computes with it until it fails.
CHILD = """
import resource, sys
import flambeau as torch

work = {
    "matmul": lambda x: x @ x,
    "svd": lambda x: torch.linalg.svdvals(x[:400, :400]),
    "fft": lambda x: torch.fft.fft(x).abs(),
    "special": lambda x: torch.special.zeta(x + 2, x + 1),
    "nn": lambda x: torch.nn.functional.conv2d(x[None, None], x[None, None, :3, :3]),
}[sys.argv[2]]
with torch.virtual(1):
    torch.ones(8, device="cuda").sum().item()
    used = int(open("/proc/self/statm").read().split()[0]) * 4096
    resource.setrlimit(resource.RLIMIT_AS, (used + int(sys.argv[1]) * 2**20,) * 2)
    try:
        x = torch.ones(2048, 2048, device="cuda")
        for _ in range(3):
            work(x).sum().item()
        print("done")
    except (torch.HostMemoryError, torch.cuda.OutOfMemoryError) as error:
        print("named", error)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="address space is limited on Linux")
@pytest.mark.parametrize("mib", [2, 40, 140, 400])
@pytest.mark.parametrize("work", ["matmul", "svd", "fft", "special", "nn"])
def test_work_without_address_space_names_the_host(mib: int, work: str) -> None:
    child = subprocess.run(
        [sys.executable, "-c", CHILD, str(mib), work], capture_output=True, text=True, timeout=100
    )
    assert child.returncode == 0, child.stderr
    assert child.stdout.startswith(("named", "done")), child.stdout
    assert "device-side assert" not in child.stdout
    if mib == 2:
        assert "bytes of address space" in child.stdout
        assert "Fix: raise the limit (ulimit -v)" in child.stdout


def test_refused_reservations_name_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **given: Any) -> Any:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(mmap, "mmap", refuse)
    words = r"refuses to reserve [\d,]+ bytes.*Fix: raise the limit"
    with pytest.raises(flambeau.HostMemoryError, match=words), flambeau.virtual(1, profile="v100-16g"):
        flambeau.ones(3, device="cuda")
        flambeau.cuda.synchronize()


CLOSED_MACHINES = """
import gc, resource
import flambeau as torch

gc.disable()  # as in a process with so many objects that collections are rare
used = int(open("/proc/self/statm").read().split()[0]) * 4096
resource.setrlimit(resource.RLIMIT_AS, (used + (256 << 30),) * 2)
for _ in range(12):
    with torch.virtual(1, profile="v100-16g"):
        held = [torch.ones(8, device="cuda")]
        held.append(held)
        print(held[0].sum().item())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="address space is limited on Linux")
def test_addresses_of_closed_machines_are_used_again() -> None:
    child = subprocess.run(
        [sys.executable, "-c", CLOSED_MACHINES], capture_output=True, text=True, timeout=100
    )
    assert child.returncode == 0, child.stderr
    assert child.stdout.split() == ["8.0"] * 12


def _compute() -> None:
    flambeau.ones(8, device="cuda").mul_(2).sum().item()


def _differentiate() -> None:
    flambeau.ones(8, device="cuda", requires_grad=True).exp().sum().backward()
    flambeau.cuda.synchronize()


def _replay() -> None:
    x, graph = flambeau.ones(8, device="cuda"), flambeau.cuda.CUDAGraph()
    with flambeau.cuda.graph(graph):
        x.mul_(2)
    graph.replay()
    flambeau.cuda.synchronize()


def _copy_to_peer() -> None:
    flambeau.ones(8).pin_memory().to("cuda", non_blocking=True).to("cuda:1").cpu()


def _fail() -> None:
    with pytest.raises(RuntimeError):
        flambeau.ones(8, device="cuda")[flambeau.tensor([9], device="cuda")].cpu()


@pytest.mark.skipif(sys.platform != "linux", reason="the size of the address space is Linux's")
@pytest.mark.parametrize("races", ["off", "warn"])
@pytest.mark.parametrize("program", [_compute, _differentiate, _replay, _copy_to_peer, _fail])
def test_closed_machine_returns_its_addresses_without_a_collection(
    program: Callable[[], None], races: str
) -> None:
    def reserved() -> int:
        return int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE

    gc.disable()
    try:
        with flambeau.virtual(2, races=races):
            before = reserved()
            program()
            grown = reserved() - before
        assert grown > 1 << 38 > reserved() - before
    finally:
        gc.enable()


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("no memory"),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        ImportError("lib.so: failed to map segment from shared object"),
        RuntimeError("can't start new thread"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_commands_that_meet_a_shortage_name_the_host(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any) -> Any:
        raise error

    monkeypatch.setattr(np.linalg, "svd", fail)
    words = "host had no memory to compute 'linalg_svd'"
    with flambeau.virtual(1), pytest.raises(flambeau.HostMemoryError, match=words):
        flambeau.linalg.svd(flambeau.ones(2, 2, device="cuda"))
        flambeau.cuda.synchronize()


def test_the_device_works_after_a_shortage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work that was enqueued before the error was raised has no effect, because it may read lost results."""

    def fail(*args: Any) -> Any:
        raise MemoryError

    with flambeau.virtual(1):
        x = flambeau.ones(2, 2, device="cuda")
        before = flambeau.cuda.memory_allocated()
        side = flambeau.cuda.Stream()
        with monkeypatch.context() as patch, pytest.raises(flambeau.HostMemoryError, match="later work runs"):
            patch.setattr(np.linalg, "svd", fail)
            flambeau.linalg.svd(x)
            x.add_(1)
            side.wait_stream(flambeau.cuda.current_stream())
            with flambeau.cuda.stream(side):
                x.add_(1)
            flambeau.cuda.current_stream().synchronize()
        flambeau.cuda.synchronize()
        assert x.sum().item() == 4 and flambeau.linalg.svdvals(x)[0].item() == pytest.approx(2)
        assert flambeau.cuda.memory_allocated() == before


LARGE = {
    "topk": lambda x, n: x.topk(2),
    "sum": lambda x, n: x.sum(),
    "nonzero": lambda x, n: x.nonzero(),
    "one_hot": lambda x, n: flambeau.nn.functional.one_hot(n),
    "quantile": lambda x, n: x.quantile(0.5),
    "index_add": lambda x, n: flambeau.zeros(3, device=x.device).index_add_(0, n, x),
    "matmul": lambda x, n: x.expand(3, len(x)) @ x,
    "sort": lambda x, n: x.sort(),
    "repeat": lambda x, n: x.repeat(2),
}


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("call", LARGE.values(), ids=LARGE)
def test_operators_that_need_more_than_the_host_has(call: Any, device: str) -> None:
    with flambeau.virtual(1, profile="a100-40g"):
        x, n = flambeau.zeros(1, device=device), flambeau.zeros(1, dtype=flambeau.int64, device=device)
        before = flambeau.cuda.memory_allocated()
        with pytest.raises(RuntimeError) as caught:
            call(x.expand(1 << 40), n.expand(1 << 40))
        if device == "cpu":
            words = "DefaultCPUAllocator: can't allocate memory: you tried to allocate"
            assert type(caught.value) is RuntimeError and words in str(caught.value)
        else:
            assert isinstance(caught.value, flambeau.OutOfMemoryError) or "data=False" in str(caught.value)
        del caught  # its traceback holds tensors
        assert flambeau.cuda.memory_allocated() == before
        assert (x + 1).item() == 1


def test_the_cpu_asks_before_it_commits_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_memory, "swap_left", lambda: 0)
    monkeypatch.setattr(host_memory, "available", lambda: 100 << 20)
    words = "DefaultCPUAllocator: can't allocate memory"
    x = flambeau.empty(1 << 27)  # costs nothing
    for call in (lambda: x.fill_(1), x.zero_, lambda: x + 1, lambda: flambeau.ones(1 << 27)):
        with pytest.raises(RuntimeError, match=words):
            call()
    with pytest.raises(MemoryError, match="a list of 134,217,728 elements"):
        x.tolist()
    assert x[: 1 << 20].fill_(1).sum() == 1 << 20


def test_the_cpu_names_memory_that_a_body_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any) -> Any:
        return np.empty(1 << 50, np.uint16)

    monkeypatch.setattr(np.linalg, "svd", fail)
    with pytest.raises(RuntimeError, match=f"DefaultCPUAllocator: .* you tried to allocate {1 << 51} bytes"):
        flambeau.linalg.svd(flambeau.ones(2, 2))


functional = flambeau.nn.functional
# Their kernels take several times the memory of their operands.
WORK = {
    "sort": lambda x: x.half().sort(),
    "unique": lambda x: x.unique(),
    "mode": lambda x: x.mode(),
    "convolution": lambda x: functional.conv2d(x[None, None], x[None, None, :7, :7]),
    "matmul": lambda x: x.half() @ x.half(),
    "einsum": lambda x: flambeau.einsum("ij,jk->ik", x.bfloat16(), x.bfloat16()),
    "var": lambda x: x.var(),
    "uniform_": lambda x: flambeau.rand_like(x),
    "histc": lambda x: x.histc(),
    "svd": lambda x: flambeau.linalg.svdvals(x),
    "interpolate": lambda x: functional.interpolate(x[None, None], scale_factor=2, mode="bicubic"),
    "_fft_r2c": lambda x: flambeau.fft.rfft(x),
    "attention": lambda x: functional.scaled_dot_product_attention(*[x[:16].reshape(1, 1, 512, 16)] * 3),
    "expand": lambda x: x[0].expand(1024, 512).var(),
}


@pytest.mark.parametrize("work", WORK.values(), ids=WORK)
def test_kernels_take_no_more_temporary_memory_than_the_host_has(
    work: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(array_grants, "LARGE", 1 << 14)
    with flambeau.virtual(1):
        x = flambeau.rand(512, 512, device="cuda")
        work(x)
        flambeau.cuda.synchronize()  # its outputs' memory is granted
        monkeypatch.setattr(host_memory, "available", lambda: 0)
        flambeau.runtime.system.accelerator()._machine.budget._lease = 1 << 18
        tracemalloc.start()
        try:
            with pytest.raises(flambeau.HostMemoryError, match=r"no memory to compute '.*data=False"):
                work(x)
                flambeau.cuda.synchronize()
            assert tracemalloc.get_traced_memory()[1] < 3 << 20
        finally:
            tracemalloc.stop()
        monkeypatch.setattr(host_memory, "available", lambda: None)
        work(x)
        assert x.sum().item() > 0  # the device works


def test_other_errors_are_no_shortage() -> None:
    assert not is_shortage(OSError(errno.ENOENT, "missing"))
    assert not is_shortage(ImportError("No module named 'x'"))
    assert not is_shortage(ValueError("failed to map segment"))


def test_processes_without_a_limit_have_all_addresses() -> None:
    assert address_space_left() is None
