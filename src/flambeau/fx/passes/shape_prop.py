"""Shapes and dtypes of a graph's values, from a run with example inputs."""

from __future__ import annotations

from typing import Any, NamedTuple

import flambeau as torch
from flambeau.core.public_names import publish
from flambeau.fx.interpreter import Interpreter
from flambeau.fx.node import Node, map_aggregate
from flambeau.tensor.tensor import Tensor

__all__ = ["ShapeProp", "TensorMetadata"]


class TensorMetadata(NamedTuple):
    """Properties of a tensor without its data."""

    shape: Any
    dtype: Any
    requires_grad: bool
    stride: tuple[int, ...]
    memory_format: Any
    is_quantized: bool
    qparams: dict[str, Any]


def _extract_tensor_metadata(result: Tensor, include_contiguity: bool = True) -> TensorMetadata:
    found = None
    if include_contiguity:
        formats = (torch.contiguous_format, torch.channels_last, torch.channels_last_3d)
        fitting = [
            each
            for each, dims in zip(formats, (None, 4, 5), strict=True)
            if dims in (None, result.dim()) and result.is_contiguous(memory_format=each)
        ]
        found = fitting[0] if fitting else None
    return TensorMetadata(result.shape, result.dtype, result.requires_grad, result.stride(), found, False, {})


class ShapeProp(Interpreter):
    """An interpreter that stores `meta["tensor_meta"]` and `meta["type"]` of each node.

    Args:
        gm: The module.
        fake_mode: Not supported; must be None.
    """

    def __init__(self, gm: Any, fake_mode: Any = None) -> None:
        super().__init__(gm)
        if fake_mode is not None:
            raise NotImplementedError(
                "ShapeProp(fake_mode=...) needs fake tensors, which Flambeau lacks; propagate real ones, or tensors of "
                "`device='meta'`"
            )

    def run_node(self, n: Node) -> Any:
        """Run a node and store shape, dtype and similar properties of its value."""
        result = super().run_node(n)
        is_tensor_found = False

        def extract(value: Any) -> Any:
            nonlocal is_tensor_found
            if not isinstance(value, Tensor):
                return value
            is_tensor_found = True
            return _extract_tensor_metadata(value)

        meta = map_aggregate(result, extract)
        if is_tensor_found:
            n.meta["tensor_meta"] = meta
        n.meta["type"] = type(result)
        return result

    def propagate(self, *args: Any) -> Any:
        """Run the module with example inputs and return its result."""
        return super().run(*args)


publish(globals())
