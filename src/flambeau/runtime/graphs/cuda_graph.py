"""`CUDAGraph`: the commands of a stream, recorded once and launched as one.

# Note [Memory of graphs]
A launch of a graph uses the addresses that were recorded, so allocations during a capture use a private pool of
the graph, which keeps them until `reset`, even after the tensors are freed: the next launch writes there again.
Graphs that share a pool share such memory, hence must be launched one after the other, in the order of their captures.
What the program made before and a graph reads or writes, its static inputs, the program must keep alive.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

from flambeau.core.device import CPU
from flambeau.core.errors import DriverError, argument_type
from flambeau.core.public_names import lacks, not_copied
from flambeau.runtime import current, system
from flambeau.runtime.device_context import Context
from flambeau.runtime.generator import Generator, begin_capture, default_of, end_capture, reserve
from flambeau.runtime.graphs.mempool import MemPool, new_id, pool_of
from flambeau.runtime.memory.private_pool import PoolId, PrivatePool
from flambeau.runtime.philox import Draws, Philox
from flambeau.runtime.streams.stream import Stream

MODES = ("global", "thread_local", "relaxed")


class CUDAGraph:
    """A sequence of device work that is captured once from streams and launched as a whole.

    `with torch.cuda.graph(g):` records, `g.replay()` launches it on the current stream. Nothing runs meanwhile.

    Args:
        keep_graph: True if `raw_cuda_graph` may be asked for, and changed before `instantiate` makes it ready; the
            first `replay` does that too.

    Raises RuntimeError from each call that needs a capture where there is none.
    """

    if not TYPE_CHECKING:  # otherwise a type checker would not find misspelled names
        __getattr__ = lacks
        __reduce_ex__ = not_copied

    def __init__(self, keep_graph: bool = False) -> None:
        self._keep_graph = keep_graph
        self._ready = False  # True if the graph was instantiated since the capture
        self._context: Context | None = None
        self._stream: Stream | None = None  # the stream, during a capture
        self._handle = 0
        self._pool: MemPool | None = None
        self._before: PrivatePool | None = None
        self._thread = 0
        self._registered: list[Philox] = []
        self._draws: Draws | None = None  # the draws, during a capture
        self._liveness: Any = None  # the check of memory, if it was requested
        # how many numbers each launch draws from each generator state
        self._drawn: list[tuple[Philox, int]] = []

    def register_generator_state(self, generator: Generator) -> None:
        """Register a generator other than the device's default one for the capture, before the capture begins.

        As in today's PyTorch this is not needed: a generator's state is the graph's from its first number on.

        Raises:
            RuntimeError: If the capture has begun, or it is the CPU's generator.
            TypeError: If it is not a Generator.
        """
        if not isinstance(generator, Generator):
            raise TypeError(argument_type("register_generator_state", "generator", 1, "Generator", generator))
        if self._stream is not None or self._handle:
            raise RuntimeError("register_generator_state must be called before the capture begins")
        if generator.device is CPU:
            raise RuntimeError("Expected a 'cuda' device type for generator but found 'cpu'")
        self._registered.append(generator.philox)

    def capture_begin(
        self,
        pool: PoolId | None = None,
        capture_error_mode: str = "global",
        check_input_liveness: bool = False,
    ) -> None:
        """Begin to capture the work enqueued on the current stream. `with torch.cuda.graph(g):` is the usual form.

        Args:
            pool: `other.pool()` or `graph_pool_handle()`, to share memory; None: a new pool.
            capture_error_mode: The threads whose waits for the device are refused during the capture: all ("global"),
                this one ("thread_local"), or none, except on captured streams ("relaxed").
            check_input_liveness: Make `replay` raise RuntimeError after memory was freed that the capture uses and that
                is not the graph's own. The check costs time while the graph lives.

        Raises:
            RuntimeError: If the current stream is the default one or is captured already, or the graph has a capture.
            TypeError, ValueError: If `pool` is not an id of a pool.
        """
        if capture_error_mode not in MODES:
            raise RuntimeError(
                "Unknown capture error mode. Expected `global`, `thread_local`, or `relaxed`, got "
                + str(capture_error_mode)
            )
        if self._stream is not None or self._handle:
            raise RuntimeError(
                "This CUDAGraph instance already owns a captured graph. To capture a new graph, create a new instance."
            )
        stream = current.stream_at(current.local.device)
        context = stream.context
        if stream.handle == context.default_stream.handle:
            raise RuntimeError(
                "CUDA graphs must be captured on a non-default stream. (However, after capture, it's ok to replay them "
                "on the default stream.)"
            )
        memory, watched = pool_of(pool), bool(check_input_liveness)
        context.driver.capture_begin(stream.handle, capture_error_mode)
        self._context, self._stream, self._pool = context, stream, memory
        self._thread = threading.get_ident()
        context.orders.capturing += 1
        self._draws = begin_capture()
        for state in (default_of(context.device).philox, *self._registered):
            self._draws.take(state, 0)
        allocator: Any = context.allocator
        part = memory.part_of(context)
        self._before = allocator.route(part)
        memory._uses += 1
        if watched:  # imported here because few programs need it
            self._liveness = import_module("flambeau.runtime.graphs.graph_memory_check").Liveness(
                context, part
            )

    def capture_end(self) -> None:
        """End the capture, on the stream where it began. The graph can then be launched.

        The capture ends even if this call raises.

        Raises:
            RuntimeError: For something that is not allowed in a capture was tried, or the stream does not
                wait for all that was recorded.
        """
        stream, context, draws = self._stream, self._context, self._draws
        if stream is None or context is None or draws is None:
            raise RuntimeError("capture_end() was called without a capture_begin()")
        if self._thread != threading.get_ident() or stream != current.stream_at(context.index):
            raise RuntimeError("Capture must end on the same stream it began on.")
        self._stream = None
        context.orders.capturing -= 1
        end_capture(draws)
        self._drawn, self._draws = draws.totals(), None
        if self._liveness is not None:
            self._liveness.capture_ended()
        allocator: Any = context.allocator
        allocator.route(self._before)
        self._before = None
        try:
            self._handle = context.driver.capture_end(stream.handle)
        except DriverError:
            self._release()
            raise
        self._ready = not self._keep_graph

    def instantiate(self) -> None:
        """Instantiate the graph, including changes made through `raw_cuda_graph`. Only with `keep_graph`.

        Raises:
            RuntimeError: If nothing was captured; the graph was not kept.
        """
        if not self._keep_graph:
            raise RuntimeError("instantiate() is intended to be called by the user only when keep_graph=true")
        self._captured_context("instantiate()").driver.graph_instantiate(self._handle)
        self._ready = True

    def raw_cuda_graph(self) -> int:
        """Return the cudaGraph_t, which other libraries may change before `instantiate`. Only with `keep_graph`, on
        real GPUs.

        Raises:
            RuntimeError: If nothing was captured, the graph was not kept.
            NotSupportedError: If it is a virtual GPU's.
        """
        if not self._keep_graph:
            raise RuntimeError(
                "You cannot access the raw cudaGraph_t instance unless CUDAGraph was initialized with keep_graph=true"
            )
        return self._captured_context("raw_cuda_graph()").driver.graph_native(self._handle)[0]

    def raw_cuda_graph_exec(self) -> int:
        """Return the cudaGraphExec_t, valid until `instantiate` is called again, with or without `keep_graph`."""
        context = self._captured_context("raw_cuda_graph_exec()")
        if not self._ready:
            raise RuntimeError(
                "You cannot access the raw cudaGraphExec_t instance until instantiate() has been called"
            )
        return context.driver.graph_native(self._handle)[1]

    def _captured_context(self, call: str) -> Context:
        if not self._handle or self._context is None:
            raise RuntimeError(f"capture_end() must have been called before calling {call}")
        return self._context

    def replay(self) -> None:
        """Launch the graph on the current stream of its device. Returns immediately.

        During a capture it becomes part of the captured graph, which must not outlive it. Real GPUs do so only
        with graphs that draw no random numbers.

        Raises:
            RuntimeError: If nothing was captured.
        """
        context = self._context
        if not self._handle or context is None:
            raise RuntimeError("Called CUDAGraph::replay without a preceding successful capture.")
        if self._liveness is not None:
            self._liveness.check()
        if not self._ready:
            self.instantiate()
        seeds = [reserve(state, context.device, drawn) if drawn else (0, 0) for state, drawn in self._drawn]
        stream = current.stream_at(context.index)
        context.driver.graph_launch(self._handle, stream.handle, seeds)
        stream.queue.busy = True

    def reset(self) -> None:
        """Free the graph and its memory. The object may capture again.

        Raises:
            RuntimeError: If it is capturing.
        """
        if self._stream is not None:
            raise RuntimeError("reset() cannot be called during a capture")
        self._release()

    def pool(self) -> PoolId:
        """Return the id of the graph's memory pool, to share it with other graphs.

        Raises:
            RuntimeError: If nothing was captured.
        """
        if self._pool is None:
            raise RuntimeError("Called CUDAGraph::pool() without a preceding successful capture.")
        return self._pool.id

    def enable_debug_mode(self) -> None:
        """Do nothing: `debug_dump` works without it, because graphs are always kept."""

    def debug_dump(self, debug_path: str) -> None:
        """Write the graph to a file, in Graphviz's language.

        Raises:
            RuntimeError: If nothing was captured.
        """
        if not self._handle or self._context is None:
            raise RuntimeError("Called CUDAGraph::debug_dump without a preceding successful capture.")
        self._context.driver.graph_dump(self._handle, debug_path)

    def _release(self) -> None:
        if self._liveness is not None:
            self._liveness.stop()
            self._liveness = None
        handle, self._handle, self._ready = self._handle, 0, False
        context, self._context = self._context, None
        if handle and context is not None and not context.closed:
            context.backing.graph_destroy(handle)
        if self._pool is not None:
            self._pool._uses -= 1
        self._pool = None
        self._registered, self._drawn = [], []

    def __del__(self) -> None:
        with suppress(AttributeError):  # the constructor may have raised
            if self._draws is not None:  # the capture was never ended
                end_capture(self._draws)
            self._release()


def graph_pool_handle() -> PoolId:
    """Return an id that graphs can be given as `pool` in order to share memory."""
    return new_id()


def is_current_stream_capturing() -> bool:
    """Return True if the current stream is being captured into a graph."""
    if not system.is_initialized():
        return False
    return current.stream_at(current.local.device).is_capturing()
