"""Tensors from data: nested sequences, numbers, NumPy arrays, other tensors."""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np

from flambeau.core import dtype as dtypes
from flambeau.core.callsite import warn_program
from flambeau.core.device import CPU, device
from flambeau.core.dtype import BOOL, FLOATING, INTEGRAL, dtype
from flambeau.core.flags import flags
from flambeau.core.host_arrays import address_of
from flambeau.core.layout import contiguous_strides
from flambeau.core.meta import Meta
from flambeau.ops.copy import caster
from flambeau.runtime import system
from flambeau.tensor import dispatch, interception
from flambeau.tensor.arguments.options import (
    default_device,
    kind_of,
    kind_of_number,
    new_leaf,
    place_copy,
    place_data,
    refuse,
)
from flambeau.tensor.arguments.public import function, method
from flambeau.tensor.arguments.torch_function import DisableTorchFunctionSubclass
from flambeau.tensor.arguments.typing import strides_like
from flambeau.tensor.exchange.transfer import copy_as, item
from flambeau.tensor.storage import Storage
from flambeau.tensor.tensor import Tensor, make

Array = np.ndarray[Any, Any]


@function
def tensor(
    data: Any,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """Return a new tensor with a copy of `data`: nested sequences, a number, a NumPy array or a tensor.

    By default the dtype is inferred: Python floats give the default dtype, ints int64.

    Raises:
        ValueError: For ragged sequences.
        TypeError, RuntimeError: For a value that is not a number.
    """
    _warn_of_tensor(data, "torch.tensor")
    made = _copy_detached(data, _kind(dtype, "tensor"), place_data(device), pin_memory)
    return new_leaf(made, requires_grad)


@method
def new_tensor(
    self: Tensor,
    data: Any,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    layout: Any = None,
    pin_memory: bool = False,
) -> Tensor:
    """Return a new tensor with a copy of `data`, by default with this tensor's device and dtype."""
    refuse(layout)
    _warn_of_tensor(data, "tensor.new_tensor")
    kind = self.meta.dtype if dtype is None else kind_of(dtype, "new_tensor")
    made = _copy_detached(data, kind, self.meta.device if device is None else place_copy(device), pin_memory)
    return new_leaf(made, requires_grad)


def _copy_detached(data: Any, kind: dtype | None, where: device | None, pin: bool) -> Tensor:
    if isinstance(data, Tensor):
        with DisableTorchFunctionSubclass():
            data = data.detach()
    return new(data, kind, where, pin)


def _warn_of_tensor(data: Any, function: str) -> None:
    if isinstance(data, Tensor):
        warn_program(
            "To copy construct from a tensor, it is recommended to use sourceTensor.detach().clone() or "
            f"sourceTensor.detach().clone().requires_grad_(True), rather than {function}(sourceTensor).",
            UserWarning,
        )


def _kind(kind: Any, function: str) -> dtype | None:
    return None if kind is None else kind_of(kind, function)


def new(data: Any, kind: dtype | None, where: device | None, pin: bool = False) -> Tensor:
    """Return a new tensor with a copy of `data`, by default on the device of the data."""
    if isinstance(data, Tensor):
        meta = data.meta.with_(dtype=kind, device=where)
        return copy_as(data, meta.with_(strides=strides_like(meta, None)), pin=pin)
    where = default_device() if where is None else where
    here = _from_array(data, kind) if isinstance(data, np.ndarray) else _from_sequence(data, kind)
    if interception.count and dispatch.is_shown():
        with dispatch.without_modes():
            made = here if where is CPU and not pin else copy_as(here, here.meta.with_(device=where), pin=pin)
        return dispatch.show("lift_fresh", made)
    if where is CPU and not pin:
        return here
    return copy_as(here, here.meta.with_(device=where), pin=pin)


def over(array: Array, kind: dtype, storage: type[Storage] = Storage) -> Tensor:
    """Return a tensor that shares an array's memory. The tensor keeps the array alive."""
    itemsize = array.itemsize
    strides = tuple([s // itemsize for s in array.strides]) if array.size else contiguous_strides(array.shape)
    meta = Meta.of(array.shape, strides, kind, CPU)
    ptr = address_of(array) if array.size else 0
    memory = storage(ptr, meta.span, system.host, None, owner=array)
    system.host.driver.host_export(ptr, meta.span, "from_numpy()", memory)
    return make(meta, memory, ptr)


def _from_array(array: Array, kind: dtype | None) -> Tensor:
    return over(
        _convert_array(np.array(array, order="K"), numpy_kind(array), kind), kind or numpy_kind(array)
    )


def _convert_array(array: Array, source: dtype, target: dtype | None) -> Array:
    if target is None or source is target:
        return array
    out = np.empty_like(array, dtype=target.numpy)
    with np.errstate(all="ignore"):
        caster(source, target)(out, array)
    return out


def numpy_kind(array: Array) -> dtype:
    """Return the dtype of a NumPy array. Raises PyTorch's TypeError if PyTorch has none."""
    if array.dtype.byteorder == ">":
        raise ValueError(
            "given numpy array has byte order different from the native byte order. Conversion between "
            "byte orders is currently not supported."
        )
    try:
        return dtypes.from_numpy(array.dtype)
    except TypeError:
        raise TypeError(
            f"can't convert np.ndarray of type numpy.{array.dtype.type.__name__}. The only supported types "
            "are: float64, float32, float16, complex64, complex128, int64, int32, int16, int8, uint64, "
            "uint32, uint16, uint8, and bool."
        ) from None


# -- nested sequences -------------------------------------------------------------------------------------


def _from_sequence(data: Any, kind: dtype | None) -> Tensor:
    """Return a tensor of a number, or of nested sequences of numbers of equal lengths."""
    shape = _shape(data)
    types: set[Any] = set()
    if all(shape):
        _gather(data, shape, 0, types)
    else:
        _gather_loosely(data, types)
    if not types.isdisjoint((Tensor, np.ndarray)):
        types -= {Tensor, np.ndarray}
        data = _plain(data, len(shape), types)
    inferred = _infer_dtype(types, kind)
    target = kind or inferred
    _check_integers(types, target)
    if not all(shape):
        return over(np.empty(shape, target.numpy), target)
    source = _wide(inferred, target)
    return over(_convert_array(_array(data, source, target), source, target), target)


def _is_sequence(x: Any) -> bool:
    if isinstance(x, (list, tuple, range)):
        return True
    if isinstance(x, (Tensor, str, bytes, dict, np.generic)):
        return False
    return hasattr(x, "__len__") and hasattr(x, "__getitem__")


def _shape(data: Any) -> tuple[int, ...]:
    """Return the shape according to the first elements."""
    shape = []
    while _is_sequence(data):
        shape.append(len(data))
        if not shape[-1]:
            break
        data = data[0]
    if shape and isinstance(data, (str, bytes)):
        raise ValueError(f"too many dimensions '{type(data).__name__}'")
    return tuple(shape)


def _gather(data: Any, shape: tuple[int, ...], depth: int, types: set[Any]) -> None:
    """Check that all of `data` has `shape`, and add the types of its elements to `types`."""
    if depth == len(shape):
        types.add(type(data))
        return
    if not (_is_sequence(data) or (isinstance(data, Tensor) and data.meta.ndim)):
        raise TypeError("not a sequence")
    if len(data) != shape[depth]:
        raise ValueError(f"expected sequence of length {shape[depth]} at dim {depth} (got {len(data)})")
    if isinstance(data, np.ndarray):
        _gather_array(data, shape, depth, types)
    elif depth == len(shape) - 1:
        types.update(map(type, data))
    else:
        if isinstance(data[0], np.ndarray):
            warn_program(
                "Creating a tensor from a list of numpy.ndarrays is extremely slow. Please consider converting the "
                "list to a single numpy.ndarray with numpy.array() before converting to a tensor.",
                UserWarning,
            )
        for part in data:
            _gather(part, shape, depth + 1, types)


def _gather_loosely(data: Any, types: set[Any]) -> None:
    """Collect the types of all values in `data`, for a tensor without elements. Lengths are not checked then."""
    if not _is_sequence(data):
        types.add(type(data))
    elif not len(data):
        types.add(flags.default_dtype)
    else:
        for part in data:
            _gather_loosely(part, types)


def _gather_array(array: Array, shape: tuple[int, ...], depth: int, types: set[Any]) -> None:
    if array.shape != shape[depth:]:
        raise ValueError(f"expected sequence of shape {shape[depth:]} at dim {depth} (got {array.shape})")
    types.add(array.dtype.type)


def _plain(data: Any, depth: int, kinds: set[Any]) -> Any:
    """Return `data` with one-element tensors and arrays replaced by numbers. Adds their dtypes to `kinds`."""
    if depth:
        return [_plain(part, depth - 1, kinds) for part in data]
    if isinstance(data, np.ndarray):
        if data.ndim:
            raise TypeError("only 0-dimensional arrays can be converted to Python scalars")
        kinds.add(numpy_kind(data))
        return data.item()
    if not isinstance(data, Tensor):
        return data
    if data.meta.numel != 1:
        raise ValueError("only one element tensors can be converted to Python scalars")
    kinds.add(data.meta.dtype)
    return item(data)


def _infer_dtype(types: set[Any], target: dtype | None) -> dtype:
    """Return the common dtype of elements of these types, to be converted to `target`; the default dtype without
    elements.
    """
    kinds = [_kind_of_type(t, target) for t in types]
    if kinds and target is not None:  # nothing is promoted, so all kinds of numbers may be mixed
        return max(kinds, key=lambda kind: kind.category)
    return reduce(dtypes.promote_types, kinds) if kinds else flags.default_dtype


def _kind_of_type(kind: Any, target: dtype | None) -> dtype:
    if isinstance(kind, dtype):
        return kind
    if issubclass(kind, np.generic):
        return numpy_kind(np.empty(0, kind))
    for python in (bool, int, float, complex):
        if issubclass(kind, python):
            return kind_of_number(python())
    if issubclass(kind, (str, bytes)):
        raise TypeError(f"new(): invalid data type '{kind.__name__}'")
    if issubclass(kind, (list, tuple)):
        raise TypeError(f"'{kind.__name__}' object cannot be interpreted as an integer")
    if target is None:
        raise RuntimeError(f"Could not infer dtype of {kind.__name__}")
    if target.category >= FLOATING:
        raise TypeError(f"must be real number, not {kind.__name__}")
    raise TypeError(f"'{kind.__name__}' object cannot be interpreted as an integer")


def _check_integers(types: set[Any], target: dtype) -> None:
    """Raise TypeError for NumPy's numbers that are not integers for PyTorch when `target` is integral."""
    if target.category != INTEGRAL:
        return
    for kind in types:
        if not isinstance(kind, dtype) and issubclass(kind, np.bool_ | np.integer):
            if target is dtypes.uint64:
                raise TypeError(f"an integer is required; got numpy.{kind.__name__}")
            if kind is np.bool_:
                raise TypeError("'numpy.bool' object cannot be interpreted as an integer")


def _wide(inferred: dtype, target: dtype) -> dtype:
    """Return a wide dtype to read numbers in before they are converted to `target`, so that nothing is lost."""
    if inferred.is_complex:
        if not target.is_complex and target.category != BOOL:
            raise TypeError("must be real number, not complex")
        return dtypes.complex128
    if inferred.is_floating_point or target.category >= FLOATING:
        return dtypes.float64
    if target is dtypes.uint64:
        return target
    return dtypes.bool_ if target is dtypes.bool_ else dtypes.int64


def _array(data: Any, source: dtype, target: dtype) -> Array:
    """Return the numbers as an array of dtype `source`. Raises if they do not fit an integral `target`."""
    try:  # NumPy checks the range of Python's numbers only
        array = np.array(data.item() if isinstance(data, np.generic) else data, source.numpy)
    except OverflowError:
        raise ValueError("Overflow when unpacking long long") from None
    if target.category == INTEGRAL and source is not target:
        _check_range(array, target)
    return array


def _check_range(array: Array, target: dtype) -> None:
    limits = np.iinfo(target.numpy)
    low = int(limits.min) if target.is_signed else -int(limits.max)  # PyTorch wraps negative numbers
    with np.errstate(all="ignore"):
        fits = (array >= low) & (array <= int(limits.max))
    if not fits.all():
        raise RuntimeError(f"value cannot be converted to type {target.name} without overflow")
