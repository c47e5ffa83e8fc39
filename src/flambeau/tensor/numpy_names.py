"""What every public function does with its arguments before it is called, and when that fails.

NumPy's names of arguments are PyTorch's too: `x.sum(axis=1, keepdims=True)`, `torch.cat(arrays, axis=1)`,
`torch.add(x1=a, x2=b)`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import CO_VARKEYWORDS, unwrap
from types import FunctionType
from typing import Any

from flambeau.tensor.mistakes import SIGNS, explained

_OURS = {"axis": "dim", "keepdims": "keepdim", "x": "input", "a": "input", "x1": "input", "x2": "other"}

# Names of a first argument that PyTorch's parser calls `input`, whatever its documentation says.
_FIRST = {"A", "B", "L", "b", "self", "tensor", "x"}

# What PyTorch's parser calls arguments that its documentation, and we, call otherwise.
_PARTS = {"indices": "indices_or_sections", "sections": "indices_or_sections"}
_BATCHES = {"batch1": "a", "batch2": "b"}
PARSED = {
    "addbmm_": _BATCHES, "addmm_": {"mat1": "a", "mat2": "b"}, "addmv_": {"mat": "a", "vec": "b"},
    "addr_": {"vec1": "a", "vec2": "b"}, "baddbmm_": _BATCHES,
    "cholesky_solve": {"input2": "L"}, "dsplit": _PARTS, "heaviside": {"values": "other"}, "hsplit": _PARTS,
    "isin": {"element": "elements", "test_element": "test_elements"}, "linalg_lstsq": {"b": "B"},
    "linalg_tensorsolve": {"other": "B"}, "orgqr": {"input2": "tau"}, "ormqr": {"input2": "tau", "input3": "other"},
    "result_type": {"tensor": "tensor1", "other": "tensor2"}, "split": {"split_size": "split_size_or_sections"},
    "swapaxes": {"axis0": "dim0", "axis1": "dim1"}, "unsafe_split": {"split_size": "split_size_or_sections"},
    "tensor_split": {"tensor_indices_or_sections": "indices_or_sections"}, "vsplit": _PARTS,
}  # fmt: skip


def accepting(define: Callable[..., Any], name: str, *, method: bool = False) -> Any:
    """The public function of this name: it takes NumPy's names of its arguments, and says which is of a wrong type.

    The function itself where it has no such names, and methods that have neither `dim` nor `keepdim` nor tensors beside
    their own: they are called too often to go through one more function, and seldom by these names.
    """
    if not isinstance(define, FunctionType):
        return define
    code = unwrap(define).__code__
    places = code.co_varnames[: code.co_argcount]
    own = {*code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]}
    if code.co_flags & CO_VARKEYWORDS and own & {
        "input",
        "self",
    }:  # of a tensor; it reads its arguments itself
        own |= {"dim", "keepdim", "other"}
    names = _OURS | PARSED.get(name, {})
    first = places[0] if places and "input" not in own and not method else ""
    if first in _FIRST:
        names = {theirs: first if mine == "input" else mine for theirs, mine in names.items()} | {
            "input": first
        }
    ours = {theirs: mine for theirs, mine in names.items() if mine in own and theirs not in own}
    of_tensors = any(
        kind in ("Tensor", "Tensor | None") for at, kind in define.__annotations__.items() if at in places[1:]
    )
    if not (own & {"dim", "keepdim"} or (ours and not method) or of_tensors or name in PARSED):
        return define

    @wraps(define)
    def call(*args: Any, **given: Any) -> Any:
        try:
            return define(*args, **given)
        except SIGNS as error:
            renamed = {ours.get(key, key): value for key, value in given.items()}
            if (
                len(renamed) == len(given) and renamed.keys() != given.keys()
            ):  # it knew no such name, and did nothing
                return call(*args, **renamed)
            mistake = explained(define, name, args, given, method)
            if mistake is None:
                raise
            raise mistake from error

    return call
