"""The properties of a tensor, and its conversions to Python: a truth value, a number, an index, a length."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flambeau.core.device import CPU, META
from flambeau.core.dtype import BOOL, INTEGRAL
from flambeau.tensor.arguments.public import alias, both, function, method
from flambeau.tensor.arguments.typing import LAYOUTS, layout, strided
from flambeau.tensor.exchange.transfer import item
from flambeau.tensor.tensor import Tensor


def _property(define: Callable[[Tensor], Any]) -> Callable[[Tensor], Any]:
    alias(define.__name__, property(define), as_function=False)  # type: ignore[arg-type]
    return define


@_property
def is_cuda(self: Tensor) -> bool:
    """Return True if the tensor is on a CUDA device."""
    return self.meta.device.type == "cuda"


@_property
def is_cpu(self: Tensor) -> bool:
    """Return True if the tensor is on the CPU."""
    return self.meta.device is CPU


@_property
def is_meta(self: Tensor) -> bool:
    """Return True if the tensor is on the meta device, and so has no data."""
    return self.meta.device is META


@_property
def is_sparse(self: Tensor) -> bool:
    """Return True if the tensor has COO layout."""
    return self.meta.layout == "sparse_coo"


@_property
def is_sparse_csr(self: Tensor) -> bool:
    """Return True if the tensor has CSR layout."""
    return self.meta.layout == "sparse_csr"


@_property
def is_quantized(self: Tensor) -> bool:
    """Return False: Flambeau has no quantized tensors."""
    return False


_no: Any = property(lambda self: False, doc="False: Flambeau has no such tensors.")
for _kind in ("ipu", "maia", "mkldnn", "mps", "mtia", "nested", "vulkan", "xla", "xpu"):
    alias(f"is_{_kind}", _no, as_function=False)


def _layout(self: Tensor) -> layout:
    meta = self.meta
    return LAYOUTS[meta.layout] if meta.sparse else strided


alias("layout", property(_layout), as_function=False)  # type: ignore[arg-type]


@_property
def itemsize(self: Tensor) -> int:
    """Return bytes per element."""
    return self.meta.itemsize


@_property
def nbytes(self: Tensor) -> int:
    """Return bytes of its elements."""
    return self.meta.nbytes


@both
def get_device(self: Tensor) -> int:
    """Return the index of its CUDA device; -1 on the CPU."""
    return -1 if self.meta.device.index is None else self.meta.device.index


@function
def is_tensor(obj: Any) -> bool:
    """Return True if an object is a tensor."""
    return isinstance(obj, Tensor)


# -- to Python --------------------------------------------------------------------------------------------


@method
def __bool__(self: Tensor) -> bool:
    if self.meta.numel != 1:
        what = "no values" if not self.meta.numel else "more than one value"
        raise RuntimeError(f"Boolean value of Tensor with {what} is ambiguous")
    return bool(item(self))


def _one(self: Tensor) -> Any:
    if self.meta.numel != 1:
        raise ValueError("only one element tensors can be converted to Python scalars")
    return item(self)


def _real(self: Tensor, kind: str) -> Any:
    value = _one(self)
    if isinstance(value, complex):
        if value.imag:
            raise RuntimeError(f"value cannot be converted to type {kind} without overflow")
        return value.real
    return value


@method
def __float__(self: Tensor) -> float:
    return float(_real(self, "double"))


@method
def __int__(self: Tensor) -> int:
    return int(_real(self, "int64_t"))


@method
def __complex__(self: Tensor) -> complex:
    return complex(_one(self))


@method
def __index__(self: Tensor) -> int:
    if self.meta.numel != 1 or self.meta.dtype.category not in (BOOL, INTEGRAL):
        raise TypeError("only integer tensors of a single element can be converted to an index")
    return int(_real(self, "int64_t"))


@method
def __len__(self: Tensor) -> int:
    if not self.meta.ndim:
        raise TypeError("len() of a 0-d tensor")
    return self.meta.shape[0]


@method
def __hash__(self: Tensor) -> int:
    return id(self)
