"""`torch.autograd.graph`: nodes, edges, and hooks for saved tensors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from flambeau.core.handle import RemovableHandle
from flambeau.tape.autograd_node import GradientEdge
from flambeau.tape.autograd_node import Node as _EngineNode
from flambeau.tape.function_base import FunctionBase
from flambeau.tape.mode import mode as state
from flambeau.tape.mode import shared_mode
from flambeau.tensor.autograd.autograd_meta import edge_of
from flambeau.tensor.exchange.transfer import empty_pinned
from flambeau.tensor.tensor import Tensor


class Node(ABC):
    """A node of the autograd graph as programs see it, for `isinstance`; programs do not create nodes."""

    @abstractmethod
    def name(self) -> str:
        """Return the name of the node, such as `AddBackward0`."""

    @property
    @abstractmethod
    def next_functions(self) -> tuple[tuple[Any, int], ...]:
        """Return the (node, output number) of each input."""

    @property
    @abstractmethod
    def metadata(self) -> dict[str, Any]:
        """Return a dictionary in which programs may store data about this node."""

    @abstractmethod
    def register_hook(self, fn: Callable[..., Any]) -> RemovableHandle:
        """Call `fn(grad_inputs, grad_outputs)` after this node."""

    @abstractmethod
    def register_prehook(self, fn: Callable[..., Any]) -> RemovableHandle:
        """Call `fn(grad_outputs)` before this node."""


Node.register(_EngineNode)
Node.register(FunctionBase)


def get_gradient_edge(tensor: Tensor) -> GradientEdge:
    """Return the edge to the node that computed `tensor`. Raises RuntimeError if it requires no gradient."""
    edge = edge_of(tensor)
    if edge is None:
        raise RuntimeError(
            "It is not possible to get the gradient edge for a Tensor that does not require gradients"
        )
    node, output_nr = edge
    return GradientEdge(node.public, output_nr, node)


def set_warn_on_accumulate_grad_stream_mismatch(enabled: bool) -> None:
    """Enable or disable the warning about a leaf that accumulates on another stream than that of its gradient.

    The warning is on by default and appears once; enabling it lets it appear once more.

    Args:
        enabled: True to enable the warning.
    """
    shared_mode.warns_of_streams = enabled


class saved_tensors_hooks:
    """A context manager in which `pack_hook` is applied to saved tensors, and `unpack_hook` when backward uses them."""

    def __init__(self, pack_hook: Callable[[Tensor], Any], unpack_hook: Callable[[Any], Tensor]) -> None:
        self.pack_hook = pack_hook
        self.unpack_hook = unpack_hook

    def __enter__(self) -> None:
        if state.saving_forbidden is not None:
            raise RuntimeError(state.saving_forbidden)
        state.pack_hooks.append((self.pack_hook, self.unpack_hook))

    def __exit__(self, *error: object) -> None:
        state.pack_hooks.pop()


class save_on_cpu(saved_tensors_hooks):
    """A context manager whose saved tensors are moved to the CPU (`pin_memory`: to pinned memory) until backward uses
    them.
    """

    def __init__(self, pin_memory: bool = False, device_type: str = "cuda") -> None:
        def pack(tensor: Any) -> tuple[Any, Any]:
            if not pin_memory:
                return tensor.device, tensor.cpu()
            packed: Any = empty_pinned(tensor.detach().cpu().meta)
            packed.copy_(tensor)
            return tensor.device, packed

        def unpack(packed: tuple[Any, Any]) -> Any:
            device, tensor = packed
            return tensor.to(device, non_blocking=pin_memory)

        super().__init__(pack, unpack)


class disable_saved_tensors_hooks:
    """A context manager in which `saved_tensors_hooks` raises RuntimeError with this message."""

    def __init__(self, error_message: str) -> None:
        self.message = error_message

    def __enter__(self) -> None:
        if state.pack_hooks:
            raise RuntimeError(self.message)
        self._saved = state.saving_forbidden
        state.saving_forbidden = self.message

    def __exit__(self, *error: object) -> None:
        state.saving_forbidden = self._saved


class _Handles:
    def __init__(self, handles: Sequence[RemovableHandle]) -> None:
        self._handles = handles

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()


def register_multi_grad_hook(tensors: Sequence[Any], fn: Callable[..., None], *, mode: str = "all") -> Any:
    """Call `fn` once in each backward that computes gradients of `tensors`. The result's `remove()` removes the hook.

    Args:
        mode: "all" passes the list of gradients when all have been computed (None for tensors without one); "any"
            passes the first gradient.
    """
    if mode not in ("all", "any"):
        raise ValueError(f"Expects mode to be one of ('all', 'any') but got {mode}")
    edges = [edge_of(t) for t in tensors]
    grads: list[Any] = [None] * len(tensors)
    run_number = expected = -1

    def hook_of(i: int) -> Callable[[Any], None]:
        def hook(grad: Any) -> None:
            nonlocal run_number, expected
            if state.engine.number != run_number:
                run_number = state.engine.number
                grads[:] = [None] * len(tensors)
                count = sum(edge is not None and state.engine.expects_gradient(edge[0]) for edge in edges)
                expected = 1 if mode == "any" else count
            grads[i] = grad
            expected -= 1
            if expected == 0:
                argument = grad if mode == "any" else list(grads)
                grads[:] = [None] * len(tensors)
                fn(argument)

        return hook

    return _Handles([t.register_hook(hook_of(i)) for i, t in enumerate(tensors)])


class allow_mutation_on_saved_tensors:
    """A context manager in which saved tensors may be changed in place: backward uses the saved values.

    Every tensor is copied when it is saved (PyTorch copies those that are changed).

    Raises:
        AssertionError: If backward runs outside of the block.
    """

    def __enter__(self) -> allow_mutation_on_saved_tensors:
        self._open = True
        self._hooks = saved_tensors_hooks(lambda t: t.detach().clone(), self._unpack)
        self._hooks.__enter__()
        return self

    def _unpack(self, t: Tensor) -> Tensor:
        if not self._open:
            raise AssertionError(
                "Trying to backward outside of the 'allow_mutation_on_saved_tensors' contextin which the graph was "
                "originally recorded."
            )
        return t

    def __exit__(self, *error: object) -> None:
        self._open = False
        self._hooks.__exit__(*error)


def increment_version(tensor: Any) -> None:
    """Record that `tensor` (or each of several) was changed in place by code that autograd does not see."""
    for t in (tensor,) if isinstance(tensor, Tensor) else tensor:
        t.counter.version += 1


GradientEdge.__module__ = __name__
