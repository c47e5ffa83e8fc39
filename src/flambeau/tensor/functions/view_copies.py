"""Views as new tensors (`narrow_copy`), with a view replaced (`select_scatter`), sums to a size."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from flambeau.core.errors import argument_type
from flambeau.core.layout import memory_order, span, wrap_dim
from flambeau.tensor.arguments.arg_errors import IntTuple
from flambeau.tensor.arguments.integers import as_int
from flambeau.tensor.arguments.public import alias, both, function, functions, method
from flambeau.tensor.arguments.typing import contiguous_format
from flambeau.tensor.functions import views
from flambeau.tensor.out_argument import deliver, require_dtype
from flambeau.tensor.signatures import signatures
from flambeau.tensor.tensor import Tensor


def _fresh(view: Any, out: Any) -> Any:
    """Return a contiguous copy of a view, or of each of several; in `out` if it is not None."""
    if isinstance(view, Tensor):
        return view.clone(memory_format=contiguous_format) if out is None else _store(view, out)
    if out is None:
        return tuple([v.clone(memory_format=contiguous_format) for v in view])
    for one, target in zip(view, out, strict=True):
        _store(one, target)
    return None


def _store(view: Tensor, out: Tensor) -> Tensor:
    require_dtype(view.meta.dtype, out)
    if out.meta.shape != view.meta.shape:
        out.resize_(view.meta.shape)
    copied: Tensor = out.copy_(view)
    return copied


def _bind_copy(
    name: str,
    parameters: str = "",
    of: Callable[..., Any] | None = None,
    *,
    lines: Sequence[str] | None = None,
    result: str = "Tensor",
    bind: Callable[[Any], Any] = function,
) -> None:
    """Bind `torch.<name>_copy`, which returns the result of a view function as a new tensor.

    Args:
        name: The name of the function.
        parameters: Its parameters in addition to the tensor, with defaults.
        of: The function, if it is not `torch.<name>`.
        lines: The parameters of each signature of PyTorch's parser, if they differ from `parameters`.
        result: The type of the result.
        bind: Function that binds the copy.
    """
    view = functions[name] if of is None else of

    def copy_view(input: Tensor, *args: Any, out: Any = None, **given: Any) -> Any:
        return _fresh(view(input, *args, **given), out)

    copy_view.__name__ = copy_view.__qualname__ = f"{name}_copy"
    copy_view.__doc__ = f"`{name}` as a new tensor."
    beside = f", {parameters}" if parameters else ""
    if lines is None:
        lines = (re.sub("=[^,]*", "=", beside),) if parameters else ()
    star = "" if "*" in parameters else " *,"
    signatures(
        "\n".join(f"{name}_copy(input: Tensor{each})" for each in lines),
        shown=f"{name}_copy(input: Tensor{beside},{star} out: {result} | None=None)",
    )
    bind(copy_view)


def _slice(input: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Tensor:
    """Return every `step`-th index of a dimension from `start` up to `end`. Negative bounds count from the end."""
    if input.meta.ndim == 0:
        raise IndexError("slice() cannot be applied to a 0-dim tensor.")
    dim = wrap_dim(dim, input.meta.ndim)
    start, end = (None if bound is None else as_int(bound) for bound in (start, end))
    if as_int(step) <= 0:
        raise RuntimeError("slice step must be positive")
    sliced: Tensor = input[(slice(None),) * dim + (slice(start, end, step),)]
    return sliced


def _narrow(input: Any, dim: int, start: Any, length: Any) -> Tensor:
    """Return `torch.narrow` for a start that may also be a vector of one element."""
    return views.narrow(input, dim, as_int(start), as_int(length))


def _itself(input: Tensor) -> Tensor:
    return input


def _method(name: str) -> Callable[..., Any]:
    return lambda input, *args, **given: getattr(input, name)(*args, **given)


_bind_copy("as_strided", "size: IntTuple, stride: IntTuple, storage_offset: int | None=None")
_bind_copy("diagonal", "offset: int=0, dim1: int=0, dim2: int=1")
_bind_copy("permute", "dims: IntTuple")
_bind_copy("select", "dim: int, index: int")
_bind_copy("split", "split_size: int, dim: int=0", result="TensorList")
_bind_copy("split_with_sizes", "split_sizes: IntTuple, dim: int=0", result="TensorList")
_bind_copy("squeeze", "dim: IntOrTuple | None=None", lines=("", ", dim: int | IntTuple"))
_bind_copy("t")
_bind_copy("transpose", "dim0: int, dim1: int")
_bind_copy("unbind", "dim: int=0", result="TensorList")
_bind_copy("unsqueeze", "dim: int")
_bind_copy("view_as_complex")
_bind_copy("view_as_real")
_bind_copy("detach")
_bind_copy("expand", "size: IntTuple, *, implicit: bool=False", _method("expand"))
_bind_copy("unfold", "dimension: int, size: int, step: int", _method("unfold"))
_bind_copy("view", "size: IntTuple", _method("view"), lines=(", dtype: dtype", ", size: IntTuple"))
_bind_copy("alias", of=_itself)
_bind_copy("slice", "dim: int=0, start: int | None=None, end: int | None=None, step: int=1", _slice)
for _name in ("indices", "values", "crow_indices", "col_indices", "ccol_indices", "row_indices"):
    _bind_copy(_name, of=_method(_name))  # parts of a sparse tensor
_bind_copy("narrow", "dim: int, start: int, length: int", _narrow, bind=both)

# PyTorch's are views that autograd does not watch; here they are views.
alias("unsafe_chunk", views.chunk)
alias("unsafe_split_with_sizes", views.split_with_sizes)


@both
def unsafe_split(input: Tensor, split_size: int, dim: int = 0) -> tuple[Tensor, ...]:
    """Return parts of a dimension as views, of one size (the last may be smaller)."""
    return views.split(input, int(split_size), dim)


# -- a view replaced ----------------------------------------------------------------------------------------


def _scatter_into(input: Tensor, src: Tensor, view: Callable[[Tensor], Tensor]) -> Tensor:
    """Return a copy of `input`, with its strides, whose `view` holds `src`. Raises RuntimeError if shapes differ."""
    if not isinstance(src, Tensor):
        raise TypeError(argument_type("scatter", "src", 2, "Tensor", src))
    shape = view(input).meta.shape
    if shape != src.meta.shape:
        raise RuntimeError(
            "expected src to have a size equal to the slice of self. "
            f"src size = {list(src.meta.shape)}, slice size = {list(shape)}"
        )
    made = _copy_with_storage(input)
    view(made).copy_(src)
    return made


def _copy_with_storage(x: Tensor) -> Tensor:
    """Return a copy with equal strides. If the elements have gaps between them, the copy includes the storage up to the
    last element.
    """
    if x.is_contiguous() and not x.storage_offset():
        return x.clone()
    shape, strides = x.meta.shape, x.meta.strides
    if any(n > 1 and s == 0 for n, s in zip(shape, strides, strict=True)):
        return x.clone()
    offset = x.storage_offset()
    memory = x.as_strided((offset + span(shape, strides),), (1,), 0).clone()
    return views.as_strided(memory, shape, strides, offset)


@both
def select_scatter(input: Tensor, src: Tensor, dim: int, index: int) -> Tensor:
    """Return `input` with `src` at one index of a dimension."""
    return _scatter_into(input, src, lambda t: views.select(t, dim, index))


@both
def slice_scatter(
    input: Tensor, src: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1,
    *, out: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Return `input` with `src` in a slice of a dimension."""
    found = _scatter_into(input, src, lambda t: _slice(t, dim, start, end, step))
    if out is not None:
        require_dtype(found.dtype, out)
    result: Tensor = deliver(found, out)
    return result


@both
def diagonal_scatter(input: Tensor, src: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """Return `input` with `src` on a diagonal."""
    return _scatter_into(input, src, lambda t: views.diagonal(t, offset, dim1, dim2))


@both
def as_strided_scatter(
    input: Tensor, src: Tensor, size: IntTuple, stride: IntTuple, storage_offset: int | None = None
) -> Tensor:
    """Return a copy of `input` in which the elements that `as_strided` would select are those of `src`."""
    return _scatter_into(input, src, lambda t: views.as_strided(t, size, stride, storage_offset))


# -- back to a size -------------------------------------------------------------------------------------------


@method
@signatures("Tensor.sum_to_size(size: IntTuple)")
def sum_to_size(self: Tensor, *sizes: Any, size: Any = None) -> Tensor:
    """Return the tensor summed over dimensions along which a tensor of `size` would be broadcast; itself if there are
    none.
    """
    to = views.given_ints(sizes, size, "sum_to_size", "size")
    shape = self.meta.shape
    if not _reaches(to, shape):
        raise RuntimeError(f"size {{{list(to)}}} is not expandable to size {{{list(shape)}}}.")
    lead = len(shape) - len(to)
    dims = [*range(lead), *[d for d in range(lead, len(shape)) if to[d - lead] == 1 != shape[d]]]
    summed = self.sum(dims, keepdim=True) if dims else self
    return views.view(summed, to) if lead else summed


def _reaches(shape: Sequence[int], larger: Sequence[int]) -> bool:
    """Return True if a tensor of `shape` expands to `larger`."""
    tail = larger[len(larger) - len(shape) :]
    return len(shape) <= len(larger) and all(n in (1, m) for n, m in zip(shape, tail, strict=True))


@method
def dim_order(self: Tensor, *, ambiguity_check: bool = False) -> tuple[int, ...]:
    """Return the dimensions from outermost to innermost in memory. Raises RuntimeError where `ambiguity_check` finds
    ties.
    """
    if ambiguity_check and _is_ambiguous(self.meta.shape, self.meta.strides):
        raise RuntimeError(
            "The tensor does not have unique dim order, or cannot map to exact one of the given memory formats."
        )
    return tuple(memory_order(self.meta.shape, self.meta.strides))


def _is_ambiguous(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Return True if the strides allow another order: of equal strides, sizes of 1, or no elements."""
    return 0 in shape or 1 in shape or len(set(strides)) < len(strides)
