"""`rearrange`: dimensions of a tensor permuted, split and merged, as a pattern of their names says."""

from __future__ import annotations

import re
from collections.abc import Sequence
from keyword import iskeyword
from math import prod
from typing import NoReturn

from flambeau.tensor.functions.joining import stack
from flambeau.tensor.tensor import Tensor

_DOTS = "..."
_TOKEN = re.compile(r"\s*(\.\.\.|[()]|[^\s().]+|\.)")
Axes = list[str | tuple[str, ...]]
"""A side of a pattern: for each dimension its name, or the names merged in it; () is a dimension of size 1."""


def rearrange(tensor: Tensor | Sequence[Tensor], pattern: str, **axes_lengths: int) -> Tensor:
    """Return a tensor whose dimensions are permuted, split and merged: `rearrange(x, "b (h w) -> w b h", h=2)`.

    Args:
        tensor: A tensor, or tensors to stack along a new first dimension.
        pattern: The names of the dimensions before and after "->". Parentheses merge several; "1" or "()" is a
            dimension of size 1, "..." all dimensions that have no name.
        axes_lengths: Sizes of names; of each pair of parentheses at most one name may lack it.

    Returns:
        A view where possible. A tensor without dimensions is returned unchanged, whatever the right side.

    Raises:
        ValueError: If the pattern is malformed or does not fit the tensor.
        TypeError: If a size is not an integer.
    """
    if not isinstance(tensor, Tensor):
        tensor = stack(list(tensor))
    left, right = _sides(pattern)
    _check_names(left, right, axes_lengths)
    shape = tuple(tensor.shape)
    sizes = _sizes(left, shape, axes_lengths)
    if not shape:
        return tensor
    split = tensor.reshape([size for name in _names(left) for size in sizes[name]])
    dims: dict[str, range] = {}
    for name in _names(left):
        begin = sum(map(len, dims.values()))
        dims[name] = range(begin, begin + len(sizes[name]))
    permuted = split.permute([dim for name in _names(right) for dim in dims[name]])
    merged = [
        (prod(prod(sizes[name]) for name in axis),) if isinstance(axis, tuple) else sizes[axis]
        for axis in right
    ]
    return permuted.reshape([size for part in merged for size in part])


def _names(side: Axes) -> list[str]:
    return [name for axis in side for name in (axis if isinstance(axis, tuple) else (axis,))]


def _sides(pattern: str) -> tuple[Axes, Axes]:
    if pattern.count("->") != 1:
        raise ValueError("Pattern must contain a single '->' separator")
    left, right = map(_axes, pattern.split("->"))
    if _DOTS in _names(right) and _DOTS not in _names(left):
        raise ValueError(f"Ellipsis found in right side, but not left side of a pattern {pattern}")
    if any(isinstance(axis, tuple) and _DOTS in axis for axis in left):
        raise ValueError(f"Ellipsis is parenthesis in the left side is not allowed: {pattern}")
    return left, right


def _axes(text: str) -> Axes:
    axes: Axes = []
    group: list[str] | None = None  # the names since an open parenthesis
    for token in _TOKEN.findall(text):
        if token == "(":
            if group is not None:
                raise ValueError("Axis composition is one-level (brackets inside brackets not allowed)")
            group = []
        elif token == ")":
            if group is None:
                raise ValueError("Brackets are not balanced")
            axes.append(tuple(group))
            group = None
        elif token != "1":
            _check_identifier(token)
            if token in (*_names(axes), *(group or ())):
                raise ValueError(f"Indexing expression contains duplicate dimension '{token}'")
            if group is None:
                axes.append(token)
            else:
                group.append(token)
        elif group is None:
            axes.append(())
    if group is not None:
        raise ValueError(f"Imbalanced parentheses in expression: '{text}'")
    return axes


def _check_identifier(name: str) -> None:
    if name == _DOTS:
        return
    if name.isdecimal():
        raise ValueError("rearrange only supports unnamed axes of size 1")
    reason = None
    if not name.isidentifier() or iskeyword(name):
        reason = "not a valid python identifier"
    elif name[0] == "_" or name[-1] == "_":
        reason = "axis name should should not start or end with underscore"
    if reason is not None:
        raise ValueError(f"Invalid axis identifier: {name}\n{reason}")


def _check_names(left: Axes, right: Axes, lengths: dict[str, int]) -> None:
    for length in lengths.values():
        if not isinstance(length, int):
            raise TypeError(f"rearrange axis lengths must be integers, got: {type(length)}")
    names = {*_names(left)}
    if difference := names ^ {*_names(right)}:
        raise ValueError(
            f"Identifiers only on one side of rearrange expression (should be on both): {difference}"
        )
    if unknown := lengths.keys() - names:
        raise ValueError(f"Identifiers not found in rearrange expression: {unknown}")


def _sizes(left: Axes, shape: tuple[int, ...], lengths: dict[str, int]) -> dict[str, tuple[int, ...]]:
    """Return the sizes of each name: several or none for "...", else one."""
    has_dots = _DOTS in left
    rest = len(shape) - len(left) + has_dots
    if rest < 0 or (rest > 0 and not has_dots):
        relation = "less than or equal to" if has_dots else "equal to"
        raise ValueError(
            f"Number of dimensions in pattern ({len(left) - has_dots}) must be {relation} the number of dimensions in "
            f"the tensor ({len(shape)})"
        )
    sizes: dict[str, tuple[int, ...]] = {}
    at = 0
    for axis in left:
        if axis == _DOTS:
            sizes[_DOTS] = shape[at : at + rest]
            at += rest
        else:
            sizes |= _split(axis if isinstance(axis, tuple) else (axis,), shape[at], lengths)
            at += 1
    return sizes


def _split(names: tuple[str, ...], size: int, lengths: dict[str, int]) -> dict[str, tuple[int, ...]]:
    """Return the sizes of the names that a dimension merges."""
    unknown = [name for name in names if name not in lengths]
    if len(unknown) > 1:
        _refuse(names, size, f"the sizes of {unknown} are not known: pass {unknown[0]}=...")
    known = prod(lengths[name] for name in names if name in lengths)
    if (size % known if unknown and known else known != size) or (unknown and not known):
        _refuse(names, size, f"the given lengths multiply to {known}")
    return {name: (lengths[name] if name in lengths else size // known,) for name in names}


def _refuse(names: tuple[str, ...], size: int, reason: str) -> NoReturn:
    raise ValueError(f"rearrange cannot divide a dimension of size {size} into ({' '.join(names)}): {reason}")
