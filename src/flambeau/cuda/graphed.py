"""`make_graphed_callables`: a network's forward and backward pass, each as one launch, in the autograd graph as any
function.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from flambeau.amp.autocast_mode import is_autocast_cache_enabled, is_autocast_enabled
from flambeau.autograd import Function, grad
from flambeau.autograd.function import once_differentiable
from flambeau.cuda.graphs import CUDAGraph, graph, graph_pool_handle
from flambeau.cuda.streams import synchronize
from flambeau.nn.modules.module import Module
from flambeau.runtime.memory.private_pool import PoolId
from flambeau.runtime.streams.stream import Stream
from flambeau.tensor.arguments.public import functions
from flambeau.tensor.tensor import Tensor

__all__ = ["make_graphed_callables"]


def make_graphed_callables(
    callables: Any,
    sample_args: tuple[Any, ...],
    num_warmup_iters: int = 3,
    allow_unused_input: bool = False,
    pool: PoolId | None = None,
) -> Any:
    """Return callables that replay CUDA graphs of their forward passes, captured in this order, and of their backward
    passes.

    A Module is returned itself, with a `forward` that replays while `training` has the value of the capture. Each call
    overwrites the outputs of the previous one. The results can be differentiated only once.

    Args:
        callables: A Module or function of tensors, or a tuple of them. Several share memory and must be called in
            order.
        sample_args: A tuple of tensors, or of tuples, lists and dicts of tensors; for several callables a tuple of such
            tuples. They become the static inputs: later arguments must have equal nesting, shapes, dtypes, devices and
            requires_grad, and are copied into them.
        num_warmup_iters: Number of runs before the capture.
        allow_unused_input: Allow inputs that do not influence the outputs.
        pool: `graph_pool_handle()` or `other.pool()`, to share memory; None for separate memory.

    Raises:
        RuntimeError: If autocast is enabled with its cache.
        AssertionError: If a module has hooks or buffers that require gradients, or an argument is not a tensor.
        ValueError: If the number of callables and of tuples of arguments differs.
    """
    if is_autocast_enabled() and is_autocast_cache_enabled():
        raise RuntimeError(
            "make_graphed_callables does not support the autocast caching. Please set `cache_enabled=False`."
        )
    several = isinstance(callables, tuple)
    each, samples = (callables, sample_args) if several else ((callables,), (sample_args,))
    if len(each) != len(samples):
        raise ValueError(
            f"make_graphed_callables: {len(each)} callables, but {len(samples)} tuples of sample_args"
        )
    passes = [_Passes(call, sample, allow_unused_input) for call, sample in zip(each, samples, strict=True)]
    pool = graph_pool_handle() if pool is None else pool
    stream = Stream()
    synchronize()
    with stream:
        for one in passes:
            one.warm_up(num_warmup_iters)
    synchronize()
    for one in passes:
        one.capture_forward(pool, stream)
    for one in reversed(passes):
        one.capture_backward(pool, stream)
    made = tuple([_replacing(one) for one in passes])
    return made if several else made[0]


class _Passes:
    """One callable: its static tensors and its two graphs."""

    def __init__(self, call: Callable[..., Any], sample: Sequence[Any], allow_unused: bool) -> None:
        module = call if isinstance(call, Module) else None
        if module is not None:
            _check(module)
        leaves: list[Tensor] = []
        try:
            self.nesting = _gather_tensors(tuple(sample), leaves)
        except TypeError:
            raise AssertionError(
                "In the beta API, sample_args for each callable must contain only Tensors. Other types are not allowed."
            ) from None
        self.call = call
        self.run: Callable[..., Any] = call if module is None else module.forward
        self.sample = tuple(sample)
        self.args: tuple[Tensor, ...] = tuple(leaves)
        self.inputs: tuple[Tensor, ...] = (*self.args, *(() if module is None else module.parameters()))
        self._allow_unused = allow_unused
        self._forward, self._backward = CUDAGraph(), CUDAGraph()
        self.shape: Any = None
        self.outputs: list[Tensor] = []
        self._grad_outputs: list[Tensor | None] = []
        self._grads: list[Tensor | None] = []

    def warm_up(self, times: int) -> None:
        """Run both passes, so that the capture does not contain the work of a first run, such as compilation."""
        for _ in range(times):
            outputs: list[Tensor] = []
            _gather_tensors(self.call(*self.sample), outputs)
            self._gradients(outputs, _zeros_like(outputs))

    def capture_forward(self, pool: PoolId, stream: Stream) -> None:
        with graph(self._forward, pool, stream):
            self.shape = _gather_tensors(self.call(*self.sample), self.outputs)

    def capture_backward(self, pool: PoolId, stream: Stream) -> None:
        self._grad_outputs = _zeros_like(self.outputs)
        self._grads = [None] * len(self.inputs)
        if any(x.requires_grad for x in self.outputs):
            with graph(self._backward, pool, stream):
                self._grads = self._gradients(self.outputs, self._grad_outputs)

    def _gradients(self, outputs: list[Tensor], grads: list[Tensor | None]) -> list[Tensor | None]:
        """Return the gradient of each input, None where it requires none."""
        wanted = [x for x in self.inputs if x.requires_grad]
        sources = [x for x in outputs if x.requires_grad]
        if not sources or not wanted:
            return [None] * len(self.inputs)
        given = [g for g in grads if g is not None]
        found = iter(grad(sources, wanted, given, only_inputs=True, allow_unused=self._allow_unused))
        return [next(found) if x.requires_grad else None for x in self.inputs]

    def forward(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        for static, given in zip(self.args, inputs, strict=False):
            if static.data_ptr() != given.data_ptr():
                static.detach().copy_(given)
        self._forward.replay()
        return tuple([x.detach() for x in self.outputs])

    def backward(self, grads: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
        for static, given in zip(self._grad_outputs, grads, strict=True):
            if static is not None and static.data_ptr() != given.data_ptr():
                static.copy_(given)
        if any(x is not None for x in self._grads):
            self._backward.replay()
        return tuple([None if x is None else x.detach() for x in self._grads])


def _check(module: Module) -> None:
    if module._backward_hooks or module._forward_hooks or module._forward_pre_hooks:
        raise AssertionError(
            "Modules must not have hooks registered at the time they are passed. However, registering hooks on modules "
            "after passing them through make_graphed_callables is allowed."
        )
    if any(buffer.requires_grad for buffer in module.buffers()):
        raise AssertionError(
            "In any :class:`~torch.nn.Module` passed to :func:`~make_graphed_callables`, only parameters may be "
            "trainable. All buffers must have ``requires_grad=False``."
        )


def _replacing(passes: _Passes) -> Any:
    """Return the callable that replaces the callable of the program."""

    class Graphed(Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Tensor) -> Any:
            return passes.forward(inputs)

        @staticmethod
        @once_differentiable
        def backward(ctx: Any, *grads: Tensor) -> Any:
            return passes.backward(grads)

    parameters = passes.inputs[len(passes.args) :]

    def run_graph(*args: Any) -> Any:
        leaves: list[Tensor] = []
        if _gather_tensors(args, leaves) != passes.nesting:
            raise RuntimeError("a graphed callable takes arguments that are nested as its sample_args were")
        return _rebuilt(passes.shape, iter(Graphed.apply(*leaves, *parameters)))

    if not isinstance(passes.call, Module):
        return run_graph
    module, training, original = passes.call, passes.call.training, passes.run

    def forward(*args: Any, **named: Any) -> Any:
        return run_graph(*args, **named) if module.training == training else original(*args, **named)

    module.forward = forward  # type: ignore[method-assign]
    return module


def _zeros_like(outputs: Sequence[Tensor]) -> list[Tensor | None]:
    """Return zero gradients for the warm-up. With `empty` the race detector would report reads of unwritten memory."""
    return [functions["zeros_like"](x) if x.requires_grad else None for x in outputs]


def _gather_tensors(value: Any, into: list[Tensor]) -> Any:
    """Return the nesting of a value, after appending its tensors to `into`. Raises TypeError for other leaves."""
    if isinstance(value, Tensor):
        into.append(value)
        return None
    if isinstance(value, list | tuple):
        return type(value), [_gather_tensors(x, into) for x in value]
    if isinstance(value, dict):
        return dict, [(key, _gather_tensors(x, into)) for key, x in value.items()]
    raise TypeError(
        f"a graphed callable takes and returns tensors in tuples, lists and dicts, not {type(value).__name__}"
    )


def _rebuilt(shape: Any, tensors: Any) -> Any:
    if shape is None:
        return next(tensors)
    kind, parts = shape
    if kind is dict:
        return {key: _rebuilt(part, tensors) for key, part in parts}
    made = [_rebuilt(part, tensors) for part in parts]
    return kind(*made) if hasattr(kind, "_fields") else kind(made)
