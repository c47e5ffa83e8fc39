"""Launchers: the functions that enqueue kernels on streams of real GPUs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from cuda.bindings import driver as cu

from flambeau.core.errors import NotSupportedError
from flambeau.driver.api import Launcher, seed_positions
from flambeau.driver.cuda.build import Run
from flambeau.driver.cuda.device.calls import error_of
from flambeau.driver.cuda.device.contexts import Contexts
from flambeau.driver.cuda.device.device import CudaDevice
from flambeau.driver.cuda.device.program import (
    ADDRESS,
    CudaExecutable,
    GenericKernel,
    KernelOfShape,
    Late,
    flatten_scalars,
    mark,
)
from flambeau.driver.cuda.device.streams import CudaStream, CudaStreams


def _complete(late: Late, queue: CudaStream, stream: int) -> None:
    """Set the parameters that are known only at a launch."""
    if late.scratch:
        at = queue.device.scratch_of(stream, late.scratch, queue.native)
        ADDRESS.pack_into(late.params, late.scratch_at, at)
    if late.guards:
        mark(late.params, late.guards, queue.device.assertions.note_launch())


class Launchers:
    """A factory of the launchers of one driver.

    Each launcher has bound what a launch needs. It finds the stream in a table, enters the context of the stream's
    device unless that is the only one, and packs addresses and scalars into the kernel's buffer of parameters.
    """

    __slots__ = ("_contexts", "_find", "_queues")

    def __init__(self, contexts: Contexts, streams: CudaStreams) -> None:
        self._contexts, self._queues, self._find = contexts, streams.queues, streams.find

    def of_kernel(self, exe: CudaExecutable) -> Launcher:
        """Return a launcher with everything bound that a launch needs: each attribute lookup takes a tenth of a
        launch.
        """
        queues, find, contexts = self._queues, self._find, self._contexts
        several, thread, enter = contexts.several, contexts.thread, contexts.enter
        lock, pack, flat, late, call, address = exe.lock, exe.pack, exe.flat, exe.late, exe.call, exe.address

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
                    _complete(late, queue, stream)
                (code,) = call(queue.native, address, 0)
            if code:
                raise error_of(code)

        launch.keep = exe.keep  # type: ignore[attr-defined]  # `address` is its; the executable may go before
        return launch

    def of_shapes(self, kernel: GenericKernel, flat: bool) -> Callable[..., Launcher]:
        """Return a function that creates the launch function of a shape. All shapes share the kernel's parameter
        buffer.
        """
        queues, find, contexts, lock = self._queues, self._find, self._contexts, kernel.lock
        several, thread, enter = contexts.several, contexts.thread, contexts.enter
        pack, guards, address = kernel.pack, kernel.guards, kernel.address
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
                    _complete(late, queue, stream)
                (code,) = call(function, x, y, z, block, 1, 1, shared, queue.native, address, 0)
            if code:
                raise error_of(code)

        def launcher(grid: tuple[int, int, int], scratch: int, tail: bytes) -> Launcher:
            late = Late(kernel.params, scratch, kernel.scratch_at, guards) if scratch or guards else None
            return partial(launch, *grid, tail, late)

        launch.keep = kernel.keep  # type: ignore[attr-defined]  # `address` is its
        return launcher

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
