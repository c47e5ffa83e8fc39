"""`Peer`: another process that calls what it is told, and functions to tell it. Importing this costs a child little."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
from typing import Any

import flambeau as torch
import flambeau.multiprocessing as mp
from flambeau.runtime import system


class Peer:
    """A process that lives until `stop`, or `kill`; `call` runs a function of a module there."""

    def __init__(self, method: str = "spawn") -> None:
        context = mp.get_context(method)
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()

    def call(self, function: Any, *args: Any) -> Any:
        """What `function(*args)` gives there. Raises its error, of the same type and text."""
        self.pipe.send((function, args))
        return self.answer()

    def answer(self) -> Any:
        error, result = self.pipe.recv()
        if error is not None:
            raise error
        return result

    def stop(self) -> int | None:
        """Let it end by itself; its exit code."""
        self.pipe.send(None)
        self.process.join(300)
        code = self.process.exitcode
        self.process.close()
        self.pipe.close()
        return code

    def kill(self) -> None:
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.join(300)


def serve(pipe: Any) -> None:
    """The peer's life."""
    while answer(pipe):
        pass


def answer(pipe: Any) -> bool:
    """Do what is ordered, or say why it, or sending its result, failed. Has dropped the arguments by then."""
    try:
        order = pipe.recv()
        if order is None:
            return False
        result = order[0](*order[1])
        del order
        pipe.send((None, result))
        return True
    except RuntimeError as error:
        pipe.send((type(error)(str(error)), None))
        return True


kept: dict[str, Any] = {}
"""What a peer was told to keep."""


def keep(name: str, value: Any) -> None:
    kept[name] = value


def kept_again(name: str) -> Any:
    return kept[name]


def drop(name: str) -> None:
    del kept[name]
    gc.collect()


def values(value: Any) -> Any:
    return [v.tolist() for v in value] if isinstance(value, list | tuple) else value.tolist()


def fill(value: Any, number: float) -> None:
    """Write from the peer; done when it returns."""
    value.detach().fill_(number)
    if value.is_cuda:
        torch.cuda.synchronize(value.device)


def facts(value: Any) -> tuple[Any, ...]:
    """What a received tensor is."""
    return (
        type(value).__name__, value.is_shared(), value.requires_grad, value.is_leaf, str(value.dtype),
        tuple(value.shape), value.stride(), value.storage_offset(), value.untyped_storage().nbytes(), str(value.device),
    )  # fmt: skip


def are_views(values: Any) -> bool:
    """Whether all lie in one storage."""
    return len({v.untyped_storage().data_ptr() for v in values}) == 1


def is_kept(name: str, value: Any) -> bool:
    """Whether a tensor lies in the same memory as a kept one."""
    return (
        kept[name].data_ptr() == value.data_ptr() and kept[name].untyped_storage() == value.untyped_storage()
    )


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def increment(x: Any, queue: Any) -> None:
    x.add_(1)
    queue.put(float(x.sum()))


def doubled(x: Any) -> Any:
    return x.numpy() * 2


def send_and_end(pipe: Any) -> None:
    pipe.send(torch.ones(3))
    os._exit(3)


def _batches(seed: int) -> Any:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(60):
        x = torch.randn(16, 2, generator=generator)
        yield x, x @ torch.tensor([[2.0], [-1.0]]) + 0.5


def loss_of(model: Any) -> float:
    with torch.no_grad():
        return float(sum(torch.nn.functional.mse_loss(model(x), y) for x, y in _batches(99)))


def train(rank: int, model: Any) -> None:
    """PyTorch's multiprocessing best practices, Hogwild."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for x, y in _batches(rank):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()


# -- CUDA -------------------------------------------------------------------------------------------------


def keep_clone(name: str) -> None:
    kept[name] = kept[name].clone()


def rebuilt(rebuild: Any, args: Any) -> Any:
    return rebuild(*args).tolist()


def storage_of(shared: Any) -> int:
    return torch.UntypedStorage._new_shared_cuda(*shared).nbytes()


def total_of_kept(name: str) -> float:
    return float(kept[name].sum())


def free_memory(index: int) -> int:
    return torch.cuda.mem_get_info(index)[0]


def send_cuda(pipe: Any, count: int) -> None:
    kept["sent"] = torch.ones(count, device="cuda")
    pipe.send(kept["sent"])


def use_virtual(devices: int) -> None:
    torch.virtual(devices)


def gpus() -> tuple[int, str]:
    return torch.cuda.device_count(), torch.cuda.get_device_name(0)


def wait_and_double(name: str, x: Any) -> None:
    kept[name].wait()
    with torch.cuda.device(x.device):
        x.mul_(2)
        kept[name].record()


def opened_event(index: int, handle: bytes) -> tuple[str, bool]:
    event = torch.cuda.Event.from_ipc_handle(torch.device("cuda", index), handle)
    return str(event.device), event.query()


def collect() -> None:
    gc.collect()
    torch.cuda.ipc_collect()


def nothing(value: Any) -> None:
    pass


def total(value: Any) -> float:
    return value.sum().item()


def totals_of_kept(name: str) -> list[float]:
    return [value.sum().item() for value in kept[name]]


def slow_copy(name: str, value: Any, cycles: int) -> None:
    """Queue work that copies the value later."""
    torch.cuda._sleep(cycles)
    kept[name] = value.clone()


def double_after(name: str, value: Any) -> Any:
    """Double after an event; an event of our own after that."""
    theirs = kept["their event"] = torch.cuda.Event(interprocess=True)
    kept[name].wait()
    value.mul_(2)
    theirs.record()
    return theirs


def watch_for_races() -> None:
    torch.virtual(1, races="error")


def sum_on_a_stream(value: Any) -> float:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        return value.sum().item()


def races() -> int:
    return len(system.context_of(torch.device("cuda:0")).driver.detector.races)


def increment_and_hold(value: Any, number: int, most: int) -> None:
    """Add 1 to a tensor full of a number; keep the last few that came."""
    assert bool((value == number).all())
    value.add_(1)
    if value.is_cuda:
        torch.cuda.synchronize(value.device)
    held = kept.setdefault("held", [])
    held.append(value)
    del held[:-most]


def null_waits() -> int:
    """How often the null libcuda was asked to let a stream wait."""
    return ctypes.c_int.in_dll(ctypes.CDLL("libcuda.so.1"), "null_waits").value


def change_parameter(value: Any) -> tuple[Any, ...]:
    """Say what a received parameter or variable is, then write to it and give it a gradient of its own."""
    seen = (
        type(value).__name__,
        value.requires_grad,
        value.grad is None,
        not value._backward_hooks,
        value.tolist(),
    )
    value.data.fill_(1)
    value._grad = torch.full_like(value, 5)
    torch.cuda.synchronize(value.device)
    return seen


def open_event(name: str, handle: bytes) -> None:
    kept[name] = torch.cuda.Event.from_ipc_handle(0, handle)


def synchronize_event(name: str) -> bool:
    kept[name].synchronize()
    return kept[name].query()


def record_late(name: str) -> None:
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(50_000_000)
        kept[name].record()
