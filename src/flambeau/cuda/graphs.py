"""torch.cuda's CUDA graphs: `CUDAGraph`, the context manager that captures one, and queries of captures."""

from __future__ import annotations

import gc
from importlib import import_module
from types import TracebackType
from typing import TYPE_CHECKING, Any

from flambeau.core.errors import argument_type
from flambeau.core.public_names import lacking, lacks
from flambeau.cuda.memory import empty_cache
from flambeau.cuda.streams import synchronize
from flambeau.runtime.graphs.cuda_graph import CUDAGraph, graph_pool_handle, is_current_stream_capturing
from flambeau.runtime.memory.private_pool import PoolId
from flambeau.runtime.streams.accelerator_stream import Stream

__all__ = ["CUDAGraph", "graph", "graph_pool_handle", "is_current_stream_capturing"]


class graph:
    """A context manager that captures work into a CUDAGraph instead of running it. It first waits for the device.

    Create static inputs, which the graph reads at each replay, outside of it, and write to them with `copy_`. Entering
    raises like `CUDAGraph.capture_begin`; leaving raises RuntimeError if the block did something that a graph cannot
    hold.

    Args:
        cuda_graph: The graph.
        pool: `other.pool()` or `graph_pool_handle()`, to share memory with other graphs; None for separate memory.
        stream: The stream to capture, which is current inside; None for a new one.
        capture_error_mode: "global" (default), "thread_local" or "relaxed", see `CUDAGraph.capture_begin`.
        check_input_liveness: As in `CUDAGraph.capture_begin`.
        enable_annotations: Not supported.

    Raises:
        NotImplementedError: If an argument is not supported.
        TypeError: If `cuda_graph` is not a CUDAGraph, or `stream` is not a Stream.
    """

    if not TYPE_CHECKING:  # a checker should find misspelt names
        __getattr__ = lacks

    def __init__(
        self,
        cuda_graph: CUDAGraph,
        pool: PoolId | None = None,
        stream: Stream | None = None,
        capture_error_mode: str = "global",
        enable_annotations: bool = False,
        check_input_liveness: bool = False,
    ) -> None:
        if enable_annotations:
            raise NotImplementedError("torch.cuda.graph(enable_annotations=True) is not supported")
        if not isinstance(cuda_graph, CUDAGraph):
            raise TypeError(argument_type("graph", "cuda_graph", 1, "CUDAGraph", cuda_graph))
        if stream is not None and not isinstance(stream, Stream):
            raise TypeError(argument_type("graph", "stream", 3, "Stream", stream))
        self.cuda_graph = cuda_graph
        self.pool = () if pool is None else (pool,)
        self.capture_stream = Stream() if stream is None else stream
        self.stream_ctx = self.capture_stream
        self.capture_error_mode = capture_error_mode
        self.check_input_liveness = check_input_liveness

    def __enter__(self) -> None:
        synchronize()
        gc.collect()
        empty_cache()
        self.stream_ctx.__enter__()
        try:
            self.cuda_graph.capture_begin(
                *self.pool,
                capture_error_mode=self.capture_error_mode,
                check_input_liveness=self.check_input_liveness,
            )
        except BaseException:
            self.stream_ctx.__exit__()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.cuda_graph.capture_end()
        finally:
            self.stream_ctx.__exit__()


_lacking = lacking("torch.cuda.graphs")


def __getattr__(name: str) -> Any:
    if name == "make_graphed_callables":  # it knows modules, which are imported when they are first asked for
        return import_module("flambeau.cuda.graphed").make_graphed_callables
    return _lacking(name)
