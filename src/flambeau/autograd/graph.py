"""`torch.autograd.graph`: nodes, edges, and hooks around what nodes save."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from flambeau.core.handle import RemovableHandle
from flambeau.tape.mode import mode
from flambeau.tape.node import Node
from flambeau.tensor.history import edge_of
from flambeau.tensor.tensor import Tensor
from flambeau.tensor.transfer import empty_pinned


class GradientEdge(NamedTuple):
    """A place in the graph: output `output_nr` of `node`."""

    node: Node
    output_nr: int


def get_gradient_edge(tensor: Tensor) -> GradientEdge:
    """The place in the graph that `tensor` stands for. Raises RuntimeError if it requires no gradient."""
    edge = edge_of(tensor)
    if edge is None:
        raise RuntimeError(
            "It is not possible to get the gradient edge for a Tensor that does not require gradients"
        )
    return GradientEdge(*edge)


class saved_tensors_hooks:
    """Context manager: what nodes save inside goes through `pack_hook`, and through `unpack_hook` when it is used."""

    def __init__(self, pack_hook: Callable[[Tensor], Any], unpack_hook: Callable[[Any], Tensor]) -> None:
        self.pack_hook = pack_hook
        self.unpack_hook = unpack_hook

    def __enter__(self) -> None:
        if mode.why_not is not None:
            raise RuntimeError(mode.why_not)
        mode.pack_hooks.append((self.pack_hook, self.unpack_hook))

    def __exit__(self, *error: object) -> None:
        mode.pack_hooks.pop()


class save_on_cpu(saved_tensors_hooks):
    """Context manager: what nodes save inside waits on the CPU (`pin_memory`: in pinned memory) until it is used."""

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
    """Context manager: `saved_tensors_hooks` inside raises RuntimeError with this message."""

    def __init__(self, error_message: str) -> None:
        self.message = error_message

    def __enter__(self) -> None:
        self._saved = mode.why_not
        mode.why_not = self.message

    def __exit__(self, *error: object) -> None:
        mode.why_not = self._saved


class _Handles:
    def __init__(self, handles: Sequence[RemovableHandle]) -> None:
        self._handles = handles

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()


def register_multi_grad_hook(tensors: Sequence[Any], fn: Callable[..., None], *, mode: str = "all") -> Any:
    """Call `fn` with the gradients of `tensors` when all have come ("all"), or with the first that comes ("any")."""
    if mode not in ("all", "any"):
        raise ValueError(f"Expects mode to be one of ('all', 'any') but got {mode}")
    count = len(tensors)
    arrived: dict[int, Any] = {}

    def hook_of(i: int) -> Callable[[Any], None]:
        def hook(grad: Any) -> None:
            arrived[i] = grad
            if mode == "any" and len(arrived) == 1:
                fn(grad)
            if len(arrived) == count:
                if mode == "all":
                    fn([arrived[j] for j in range(count)])
                arrived.clear()

        return hook

    return _Handles([t.register_hook(hook_of(i)) for i, t in enumerate(tensors)])


def increment_version(tensor: Any) -> None:
    """Say that `tensor` (or each of several) was changed in place by code that autograd does not see."""
    for t in (tensor,) if isinstance(tensor, Tensor) else tensor:
        t.counter.version += 1


Node.__module__ = "torch.autograd.graph"
