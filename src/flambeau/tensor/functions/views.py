"""Views: tensors over the memory of another tensor, with which they share storage and version counter.

Conjugation is physical here (`conj` of a complex tensor is a new tensor), so `is_conj` and `is_neg` are always False.
PyTorch's `conj` is a view that conjugates when it is read; docs/operators.md gives the reason for the difference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from operator import index
from typing import Any

from flambeau.core.callsite import warn_program
from flambeau.core.dtype import INTEGRAL, dtype, int64
from flambeau.core.errors import RaceError, argument_type, type_name
from flambeau.core.layout import Shape, broadcast_shapes, plain_dim, view_strides, wrap_dim
from flambeau.core.meta import Meta
from flambeau.core.size import Size, size_of
from flambeau.ops import view as records
from flambeau.tape.autograd_node import Leaf
from flambeau.tape.mode import mode
from flambeau.tensor import dispatch, interception, layout_functions
from flambeau.tensor.arguments.arg_errors import IntTuple
from flambeau.tensor.arguments.extents import int_of, ints_of, require_within
from flambeau.tensor.arguments.integers import as_int, int_or_none, is_int, refuse_bool_tensors
from flambeau.tensor.arguments.public import (
    alias,
    behind,
    both,
    function,
    method,
    method_and_function,
    method_of,
)
from flambeau.tensor.autograd.autograd_meta import (
    SplitBackward0,
    SplitWithSizesBackward0,
    UnbindBackward0,
    requires_grad,
    run,
    run_several,
)
from flambeau.tensor.autograd.grad_validation import forget_base
from flambeau.tensor.autograd.inplace_checks import refuse_inference, require_changeable
from flambeau.tensor.autograd.leaves import release_leaf
from flambeau.tensor.signatures import accepts, signatures
from flambeau.tensor.tensor import AutogradMeta, Tensor, ViewMeta, make_view

_ONLY_INTS = {int}
_BOOLS_ARE_INTS = ("dim", "indices")  # arguments of which a tensor of dtype bool is an int, as in PyTorch


def ints(values: Any, function: str, name: str) -> tuple[int, ...]:
    """Return a tuple of ints from an int, a sequence of ints, or the varargs of a method. Raises TypeError."""
    if isinstance(values, tuple) and len(values) == 1 and isinstance(values[0], (list, tuple)):
        values = values[0]
    elif not isinstance(values, (list, tuple)):
        values = (values,)
    try:
        if values and values[0].__class__ is bool:
            raise TypeError
        plain = tuple(map(index, values))
        if plain and set(map(type, values)) != _ONLY_INTS and not name.startswith(_BOOLS_ARE_INTS):
            refuse_bool_tensors(values, function, name)
    except TypeError:
        if isinstance(values[0], bool):
            raise TypeError(f"{function}(): argument '{name}' must be tuple of ints, not bool") from None
        bad = next(v for v in values if int_or_none(v) is None)
        raise TypeError(
            f"{function}(): argument '{name}' must be tuple of ints, but found element of type "
            f"{type(bad).__name__}"
        ) from None
    if max(map(int.bit_length, plain), default=0) > 63:
        return ints_of(plain, function, name, 1)
    return plain


def given_ints(args: tuple[Any, ...], keyword: Any, function: str, name: str) -> tuple[int, ...]:
    """Return the ints of a call as varargs, as one sequence, or by keyword."""
    if keyword is not None:
        if args:
            raise TypeError(f"{function}() got multiple values for argument '{name}'")
        if name != "dim" and not isinstance(keyword, list | tuple):
            raise TypeError(
                f"{function}(): argument '{name}' must be tuple of ints, not {type_name(keyword)}"
            )
        return ints((keyword,), function, name)
    if not args:
        raise TypeError(f'{function}() missing 1 required positional arguments: "{name}"')
    return ints(args, function, name)


def tensors_of(tensors: Any, function: str) -> tuple[Tensor, ...]:
    """Return a sequence of tensors as a tuple. Raises TypeError for anything else."""
    if tensors.__class__ not in (list, tuple) and (
        isinstance(tensors, Tensor) or not isinstance(tensors, Sequence)
    ):
        raise TypeError(
            f"{function}(): argument 'tensors' (position 1) must be tuple of Tensors, "
            f"not {type(tensors).__name__}"
        )
    for i, t in enumerate(tensors):
        if not isinstance(t, Tensor):
            raise TypeError(f"expected Tensor as element {i} in argument 0, but got {type(t).__name__}")
    return tuple(tensors)


def _property(define: Callable[[Tensor], Any]) -> Callable[[Tensor], Any]:
    alias(define.__name__, property(define), as_function=False)  # type: ignore[arg-type]
    return define


# -- what a tensor says of its layout ---------------------------------------------------------------------


@_property
def shape(self: Tensor) -> Size:
    """Return the size of each dimension."""
    return size_of(self.meta.shape)


@method
def size(self: Tensor, dim: int | None = None) -> Any:
    """Return the shape, or the size of one dimension."""
    return size_of(self.meta.shape) if dim is None else self.meta.shape[_dim(self, dim)]


@method
def stride(self: Tensor, dim: int | None = None) -> Any:
    """Return the distance in elements between consecutive indices, of every dimension or of one."""
    if self.meta.sparse:
        strides = layout_functions.find("stride")(self)
        return strides if dim is None else strides[_dim(self, dim)]
    return self.meta.strides if dim is None else self.meta.strides[_dim(self, dim)]


def _dim(t: Tensor, dim: int) -> int:
    if not t.meta.ndim:
        raise IndexError(f"Dimension specified as {dim} but tensor has no dimensions")
    return wrap_dim(as_int(dim), t.meta.ndim)


@_property
def _base(self: Tensor) -> Tensor | None:
    """Return the tensor of which this tensor is a view."""
    return self.base


@method
def _is_view(self: Tensor) -> bool:
    return self.base is not None


alias("nelement", Tensor.numel, as_function=False)
alias("ndimension", Tensor.dim, as_function=False)


@function
def numel(input: Tensor) -> int:
    """Return the number of elements."""
    return Tensor.numel(input)


@both
def detach(input: Tensor) -> Tensor:
    """Return a tensor with the same memory and version counter, and no history."""
    if interception.count and dispatch.is_shown((input,)):
        return dispatch.show("detach", input)
    alike = make_view(input, input.meta)
    if input.meta.sparse:  # whose changes in place may give it other parts
        alike.memory = input.memory.copy()  # type: ignore[attr-defined]
    return alike


class _OwnCounter:
    """The version counter of a `.data` alias, which its original does not share."""

    __slots__ = ("__weakref__", "version")

    def __init__(self) -> None:
        self.version = 0


def _data(self: Tensor) -> Tensor:
    """Return a tensor with the same memory and a separate version counter, so that autograd does not see its
    changes.
    """
    if interception.count and dispatch.is_shown((self,)):
        return dispatch.show("detach", self)
    alike = make_view(self, self.meta)
    if self.meta.sparse:
        alike.memory = self.memory.copy()  # type: ignore[attr-defined]
    alike.counter = _OwnCounter()
    return alike


def _set_data(self: Tensor, other: Tensor) -> None:
    """Make this tensor use another tensor's memory. The tensor keeps its identity and version counter."""
    if not isinstance(other, Tensor):
        raise TypeError(f"Variable data has to be a tensor, but got {type(other).__name__}")
    version = self.counter.version
    self.meta, self.memory, self.ptr = other.meta, other.memory, other.ptr
    self.counter = _OwnCounter()  # the tensor's counter would keep the old memory alive
    self.counter.version = version
    if self.history is not None and isinstance(self.history.node, Leaf):
        self.history.node.set_meta(other.meta)


alias("data", property(_data, _set_data), as_function=False)  # type: ignore[arg-type]


# -- shapes -----------------------------------------------------------------------------------------------


def _front_of_view(view: Any) -> Any:
    """Return what `behind` needs so that a method with ints alone, or a tuple of them, runs `view(tensor, ints)`."""

    def front(checked: Any) -> Any:
        def call(self: Any, *args: Any, **given: Any) -> Any:
            if args and not given:
                values = args[0] if len(args) == 1 and args[0].__class__ is tuple else args
                for value in values:
                    if value.__class__ is not int:
                        return checked(self, *args)
                try:
                    return view(self, values)
                except RaceError:
                    raise
                except (IndexError, RuntimeError):
                    if max(map(int.bit_length, values), default=0) > 63:
                        return checked(self, *args)
                    raise
            return checked(self, *args, **given)

        return call

    return front


def _view_as_shape(t: Tensor, shape: Shape) -> Tensor:
    return run(records.view, t, shape)


def _expand_to(t: Tensor, shape: Shape) -> Tensor:
    return run(records.expand, t, shape)


def _permute_to(t: Tensor, dims: Shape) -> Tensor:
    return run(records.permute, t, dims)


@behind(_front_of_view(_view_as_shape), as_function=False)
@signatures(shown="Tensor.view(*shape: int)")
def view(self: Tensor, *shape: Any, size: Any = None, dtype: dtype | None = None) -> Tensor:
    """Return a view with another shape (one size may be -1) or another dtype."""
    if dtype is not None and (shape or size is not None):
        raise TypeError(
            "view() received an invalid combination of arguments - it takes a dtype or a size, not both"
        )
    kind: Any = shape[0] if len(shape) == 1 and size is None and dtype is None else dtype
    if _is_dtype(kind):
        offset, ratio = self.storage_offset(), kind.itemsize // self.meta.itemsize
        if ratio > 1 and self.meta.ndim and self.meta.strides[-1] == 1 and offset % ratio:
            raise RuntimeError(
                f"self.storage_offset() must be divisible by {ratio} to view {self.meta.dtype.torch_name} as "
                f"{kind.torch_name} (different element sizes), but got {offset}"
            )
        return run(records.view_dtype, self, kind)
    return run(records.view, self, given_ints(shape, size, "view", "size"))


def _is_dtype(x: Any) -> bool:
    return isinstance(x, dtype)


@method
def view_as(self: Tensor, other: Tensor) -> Tensor:
    """Return a view in the shape of `other`."""
    return run(records.view, self, other.meta.shape)


@both
@signatures(
    "reshape(input: Tensor, shape: IntTuple)",
    shown="""
reshape(input: Tensor, shape: IntTuple)
Tensor.reshape(*shape: int)
""",
)
def reshape(input: Tensor, *args: Any, shape: Any = None) -> Tensor:
    """Return another shape of the same elements: a view where the strides allow it, else a copy."""
    return _reshape(input, given_ints(args, shape, "reshape", "shape"))


def _reshape(t: Tensor, shape: Sequence[int]) -> Tensor:
    new, viewed = _resolve_shape(t.meta, tuple(shape))
    if not viewed:
        return forget_base(run(records._unsafe_view, _plain_copy(t), new))
    return run(records.view, t, new)


@lru_cache(1024)
def _resolve_shape(meta: Meta, shape: Shape) -> tuple[Shape, bool]:
    """Return the shape with -1 resolved, and True if a view can have this shape."""
    new = records.infer_shape(shape, meta.numel)
    return new, view_strides(meta.shape, meta.strides, new) is not None


def _plain_copy(t: Tensor) -> Tensor:
    copied: Tensor = t.contiguous()
    return copied


@method
def reshape_as(self: Tensor, other: Tensor) -> Tensor:
    """Return a tensor in the shape of `other`, a view if possible."""
    return _reshape(self, other.meta.shape)


@both
def flatten(input: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """Return a tensor with the dimensions from `start_dim` to `end_dim` merged into one."""
    meta = input.meta
    start, end = wrap_dim(start_dim, meta.ndim), wrap_dim(end_dim, meta.ndim)
    if start > end:
        raise RuntimeError("flatten() has invalid args: start_dim cannot come after end_dim")
    if meta.ndim == 0:
        return _reshape(input, (1,))
    if start == end:
        return input
    run_length = 1
    for n in meta.shape[start : end + 1]:
        run_length *= n
    return _reshape(input, (*meta.shape[:start], run_length, *meta.shape[end + 1 :]))


@both
def ravel(input: Tensor) -> Tensor:
    """Return the tensor flattened to one dimension and contiguous."""
    flat: Tensor = _plain_copy(input)
    return run(records.view, flat, (-1,)) if flat.meta.ndim != 1 else flat


@both
def unflatten(input: Tensor, dim: int, sizes: IntTuple) -> Tensor:
    """Return a view with one dimension split into several; one size may be -1."""
    new = ints((sizes,), "unflatten", "sizes")
    if not new:
        raise RuntimeError("unflatten: sizes must be non-empty")
    d = wrap_dim(dim, input.meta.ndim)
    if not input.meta.ndim:
        raise RuntimeError(
            f"unflatten got an unexpected error:\nDimension specified as {dim} but tensor has no dimensions"
        )
    size = input.meta.shape[d]
    try:
        new = records.infer_shape(new, size)
    except RuntimeError as error:
        if "is invalid for input" in str(error):
            raise RuntimeError(
                f"unflatten: Provided sizes {list(new)} don't multiply up to the size of dim {d} ({size}) "
                "in the input tensor"
            ) from None
        raise RuntimeError(f"unflatten got an unexpected error:\n{error}") from None
    return run(records.view, input, (*input.meta.shape[:d], *new, *input.meta.shape[d + 1 :]))


@behind(_front_of_view(_expand_to), as_function=False)
@signatures(
    "Tensor.expand(size: IntTuple, *, implicit: bool=)",
    shown="Tensor.expand(*size: int, implicit: bool=False)",
)
def expand(self: Tensor, *sizes: Any, size: Any = None, implicit: bool = False) -> Tensor:
    """Return a view in which dimensions of size 1 have larger sizes, without a copy; -1 keeps a size."""
    return run(records.expand, self, given_ints(sizes, size, "expand", "size"))


@method
def expand_as(self: Tensor, other: Tensor) -> Tensor:
    """Return a view expanded to the shape of `other`."""
    return run(records.expand, self, other.meta.shape)


@function
def broadcast_to(input: Tensor, size: IntTuple) -> Tensor:
    """Return the tensor expanded to a shape."""
    return run(records.expand, input, ints((size,), "broadcast_to", "size"))


@signatures("Tensor.broadcast_to(size: IntTuple)")
def _broadcast_to(self: Tensor, *sizes: Any, size: Any = None) -> Tensor:
    return broadcast_to(self, given_ints(sizes, size, "broadcast_to", "size"))


method_of(broadcast_to, _broadcast_to)


@function
def broadcast_tensors(*tensors: Any) -> tuple[Tensor, ...]:
    """Return the tensors expanded to their common shape. A tensor that has this shape is returned itself."""
    listed = tensors_of(tensors[0] if len(tensors) == 1 and not isinstance(tensors[0], Tensor) else tensors,
                        "broadcast_tensors")  # fmt: skip
    shape = broadcast_shapes([t.meta.shape for t in listed])
    return tuple([t if t.meta.shape == shape else run(records.expand, t, shape) for t in listed])


def _broadcast_shapes(*shapes: Any) -> Size:
    """Return the shape to which tensors of these shapes broadcast. None counts as no shape."""
    sizes = [_sizes_of(shape) for shape in shapes if shape is not None]
    common = [1] * max(map(len, sizes), default=0)
    for at, shape in enumerate(sizes):
        for i in range(-1, -1 - len(shape), -1):
            if shape[i] in (1, common[i]):
                continue
            if common[i] != 1:
                raise RuntimeError(
                    f"Attempting to broadcast a dimension of length {shape[i]} at {i}! Mismatching argument at index "
                    f"{at} had {shape}; but expected shape should be broadcastable to {common}"
                )
            if shape[i] < 0:
                raise ValueError(
                    f"Attempting to broadcast a dimension with negative length! Argument {at} is {shape}"
                )
            common[i] = shape[i]
    return Size(common)


def _sizes_of(shape: Any) -> tuple[int, ...]:
    """Return a shape that is a sequence of ints, or one int. Raises RuntimeError, TypeError."""
    if isinstance(shape, int):
        return (int(shape),)
    if not isinstance(shape, Sequence):
        raise RuntimeError(
            f"Input shapes should be of type ints, a tuple of ints, or a list of ints, got {shape}"
        )
    if any(isinstance(n, Tensor) for n in shape):
        raise TypeError(
            "broadcast_shapes(): argument 'shapes' must be tuple of ints, but found element of type Tensor"
        )
    return tuple(map(index, shape))


alias("broadcast_shapes", _broadcast_shapes, as_method=False)


# -- dimensions -------------------------------------------------------------------------------------------


@function
def permute(input: Tensor, dims: IntTuple) -> Tensor:
    """Return a view with the dimensions in another order."""
    if isinstance(dims, int):
        raise TypeError("permute(): argument 'dims' (position 2) must be tuple of ints, not int")
    return run(records.permute, input, given_ints((dims,), None, "permute", "dims"))


@signatures("Tensor.permute(dims: IntTuple)", shown="Tensor.permute(*dims: int)")
def _permute(self: Tensor, *args: Any, dims: Any = None) -> Tensor:
    return run(records.permute, self, given_ints(args, dims, "permute", "dims"))


method_of(permute, _permute, _front_of_view(_permute_to))


@both
@signatures(
    "swapaxes(input: Tensor, axis0: int, axis1: int)", shown="swapaxes(input: Tensor, axis0: int, axis1: int)"
)
@accepts("swapaxes", axis0="dim0", axis1="dim1")
def transpose(input: Tensor, dim0: int, dim1: int) -> Tensor:
    """Return two dimensions swapped."""
    first = dim0 if dim0.__class__ is int else plain_dim(dim0)
    second = dim1 if dim1.__class__ is int else plain_dim(dim1)
    return run(records.transpose, input, first, second)


@both
def t(input: Tensor) -> Tensor:
    """Return a matrix transposed; tensors with fewer dimensions are returned unchanged."""
    if input.meta.ndim > 2:
        raise RuntimeError(f"t() expects a tensor with <= 2 dimensions, but self is {input.meta.ndim}D")
    return run(records.t, input)


@both
@signatures("""
moveaxis(input: Tensor, source: IntTuple, destination: IntTuple)
moveaxis(input: Tensor, source: int, destination: int)
movedim(input: Tensor, source: IntTuple, destination: IntTuple)
movedim(input: Tensor, source: int, destination: int)
""")
def movedim(input: Tensor, source: Any, destination: Any) -> Tensor:
    """Return a view with some dimensions moved to new positions. The other dimensions keep their order."""
    listed = ints((source,), "movedim", "source"), ints((destination,), "movedim", "destination")
    if len(listed[0]) != len(listed[1]):
        raise RuntimeError(
            f"movedim: Invalid source or destination dims: source ({list(listed[0])} dims) should contain "
            f"the same number of dims as destination ({list(listed[1])} dims)"
        )
    places = []
    for name, dims in zip(("source", "destination"), listed, strict=True):
        wrapped = [wrap_dim(d, input.meta.ndim) for d in dims]
        if len(set(wrapped)) != len(wrapped):
            raise RuntimeError(f"movedim: repeated dim in `{name}` ({list(dims)})")
        places.append(wrapped)
    if input.meta.ndim == 0:
        return run(records.permute, input, ())
    order = [d for d in range(input.meta.ndim) if d not in places[0]]
    for to, d in sorted(zip(places[1], places[0], strict=True)):
        order.insert(to, d)
    return run(records.permute, input, tuple(order))


@function
@signatures("""
squeeze(input: Tensor)
squeeze(input: Tensor, dim: int | IntTuple)
""")
def squeeze(input: Tensor, dim: Any = None) -> Tensor:
    """Return a view without dimensions of size 1: without all of them, one, or those of a tuple."""
    dims = None if dim is None else ints((dim,), "squeeze", "dim")
    return run(records.squeeze, input, dims)


@signatures(shown="Tensor.squeeze(dim: IntOrTuple | None=None)")
def _squeeze(self: Tensor, *dims: Any, dim: Any = None) -> Tensor:
    return squeeze(self, dims_given(dims, dim, "squeeze"))


def dims_given(args: tuple[Any, ...], keyword: Any, function: str) -> tuple[int, ...] | None:
    """Return the dimensions of a method's call, as varargs, as a tuple or by keyword; None if there are none."""
    if keyword is None and args in ((), (None,)):
        return None
    return given_ints(args, keyword, function, "dim")


method_of(squeeze, _squeeze)


@both
def unsqueeze(input: Tensor, dim: int) -> Tensor:
    """Return a view with a new dimension of size 1 at `dim`."""
    return run(records.unsqueeze, input, dim if dim.__class__ is int else plain_dim(dim))


@both
def adjoint(input: Tensor) -> Tensor:
    """Return the last two dimensions swapped and the elements conjugated."""
    return conj(_swapped_last(input, "tensor.adjoint()"))


def _swapped_last(t: Tensor, name: str) -> Tensor:
    if t.meta.ndim == 0:
        _warn_of_number(name)
        return run(records.alias, t)
    if t.meta.ndim < 2:
        raise RuntimeError(
            f"{name} is only supported on matrices or batches of matrices. Got {t.meta.ndim}-D tensor."
        )
    return run(records.transpose, t, -2, -1)


def _warn_of_number(name: str) -> None:
    warn_program(
        f"{name} is deprecated on 0-D tensors. This function is the identity in these cases.",
        UserWarning,
    )


@_property
def T(self: Tensor) -> Tensor:  # noqa: N802
    """Return the dimensions in reverse order; meant for matrices."""
    if self.meta.ndim == 0:
        _warn_of_number("Tensor.T")
    elif self.meta.ndim != 2:
        warn_program(
            "The use of `x.T` on tensors of dimension other than 2 to reverse their shape is deprecated and "
            "it will throw an error in a future release. Consider `x.mT` to transpose batches of matrices or "
            "`x.permute(*torch.arange(x.ndim - 1, -1, -1))` to reverse the dimensions of a tensor.",
            UserWarning,
        )
    return run(records.permute, self, tuple(range(self.meta.ndim))[::-1])


@_property
def mT(self: Tensor) -> Tensor:  # noqa: N802
    """Return a view with the last two dimensions exchanged."""
    return _swapped_last(self, "tensor.mT")


@_property
def H(self: Tensor) -> Tensor:  # noqa: N802
    """Return a matrix transposed and conjugated."""
    if self.meta.ndim in (0, 2):
        return conj(_swapped_last(self, "tensor.H"))
    more = " For batches of matrices, consider using tensor.mH" if self.meta.ndim > 2 else ""
    raise RuntimeError(
        f"tensor.H is only supported on matrices (2-D tensors). Got {self.meta.ndim}-D tensor.{more}"
    )


@_property
def mH(self: Tensor) -> Tensor:  # noqa: N802
    """Return the last two dimensions swapped and the elements conjugated."""
    return conj(_swapped_last(self, "tensor.mH"))


@both
def diagonal(input: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """Return a diagonal of two dimensions, as the last dimension."""
    return run(records.diagonal, input, as_int(offset), as_int(dim1), as_int(dim2))


@method
def unfold(self: Tensor, dimension: int, size: int, step: int) -> Tensor:
    """Return a view of every window of `size` along a dimension, `step` apart. The last dimension is the position in a
    window.
    """
    return run(records.unfold, self, as_int(dimension), as_int(size), as_int(step))


# -- parts ------------------------------------------------------------------------------------------------


@both
def select(input: Tensor, dim: int, index: int) -> Tensor:
    """Return the view at one index of a dimension, without that dimension."""
    return run(records.select, input, as_int(dim), as_int(index))


@both
@signatures("narrow(input: Tensor, dim: int, start: Tensor | int, length: int)")
def narrow(input: Tensor, dim: int, start: Any, length: int) -> Tensor:
    """Return `length` indices of a dimension from `start` on."""
    if input.meta.ndim == 0:
        raise RuntimeError("narrow() cannot be applied to a 0-dim tensor.")
    length = as_int(length)
    if length < 0:
        raise RuntimeError("narrow(): length must be non-negative.")
    if isinstance(start, Tensor) and (start.meta.ndim or start.dtype.category != INTEGRAL):
        raise RuntimeError("start must be an 0-dim integral Tensor.")
    d, start = wrap_dim(dim, input.meta.ndim), as_int(start)
    size = input.meta.shape[d]
    if not -size <= start <= size:
        raise IndexError(
            f"start out of range (expected to be in range of [{-size}, {size}], but got {start})"
        )
    start += size if start < 0 else 0
    if start + length > size:
        raise RuntimeError(f"start ({start}) + length ({length}) exceeds dimension size ({size}).")
    return run(records.slice_, input, d, start, start + length, 1)


@both
def as_strided(input: Tensor, size: IntTuple, stride: IntTuple, storage_offset: int | None = None) -> Tensor:
    """Return a view of the tensor's storage with any layout, from `storage_offset` on (default: the tensor's
    offset).
    """
    shape = ints_of(size, "as_strided", "size", 1)
    strides = ints_of(stride, "as_strided", "stride", 2)
    offset = here = input.storage_offset()
    if storage_offset is not None:
        offset = int_of(storage_offset, "as_strided", "storage_offset", 3)
    if len(shape) != len(strides):
        raise RuntimeError("mismatch in length of strides and shape")
    if any(s < 0 for s in strides):
        raise RuntimeError(
            f"as_strided: Negative strides are not supported at the moment, got strides: {list(strides)}"
        )
    require_within(input.memory.nbytes, input.meta.itemsize, shape, strides, offset)
    return run(records.as_strided, input, shape, strides, offset - here)


@both
def unbind(input: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    """Return a view for each index of a dimension."""
    d = _dim(input, dim)
    return run_several(
        UnbindBackward0, input, d, [(records.select, (d, i)) for i in range(input.meta.shape[d])]
    )


def _check_parts(count: int, name: str) -> None:
    if count > 1 << 32:
        raise RuntimeError(f"{name}(): {count} tensors are more than fit into the memory of a host")


@both
def split_with_sizes(input: Tensor, split_sizes: IntTuple, dim: int = 0) -> tuple[Tensor, ...]:
    """Return consecutive parts of these sizes along a dimension."""
    if input.meta.ndim == 0:
        raise RuntimeError("split expects at least a 1-dimensional tensor")
    d, sizes = wrap_dim(dim, input.meta.ndim), ints((split_sizes,), "split_with_sizes", "split_sizes")
    if any(n < 0 for n in sizes):
        raise RuntimeError(
            "split_with_sizes expects split_sizes have only non-negative entries, but got "
            f"split_sizes={list(sizes)}"
        )
    if sum(sizes) != input.meta.shape[d]:
        raise RuntimeError(
            f"split_with_sizes expects split_sizes to sum exactly to {input.meta.shape[d]} (input tensor's "
            f"size at dimension {d}), but got split_sizes={list(sizes)}"
        )
    return run_several(SplitWithSizesBackward0, input, d, _cuts(d, sizes))


def _cuts(dim: int, sizes: Sequence[int]) -> list[tuple[Any, tuple[int, ...]]]:
    parts: list[tuple[Any, tuple[int, ...]]] = []
    start = 0
    for n in sizes:
        parts.append((records.slice_, (dim, start, start + n, 1)))
        start += n
    return parts


@both
@signatures("""
split(input: Tensor, split_size: Tensor | int, dim: int=)
split(input: Tensor, split_sizes: IntTuple, dim: int=)
split(input: Tensor, split_size: IntTuple, dim: int=)
split(tensor: Tensor, split_size_or_sections: IntTuple, dim: int=)
split(tensor: Tensor, split_size_or_sections: Tensor | int, dim: int=)
""")
@accepts("split", split_size="split_size_or_sections")
def split(tensor: Tensor, split_size_or_sections: Any, dim: int = 0) -> tuple[Tensor, ...]:
    """Return parts of a dimension as views, of one size (the last may be smaller) or of several sizes."""
    if isinstance(split_size_or_sections, list | tuple):
        return split_with_sizes(tensor, split_size_or_sections, dim)
    if tensor.meta.ndim == 0:
        raise RuntimeError("split expects at least a 1-dimensional tensor")
    step = _split_size(split_size_or_sections)
    if step < 0:
        raise RuntimeError(f"split expects split_size be non-negative, but got split_size={step}")
    d = wrap_dim(dim, tensor.meta.ndim)
    size = tensor.meta.shape[d]
    if step == 0 and size:
        raise RuntimeError(
            f"split_size can only be 0 if dimension size is 0, but got dimension size of {size}"
        )
    count = max(-(-size // step), 1) if step else 1
    sizes = [step] * (count - 1) + [size - step * (count - 1)]
    return run_several(SplitBackward0, tensor, d, _cuts(d, sizes))


def _split_size(given: Any) -> int:
    """Return the size of the parts that `split` got as an int or a tensor of one element."""
    if isinstance(given, int):
        return as_int(given)
    if isinstance(given, Tensor) and given.numel() == 1:
        with suppress(ValueError):  # NaN
            return int(given)
    raise TypeError(argument_type("split", "split_size", 2, "int", given))


@both
def chunk(input: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    """Return at most `chunks` parts of a dimension as views, of equal size except that the last may be smaller."""
    if input.meta.ndim == 0:
        raise RuntimeError("chunk expects at least a 1-dimensional tensor")
    chunks = as_int(chunks)
    if chunks <= 0:
        raise RuntimeError(f"chunk expects `chunks` to be greater than 0, got: {chunks}")
    d = wrap_dim(dim, input.meta.ndim)
    size = input.meta.shape[d]
    if size == 0:
        _check_parts(chunks, "chunk")
        return split_with_sizes(input, [0] * chunks, d)
    return split(input, -(-size // chunks), d)


@both
@signatures(
    """
tensor_split(input: Tensor, indices: IntTuple, dim: int=)
tensor_split(input: Tensor, sections: int, dim: int=)
tensor_split(input: Tensor, tensor_indices_or_sections: Tensor, dim: int=)
""",
    shown="tensor_split(input: Tensor, indices_or_sections: Tensor | IntOrTuple, dim: int=0)",
)
@accepts("tensor_split", tensor_indices_or_sections="indices_or_sections")
def tensor_split(
    input: Tensor, indices_or_sections: Any = None, dim: int = 0, *, indices: Any = None, sections: Any = None
) -> tuple[Tensor, ...]:
    """Return parts as equal as can be, or cut at indices, along a dimension."""
    given: Any = next((x for x in (indices_or_sections, indices, sections) if x is not None), None)
    if input.meta.ndim == 0:
        raise RuntimeError(
            "tensor_split expected at least a 1-dimensional tensor, but got a tensor with 0 dims"
        )
    d = wrap_dim(dim, input.meta.ndim)
    if isinstance(given, Tensor):
        if given.dtype is not int64:
            raise RuntimeError(
                "tensor_split expected tensor_indices_or_sections to have dtype of long, but got "
                f"{given.dtype.torch_name}"
            )
        given = given.tolist()
    if isinstance(given, list | tuple):
        refuse_bool_tensors(given, "tensor_split", "indices")
        ends = [*ints((given,), "tensor_split", "indices"), input.meta.shape[d]]
        return tuple([run(records.slice_, input, d, a, b, 1) for a, b in zip([0, *ends], ends, strict=False)])
    count = as_int(given)
    if count <= 0:
        raise RuntimeError(f"number of sections must be larger than 0, got {count}")
    _check_parts(count, "tensor_split")
    small, more = divmod(input.meta.shape[d], count)
    cuts = _cuts(d, [small + 1] * more + [small] * (count - more))
    return tuple([run(view, input, *params) for view, params in cuts])


def _split_at(args: tuple[Any, ...], keyword: Any, name: str) -> Any:
    """Return the number of parts, or the end of each part, from a method's arguments."""
    if len(args) == 1 and keyword is None and (is_int(args[0]) or isinstance(args[0], list | tuple)):
        return args[0]
    return keyword if not args and keyword is not None else given_ints(args, keyword, name, "indices")


def _split_along(t: Tensor, given: Any, name: str, least: int, dim: int) -> tuple[Tensor, ...]:
    if t.meta.ndim < least:
        raise RuntimeError(
            f"torch.{name} requires a tensor with at least {least} dimension, but got a tensor with "
            f"{t.meta.ndim} dimensions!"
        )
    size = t.meta.shape[dim]
    if not isinstance(given, list | tuple) and (given <= 0 or size % given):
        raise RuntimeError(
            f"torch.{name} attempted to split along dimension {dim}, but the size of the dimension {size} "
            f"is not divisible by the split_size {given}!"
        )
    split = ints((given,), name, "indices") if isinstance(given, list | tuple) else int(given)
    return tensor_split(t, split, dim)


@function
@signatures("""
hsplit(input: Tensor, indices: IntTuple)
hsplit(input: Tensor, sections: int)
""")
@accepts("hsplit", indices="indices_or_sections", sections="indices_or_sections")
def hsplit(input: Tensor, indices_or_sections: Any) -> tuple[Tensor, ...]:
    """Return `tensor_split` along the columns (dimension 1, or 0 of a vector)."""
    return _split_along(input, indices_or_sections, "hsplit", 1, 0 if input.meta.ndim == 1 else 1)


@signatures(shown="Tensor.hsplit(sections: IntOrTuple)")
def _hsplit(self: Tensor, *sections: Any, indices_or_sections: Any = None) -> tuple[Tensor, ...]:
    return hsplit(self, _split_at(sections, indices_or_sections, "hsplit"))


method_of(hsplit, _hsplit)


@function
@signatures("""
vsplit(input: Tensor, indices: IntTuple)
vsplit(input: Tensor, sections: int)
""")
@accepts("vsplit", indices="indices_or_sections", sections="indices_or_sections")
def vsplit(input: Tensor, indices_or_sections: Any) -> tuple[Tensor, ...]:
    """Return `tensor_split` along the rows (dimension 0)."""
    return _split_along(input, indices_or_sections, "vsplit", 2, 0)


@signatures(shown="Tensor.vsplit(sections: IntOrTuple)")
def _vsplit(self: Tensor, *sections: Any, indices_or_sections: Any = None) -> tuple[Tensor, ...]:
    return vsplit(self, _split_at(sections, indices_or_sections, "vsplit"))


method_of(vsplit, _vsplit)


@function
@signatures("""
dsplit(input: Tensor, indices: IntTuple)
dsplit(input: Tensor, sections: int)
""")
@accepts("dsplit", indices="indices_or_sections", sections="indices_or_sections")
def dsplit(input: Tensor, indices_or_sections: Any) -> tuple[Tensor, ...]:
    """Return `tensor_split` along dimension 2."""
    return _split_along(input, indices_or_sections, "dsplit", 3, 2)


@signatures(shown="Tensor.dsplit(sections: IntOrTuple)")
def _dsplit(self: Tensor, *sections: Any, indices_or_sections: Any = None) -> tuple[Tensor, ...]:
    return dsplit(self, _split_at(sections, indices_or_sections, "dsplit"))


method_of(dsplit, _dsplit)


# -- complex numbers --------------------------------------------------------------------------------------


@function
def real(input: Tensor) -> Tensor:
    """Return the real parts, a view; a real tensor itself."""
    return run(records.real, input) if input.meta.dtype.is_complex else input


@function
def imag(input: Tensor) -> Tensor:
    """Return the imaginary parts, a view. Raises RuntimeError for a real tensor."""
    return run(records.imag, input)


def _set_real(self: Tensor, value: Any) -> None:
    self.real[...] = value


def _set_imag(self: Tensor, value: Any) -> None:
    self.imag[...] = value


alias("real", property(real, _set_real), as_function=False)  # type: ignore[arg-type]
alias("imag", property(imag, _set_imag), as_function=False)  # type: ignore[arg-type]


@function
def view_as_real(input: Tensor) -> Tensor:
    """Return a complex tensor as real numbers, with a last dimension of 2."""
    return run(records.view_as_real, input)


@function
def view_as_complex(input: Tensor) -> Tensor:
    """Return a view of a real tensor, whose last dimension has size 2, as complex numbers."""
    return run(records.view_as_complex, input)


@both
def conj(input: Tensor) -> Tensor:
    """Return the complex conjugate, a new tensor; a real tensor itself."""
    conjugate: Tensor = input.conj_physical() if input.meta.dtype.is_complex else input
    return conjugate


@both
def is_conj(input: Tensor) -> bool:
    """Return False: conjugation is never pending (see the module's docstring)."""
    return False


@both
def is_neg(input: Tensor) -> bool:
    """Return False: negation is never pending."""
    return False


@both
def resolve_conj(input: Tensor) -> Tensor:
    """Return the tensor itself: conjugation is never pending."""
    return input


@both
def resolve_neg(input: Tensor) -> Tensor:
    """Return the tensor itself: negation is never pending."""
    return input


# -- in place: the tensor itself takes the view's layout -----------------------------------------------------


def _become(self: Tensor, view: Tensor) -> Tensor:
    """Give the tensor the layout of a view of itself. It does not become a view of another tensor."""
    refuse_inference(self)
    if requires_grad(self):
        require_changeable(self)
    if self.meta.sparse:  # a view of a sparse tensor has separate parts
        self.meta, self.memory, self.history = view.meta, view.memory, view.history
        self.counter.version += 1
        return self
    was, now = self.history, view.history
    assert isinstance(now, ViewMeta)
    self.meta, self.ptr = view.meta, view.ptr
    if was is not None and now.node is None:  # not recorded: what made it is what it was
        now.node, now.index = was.node, was.index
        if isinstance(was.node, Leaf):
            was.node.set_meta(view.meta)
    if was is None or was.base is None:
        self.history = None if now.node is None else AutogradMeta(now.node, now.index)
    else:
        if not mode.recording:  # what may be done to the tensor stays as it was
            now.restriction = was.restriction
        self.history = now
    self.counter.version += 1
    return self


@method
@signatures(
    """
Tensor.squeeze_()
Tensor.squeeze_(dim: int | IntTuple)
""",
    shown="Tensor.squeeze_(dim: IntOrTuple | None=None)",
)
def squeeze_(self: Tensor, *dims: Any, dim: Any = None) -> Tensor:
    return _become(self, squeeze(self, dims_given(dims, dim, "squeeze_")))


@method
def unsqueeze_(self: Tensor, dim: int) -> Tensor:
    return _become(self, unsqueeze(self, dim))


@method
@signatures(
    "Tensor.swapaxes_(axis0: int, axis1: int)", shown="swapaxes_(input: Tensor, axis0: int, axis1: int)"
)
@accepts("swapaxes_", axis0="dim0", axis1="dim1")
def transpose_(self: Tensor, dim0: int, dim1: int) -> Tensor:
    return _become(self, transpose(self, dim0, dim1))


@method
def t_(self: Tensor) -> Tensor:
    return _become(self, t(self))


@method_and_function
def as_strided_(self: Tensor, size: IntTuple, stride: IntTuple, storage_offset: int | None = None) -> Tensor:
    return _become(self, as_strided(self, size, stride, storage_offset))


@method_and_function
def detach_(self: Tensor) -> Tensor:
    """Detach the tensor from its autograd graph in place, and return it. A view cannot be detached in place."""
    if self.base is not None:
        raise RuntimeError(
            "Can't detach views in-place. Use detach() instead. If you are using DistributedDataParallel "
            "(DDP) for training, and gradient_as_bucket_view is set as True, gradients are views of DDP "
            "buckets, and hence detach_() cannot be called on these gradients. To fix this error, please refer to the "
            "Optimizer.zero_grad() function in torch/optim/optimizer.py as the solution."
        )
    node = None if self.history is None else self.history.node
    if isinstance(node, Leaf):
        release_leaf(self, node)
    else:
        self.history = None
    return self


alias("moveaxis", movedim)
alias("swapaxes", transpose)
alias("swapdims", transpose)
alias("swapaxes_", transpose_, as_function=False)
alias("swapdims_", transpose_, as_function=False)
