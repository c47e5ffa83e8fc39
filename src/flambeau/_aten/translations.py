"""The overloads of `torch.ops.aten` that represent a call of an operator or view of Flambeau."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from flambeau._aten.overloads import find_overload
from flambeau._library.user_operators import overloads_of
from flambeau.core.frozen import Record
from flambeau.ops.op import Derivative
from flambeau.ops.pointwise.pointwise import Pointwise
from flambeau.tape.mode import mode
from flambeau.tensor.arguments.typing import contiguous_format
from flambeau.tensor.tensor import Tensor

Args = Sequence[Any]
Params = tuple[Any, ...]


class Call:
    """One call of an overload.

    Attributes:
        overload: The overload, or its name in `torch.ops.aten`.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
    """

    def __init__(self, overload: Any, args: Sequence[Any], kwargs: dict[str, Any] | None = None) -> None:
        self.overload, self.args, self.kwargs = overload, tuple(args), kwargs or {}

    def run(self) -> Any:
        """Show the call and return its result."""
        overload = find_overload(self.overload) if isinstance(self.overload, str) else self.overload
        return overload(*self.args, **self.kwargs)

    def into(self, outputs: Sequence[Tensor], in_place: bool) -> None:
        """Show the overload that writes into `outputs`; or the functional one, and a copy, if there is none."""
        name = self.overload if isinstance(self.overload, str) else ""
        base, _, overload = name.partition(".")
        variant = _in_place_variant(base, overload) if in_place else _out_variant(base, overload)
        if variant is None:
            result = self.run()
            for target, source in zip(
                outputs, result if isinstance(result, tuple) else (result,), strict=True
            ):
                find_overload("copy_")(target, source)
            return
        if in_place:
            find_overload(variant)(*self.args, **self.kwargs)
            return
        found = find_overload(variant)
        names = [a.name for a in found._schema.arguments if a.kwarg_only and a.is_write]
        found(*self.args, **self.kwargs, **dict(zip(names, outputs, strict=True)))


@cache
def _in_place_variant(base: str, overload: str) -> str | None:
    if not base:
        return None
    found = overloads_of(f"aten::{base}_")
    return f"{base}_.{overload}" if (overload or "default") in found else None


@cache
def _out_variant(base: str, overload: str) -> str | None:
    """Return the overload with `out=` whose other arguments are those of an overload."""
    if not base:
        return None
    own = [(a.name, a.kind) for a in find_overload(f"{base}.{overload}".rstrip("."))._schema.arguments]
    for name in overloads_of(f"aten::{base}"):
        arguments = find_overload(f"{base}.{name}")._schema.arguments
        if any(a.kwarg_only and a.is_write for a in arguments):
            others = [(a.name, a.kind) for a in arguments if not a.is_write]
            if others == own:
                return f"{base}.{name}"
    return None


class Translation(Record):
    """The calls that represent one operator.

    Attributes:
        calls: `calls(args, params)` returns a `Call`, or shows several calls and returns their result.
        derivative: The formulas of PyTorch, if they show other calls than Flambeau's.
        kept: The number of results that the operator returns, if the call gives more: formulas use the others.
    """

    calls: Callable[[Args, Params], Any]
    derivative: Derivative | None = None
    kept: int = 0


TABLE: dict[str, Translation] = {}
"""Translations by the name of Flambeau's operator."""

VIEWS: dict[str, Callable[..., Call]] = {}
"""Translations of views by the name of the view: `VIEWS[name](t, *params)`."""

SEVERAL: dict[str, Callable[..., Call]] = {}
"""Translations of calls that make several views, by the class of their node: `SEVERAL[name](t, dim, parts)`."""


def translates(*names: str, derivative: Derivative | None = None, kept: int = 0) -> Callable[[Any], Any]:
    """Let a function translate calls of the operators with these names."""

    def define(calls: Callable[[Args, Params], Any]) -> Any:
        for name in names:
            TABLE[name] = Translation(calls, derivative, kept)
        return calls

    return define


def translation_of(op: Any) -> Translation | None:
    """Return the translation of an operator; None if the overload of its name represents it."""
    found = TABLE.get(op.name)
    if found is None and isinstance(op, Pointwise) and _has_overloads(op.name):
        found = TABLE[op.name] = Translation(lambda args, params: _pointwise(op.name, args, params))
    return found


_OTHER_ARGUMENTS = frozenset({"glu"})  # operators whose inputs are not those of PyTorch's operator


def _has_overloads(name: str) -> bool:
    """Return True if PyTorch has an operator of this name that it does not decompose."""
    if name in _OTHER_ARGUMENTS:
        return False
    found = [find_overload(f"{name}.{overload}") for overload in overloads_of(f"aten::{name}")]
    return bool(found) and not any(each._operator.is_decomposed for each in found)


def unary(name: str, key: str | None = None) -> None:
    """Show an operator as the overload of its inputs, and then its parameters, in this order."""
    TABLE[name] = Translation(lambda args, params: Call(key or name, (*args, *params)))


# -- elementwise ----------------------------------------------------------------------------------------------------

# Operators whose functions take a number as a tensor: x + 1 is `add.Tensor`.
_NUMBERS_AS_TENSORS = frozenset({"add", "sub", "mul", "div", "floor_divide", "true_divide"})


def _pointwise(name: str, args: Args, params: Params) -> Call:
    kinds = tuple([isinstance(a, Tensor) for a in args])
    return Call(_overload_for(name, kinds), (*args, *params))


@cache
def _overload_for(name: str, tensors: tuple[bool, ...]) -> str:
    """Return the overload whose arguments are tensors where `tensors` is True, and numbers elsewhere."""
    wanted = (True,) * len(tensors) if name in _NUMBERS_AS_TENSORS else tensors
    names = overloads_of(f"aten::{name}")
    for overload in names:
        arguments = [a for a in find_overload(f"{name}.{overload}")._schema.arguments if not a.kwarg_only]
        if any(a.is_write for a in find_overload(f"{name}.{overload}")._schema.arguments):
            continue
        kinds = [a.kind == "Tensor" for a in arguments]
        if tuple(kinds[: len(wanted)]) == wanted:
            return name if overload == "default" else f"{name}.{overload}"
    return name if names[0] == "default" else f"{name}.{names[0]}"


TABLE["add.alpha"] = Translation(lambda args, params: Call("add.Tensor", args[:2], {"alpha": args[2]}))
TABLE["sub.alpha"] = Translation(lambda args, params: _subtraction(args[:2], {"alpha": args[2]}))
TABLE["sub"] = Translation(lambda args, params: _subtraction(args, {}))


def _subtraction(args: Args, alpha: dict[str, Any]) -> Call:
    if isinstance(args[0], Tensor):
        return Call("sub.Tensor", args, alpha)
    return Call("rsub.Scalar", args[::-1], alpha)


@translates("div")
def _division(args: Args, params: Params) -> Any:
    a, b = args
    if isinstance(a, Tensor):
        return Call("div.Tensor", args)
    inverse = find_overload("reciprocal")(b)
    return find_overload("mul.Tensor")(inverse, a)


for _name in ("add", "mul"):
    TABLE[_name] = Translation(
        lambda args, params, _name=_name: Call(
            f"{_name}.Tensor", args if isinstance(args[0], Tensor) else args[::-1]
        )
    )
for _word in ("floor", "trunc"):
    TABLE[f"div.{_word}"] = Translation(
        lambda args, params, _word=_word: Call("div.Tensor_mode", args, {"rounding_mode": _word})
    )


@translates("pow")
def _power(args: Args, params: Params) -> Call:
    a, b = args
    kind = "Tensor_Tensor" if isinstance(a, Tensor) and isinstance(b, Tensor) else "Scalar"
    return Call(f"pow.{'Tensor_Scalar' if not isinstance(b, Tensor) else kind}", args)


@translates("where", "where.kept")
def _choice(args: Args, params: Params) -> Any:
    where, a, b = args
    like = a if isinstance(a, Tensor) else b
    return find_overload("where.self")(where, *[_as_tensor(x, like) for x in (a, b)])


def _as_tensor(x: Any, like: Any) -> Any:
    if isinstance(x, Tensor):
        return x
    return find_overload("scalar_tensor")(x, dtype=like.dtype, layout=like.layout, device=like.device)


TABLE["clamp_min"] = Translation(lambda args, params: _clamp((args[0], args[1], None), params))
TABLE["clamp_max"] = Translation(lambda args, params: _clamp((args[0], None, args[1]), params))
TABLE["prelu"] = Translation(lambda args, params: Call("_prelu_kernel", args))


@translates("clamp")
def _clamp(args: Args, params: Params) -> Call:
    tensors = any(isinstance(a, Tensor) for a in args[1:])
    return Call("clamp.Tensor" if tensors else "clamp", args)


TABLE["gelu"] = Translation(lambda args, params: Call("gelu", args, {"approximate": params[0]}))
TABLE["gelu_backward"] = Translation(
    lambda args, params: Call("gelu_backward", args, {"approximate": params[0]})
)
TABLE["relu_backward"] = Translation(lambda args, params: Call("threshold_backward", (*args, 0)))
TABLE["polygamma"] = Translation(lambda args, params: Call("polygamma", (params[0], args[0])))
TABLE["round.decimals"] = Translation(
    lambda args, params: Call("round.decimals", args, {"decimals": params[0]})
)
for _name in ("addcmul", "addcdiv"):
    TABLE[_name] = Translation(lambda args, params, _name=_name: Call(_name, args[:3], {"value": args[3]}))


@translates("lerp")
def _lerp(args: Args, params: Params) -> Call:
    return Call("lerp.Tensor" if isinstance(args[2], Tensor) else "lerp.Scalar", args)


# -- reductions: params (dims, keepdim, dtype, ...) -----------------------------------------------------------------


def _dims(dim: Any) -> Any:
    return [dim] if isinstance(dim, int) else dim


def _with_dtype(kind: Any) -> dict[str, Any]:
    return {} if kind is None else {"dtype": kind}


def _sum_back(grad: Any, metas: Any, params: Any) -> Any:
    return _spread(grad, metas[0], params)


def _mean_back(grad: Any, metas: Any, params: Any) -> Any:
    meta, count = metas[0], 1
    dims = range(meta.ndim) if params[0] in (None, ()) else _dims(params[0])
    for dim in dims:
        count *= meta.shape[dim] if meta.ndim else 1
    return _spread(grad, meta, params) / count if mode.recording else _divide(grad, meta, params, count)


def _divide(grad: Any, meta: Any, params: Any, count: int) -> Any:
    return find_overload("div.Scalar")(_spread(grad, meta, params), count)


def _spread(grad: Any, meta: Any, params: Any) -> Any:
    """Return the gradient of a sum in the shape of its input."""
    dims = _dims(params[0])
    if dims and not params[1] and meta.ndim:
        for dim in sorted([d % meta.ndim for d in dims]):
            grad = grad.unsqueeze(dim)
    return grad.expand(meta.shape)


def _reduction(name: str, along: str, single: bool = False, back: Any = None) -> None:
    """Show `name` of all elements as its default overload, along dimensions as `along`."""

    def calls(args: Args, params: Params) -> Call:
        dim, keepdim, kind = params[:3]
        if dim is None and not keepdim:
            return Call(name, args, _with_dtype(kind))
        return Call(f"{name}.{along}", (*args, dim if single else _dims(dim), keepdim), _with_dtype(kind))

    TABLE[name] = Translation(calls, Derivative(back) if back else None)


_reduction("sum", "dim_IntList", back=_sum_back)
_reduction("mean", "dim", back=_mean_back)
_reduction("prod", "dim_int", single=True)
TABLE["nansum"] = Translation(
    lambda args, params: Call("nansum", (*args, _dims(params[0]), params[1]), _with_dtype(params[2]))
)
for _name in ("amax", "amin", "logsumexp"):
    TABLE[_name] = Translation(
        lambda args, params, _name=_name: Call(
            _name, (*args, list(range(args[0].dim())) if params[0] is None else _dims(params[0]), params[1])
        )
    )
for _name in ("argmax", "argmin"):
    TABLE[_name] = Translation(lambda args, params, _name=_name: Call(_name, (*args, *params[:2])))
for _name in ("all", "any"):
    TABLE[_name] = Translation(lambda args, params, _name=_name: _test(_name, args, params))


def _test(name: str, args: Args, params: Params) -> Call:
    dim, keepdim = params[:2]
    if dim is None:
        return Call(name, args)
    return Call(f"{name}.{'dim' if isinstance(dim, int) else 'dims'}", (*args, dim, keepdim))


for _name in ("max", "min", "median", "nanmedian"):
    TABLE[_name] = Translation(lambda args, params, _name=_name: Call(f"{_name}.dim", (*args, *params[:2])))
    TABLE[f"{_name}_all"] = Translation(lambda args, params, _name=_name: Call(_name, args))
TABLE["mode"] = Translation(lambda args, params: Call("mode", (*args, *params[:2])))
TABLE["kthvalue"] = Translation(lambda args, params: Call("kthvalue", (*args, params[3], *params[:2])))
TABLE["aminmax"] = Translation(
    lambda args, params: Call("aminmax", args, {"dim": params[0], "keepdim": params[1]})
)
for _name in ("var", "std", "var_mean", "std_mean"):
    TABLE[_name] = Translation(
        lambda args, params, _name=_name: Call(
            f"{_name}.correction", (*args, _dims(params[0])), {"correction": params[3], "keepdim": params[1]}
        )
    )
TABLE["norm"] = Translation(
    lambda args, params: Call(
        "linalg_vector_norm", (*args, params[3], _dims(params[0]), params[1]), _with_dtype(params[2])
    )
)


@translates("count_nonzero")
def _count_nonzero(args: Args, params: Params) -> Call:
    if params[0] is None:
        return Call("count_nonzero", args)
    return Call("count_nonzero.dim_IntList", (*args, _dims(params[0])))


for _name in ("cumsum", "cumprod", "logcumsumexp", "cummax", "cummin"):
    TABLE[_name] = Translation(
        lambda args, params, _name=_name: Call(_name, (*args, params[0]), _with_dtype(params[1]))
    )


# -- order, places --------------------------------------------------------------------------------------------------

TABLE["sort"] = Translation(lambda args, params: Call("sort", (*args, *params)))
TABLE["topk"] = Translation(lambda args, params: Call("topk", (args[0], *params)))
for _name in ("flip", "roll", "tril", "triu", "trace", "take"):
    unary(_name)
for _name in ("softmax", "log_softmax"):
    TABLE[_name] = Translation(
        lambda args, params, _name=_name: (
            Call(f"_{_name}", (*args, params[0], False))
            if params[1] is None or params[1] is args[0].dtype
            else _softmax_as(_name, args, params)
        ),
    )
    TABLE[f"{_name}_backward"] = Translation(
        lambda args, params, _name=_name: Call(f"_{_name}_backward_data", (*args, params[0], args[1].dtype))
    )


def _softmax_as(name: str, args: Args, params: Params) -> Any:
    cast = find_overload("_to_copy")(args[0], dtype=params[1])
    return find_overload(f"_{name}")(cast, params[0], False)


@translates("cat")
def _cat(args: Args, params: Params) -> Call:
    return Call("cat", (list(args), params[0]))


@translates("gather")
def _gather(args: Args, params: Params) -> Call:
    return Call("gather", (args[0], params[0], args[1]))


@translates("index_select")
def _index_select(args: Args, params: Params) -> Call:
    return Call("index_select", (args[0], params[0], args[1]))


@translates("index")
def _index(args: Args, params: Params) -> Call:
    return Call("index.Tensor", (args[0], _places(args[1:], params[0])))


def _places(indices: Args, dims: Sequence[int]) -> list[Any]:
    """Return index tensors by dimension, with None for a dimension without one."""
    listed: list[Any] = [None] * (max(dims) + 1)
    for dim, index in zip(dims, indices, strict=True):
        listed[dim] = index
    return listed


@translates("index_put")
def _index_put(args: Args, params: Params) -> Any:
    target, values, *indices = args
    values = _as_tensor(values, target)
    return Call("index_put", (target, _places(indices, params[0]), values, params[1]))


@translates("index_add")
def _index_add(args: Args, params: Params) -> Call:
    return Call("index_add", (args[0], params[0], *args[1:3]), {"alpha": args[3]})


TABLE["index_copy"] = Translation(lambda args, params: Call("index_copy", (args[0], params[0], *args[1:3])))


@translates("index_fill")
def _index_fill(args: Args, params: Params) -> Call:
    kind = "Tensor" if isinstance(args[2], Tensor) else "Scalar"
    return Call(f"index_fill.int_{kind}", (args[0], params[0], *args[1:]))


@translates("scatter")
def _scatter(args: Args, params: Params) -> Call:
    kind = "src" if isinstance(args[2], Tensor) else "value"
    return Call(f"scatter.{kind}", (args[0], params[0], *args[1:]))


TABLE["scatter_add"] = Translation(lambda args, params: Call("scatter_add", (args[0], params[0], *args[1:])))
TABLE["scatter_reduce"] = Translation(
    lambda args, params: Call(
        "scatter_reduce.two", (args[0], params[0], *args[1:], params[1]), {"include_self": params[2]}
    )
)


@translates("masked_fill")
def _masked_fill(args: Args, params: Params) -> Call:
    return Call("masked_fill.Tensor" if isinstance(args[2], Tensor) else "masked_fill.Scalar", args)


TABLE["masked_scatter"] = Translation(lambda args, params: Call("masked_scatter", args))
TABLE["isin"] = Translation(
    lambda args, params: Call("isin.Tensor_Tensor", args, {"invert": params[0]} if params[0] else {})
)


# -- copies: params (dtype, shape, ...) -----------------------------------------------------------------------------


@translates("copy")
def _copy(args: Args, params: Params) -> Any:
    source, kind = args[0], params[0]
    if kind is not source.dtype:
        return Call("_to_copy", args, {"dtype": kind})
    if not source.is_contiguous():
        return Call("clone", args, {"memory_format": contiguous_format})
    return Call("clone", args)


# -- views ----------------------------------------------------------------------------------------------------------


def _view(name: str, key: str) -> None:
    VIEWS[name] = lambda t, *params: Call(key, (t, *params))


for _name, _key in (
    ("alias", "alias"), ("view", "view"), ("_unsafe_view", "_unsafe_view"), ("view_dtype", "view.dtype"),
    ("expand", "expand"), ("permute", "permute"), ("t", "t"), ("transpose", "transpose.int"),
    ("unsqueeze", "unsqueeze"), ("diagonal", "diagonal"), ("unfold", "unfold"), ("select", "select.int"),
    ("slice", "slice.Tensor"), ("view_as_real", "view_as_real"), ("view_as_complex", "view_as_complex"),
):  # fmt: skip
    _view(_name, _key)


def _squeeze(t: Tensor, dims: Any) -> Call:
    if dims is None:
        return Call("squeeze", (t,))
    if isinstance(dims, int) or len(dims) == 1:
        return Call("squeeze.dim", (t, dims if isinstance(dims, int) else dims[0]))
    return Call("squeeze.dims", (t, dims))


VIEWS["squeeze"] = _squeeze
VIEWS["as_strided"] = lambda t, shape, strides, offset: Call(
    "as_strided", (t, shape, strides, t.storage_offset() + offset)
)


def _split(t: Tensor, dim: int, parts: Sequence[Any]) -> Call:
    return Call("split.Tensor", (t, parts[0][1][2], dim))


def _split_with_sizes(t: Tensor, dim: int, parts: Sequence[Any]) -> Call:
    return Call("split_with_sizes", (t, [params[2] - params[1] for _, params in parts], dim))


SEVERAL["SplitBackward0"] = _split
SEVERAL["SplitWithSizesBackward0"] = _split_with_sizes
SEVERAL["UnbindBackward0"] = lambda t, dim, parts: Call("unbind.int", (t, dim))
