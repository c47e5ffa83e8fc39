"""Launchers: the functions that enqueue kernels on streams of real GPUs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

from cuda.bindings import driver as cu

from flambeau.core.errors import NotSupportedError
from flambeau.driver.cuda.device.calls import check, error_of
from flambeau.driver.cuda.device.contexts import Contexts
from flambeau.driver.cuda.device.device import CudaDevice
from flambeau.driver.cuda.device.program import (
    ADDRESS,
    CudaExecutable,
    GenericKernel,
    KernelOfShape,
    Late,
    flatten_scalars,
)
from flambeau.driver.cuda.device.streams import CudaStream, CudaStreams
from flambeau.driver.cuda.kernel_builder import Run
from flambeau.driver.protocol import Launcher, seed_positions

try:
    from flambeau.driver.cuda.device.native_launch import KernelLauncher
except ImportError:  # in the wheel that is not compiled
    KernelLauncher = None  # type: ignore[misc,assignment]

_CUDA = 12000  # the version of the CUDA driver whose `cuLaunchKernel` is called


@cache
def _launch_address() -> int:
    return int(check(cu.cuGetProcAddress(b"cuLaunchKernel", _CUDA, 0))[0])


def _error_of_number(code: int) -> Exception:
    return error_of(cu.CUresult(code))


def _complete(params: Any, late: Late, queue: CudaStream, stream: int) -> None:
    """Set the parameters that are known only at a launch."""
    for at, value in late.values(queue, stream):
        ADDRESS.pack_into(params, at, value)


def _late(kernel: GenericKernel, scratch: int) -> Late | None:
    if scratch or kernel.guards:
        return Late(scratch, kernel.scratch_at, kernel.guards)
    return None


class Launchers:
    """A factory of the launchers of one driver.

    Each launcher has bound what a launch needs. It finds the stream in a table, enters the context of the stream's
    device unless that is the only one, and packs addresses and scalars into the kernel's buffer of parameters. In
    the compiled wheel launchers of kernels are `KernelLauncher`, which does the same in C (native_launch.c).
    """

    __slots__ = ("_contexts", "_find", "_queues")

    def __init__(self, contexts: Contexts, streams: CudaStreams) -> None:
        self._contexts, self._queues, self._find = contexts, streams.queues, streams.find

    def of_kernel(self, exe: CudaExecutable) -> Launcher:
        """Return a launcher with everything bound that a launch needs: each attribute lookup takes a tenth of a
        launch.
        """
        if KernelLauncher is not None:
            return self._in_c(exe, exe.grid, exe.late)
        queues, find, contexts = self._queues, self._find, self._contexts
        several, thread, enter = contexts.several, contexts.thread, contexts.enter
        lock, pack, flat, call, address = exe.lock, exe.pack, exe.flat, exe.call, exe.address
        params, late = exe.params, exe.late

        def launch(ptrs: Sequence[int], scalars: Sequence[Any], stream: int) -> None:
            queue = queues.get(stream) or find(stream)
            if several or not thread.entered:
                enter(queue.device)
            with lock:
                if scalars:
                    pack(*ptrs, *(scalars if flat else flatten_scalars(scalars)))
                else:  # written separately for speed
                    pack(*ptrs)
                if late is not None:
                    _complete(params, late, queue, stream)
                (code,) = call(queue.native, address, 0)
            if code:
                raise error_of(code)

        launch.keep = exe.keep  # type: ignore[attr-defined]  # `address` is its; the executable may go before
        return launch

    def of_shapes(self, kernel: GenericKernel, flat: bool) -> Callable[..., Launcher]:
        """Return a function that creates the launch function of a shape. All shapes share the kernel's parameter
        buffer.
        """
        if KernelLauncher is not None:
            return self._of_shapes_in_c(kernel)
        queues, find, contexts, lock = self._queues, self._find, self._contexts, kernel.lock
        several, thread, enter = contexts.several, contexts.thread, contexts.enter
        pack, address, params = kernel.pack, kernel.address, kernel.params
        call, function, block, shared = cu.cuLaunchKernel, kernel.function, kernel.block, kernel.shared

        def launch(
            x: int, y: int, z: int, tail: bytes, late: Late | None,
            ptrs: Sequence[int], scalars: Sequence[Any], stream: int,
        ) -> None:  # fmt: skip
            queue = queues.get(stream) or find(stream)
            if several or not thread.entered:
                enter(queue.device)
            with lock:
                if scalars:
                    pack(*ptrs, *(scalars if flat else flatten_scalars(scalars)), tail)
                else:
                    pack(*ptrs, tail)
                if late is not None:
                    _complete(params, late, queue, stream)
                (code,) = call(function, x, y, z, block, 1, 1, shared, queue.native, address, 0)
            if code:
                raise error_of(code)

        def launcher(grid: tuple[int, int, int], scratch: int, tail: bytes) -> Launcher:
            return partial(launch, *grid, tail, _late(kernel, scratch))

        launch.keep = kernel.keep  # type: ignore[attr-defined]  # `address` is its
        return launcher

    def _of_shapes_in_c(self, kernel: GenericKernel) -> Callable[..., Launcher]:
        of_shape = self._in_c(kernel, (1, 1, 1), None).of_shape

        def launcher(grid: tuple[int, int, int], scratch: int, tail: bytes) -> Launcher:
            late = _late(kernel, scratch)
            return of_shape(grid, tail, late.values if late is not None else None)

        return launcher

    def _in_c(
        self, kernel: CudaExecutable | GenericKernel, grid: tuple[int, int, int], late: Late | None
    ) -> KernelLauncher:
        contexts = self._contexts
        return KernelLauncher(
            launch=_launch_address(), function=int(kernel.function), grid=grid, block=kernel.block,
            shared=kernel.shared, params=kernel.params.raw, offsets=kernel.offsets, addresses=kernel.addresses,
            scalars_at=kernel.scalars_at, scalars=kernel.scalar_kinds, several=contexts.several,
            streams=self._queues, find=self._find, thread=contexts.thread, enter=contexts.enter,
            error=_error_of_number, late=late.values if late is not None else None,
        )  # fmt: skip

    def of_shapes_that_draw(
        self, kernel: GenericKernel, device: CudaDevice, launcher: Callable[..., Launcher]
    ) -> Callable[..., Launcher]:
        """Return a function that creates the launch function of a shape, for a kernel that draws random numbers."""

        def launcher_of_draws(grid: tuple[int, int, int], scratch: int, tail: bytes) -> Launcher:
            plain = launcher(grid, scratch, tail)
            return self.of_draws(KernelOfShape(kernel, tail), device, plain)

        return launcher_of_draws

    def of_run(self, run: Run) -> Launcher:
        """Return a launch function that enqueues several kernels, or those of a library."""
        queues, find, contexts = self._queues, self._find, self._contexts
        several, thread, enter = contexts.several, contexts.thread, contexts.enter

        def launch(ptrs: Sequence[int], scalars: Sequence[Any], stream: int) -> None:
            queue = queues.get(stream) or find(stream)
            if several or not thread.entered:
                enter(queue.device)
            run(ptrs, scalars, queue.native, stream)

        return launch

    def of_draws(self, exe: CudaExecutable | KernelOfShape, device: CudaDevice, plain: Launcher) -> Launcher:
        """Return a launch function that registers random draws with captures, whose graphs update the seeds."""
        captures = device.captures
        positions = seed_positions(exe.launch) if isinstance(exe, CudaExecutable) else (0,)

        def launch(ptrs: Sequence[int], scalars: Sequence[Any], stream: int) -> None:
            capture = captures.get(stream)
            if capture is None:
                plain(ptrs, scalars, stream)
            elif isinstance(exe, CudaExecutable) and exe.run is not None:
                raise NotSupportedError(
                    f"{exe.launch.kernel.name} on CUDA cannot be captured into a graph yet"
                )
            else:
                plain(ptrs, scalars, stream)
                capture.note_draw(exe, ptrs, scalars, positions, self._find(stream).native)

        return launch
