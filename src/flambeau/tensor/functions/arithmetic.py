"""Pointwise functions, methods, dunders and in-place forms, bound from the operator table.

Every record with a plain signature is bound by `bind_unary` or `bind_binary`; those with further
keyword arguments are written out below. PyTorch's other names (`multiply`, `arccos`) are aliases.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from numbers import Real
from typing import Any

import numpy as np

from flambeau.core.callsite import warn_program
from flambeau.core.dtype import BOOL, INTEGRAL, complex64, complex128, float64, uint8
from flambeau.core.errors import argument_type, type_name
from flambeau.core.typeinfo import finfo
from flambeau.ops.pointwise import pointwise_arithmetic as arithmetic
from flambeau.ops.pointwise import pointwise_functions as functions
from flambeau.ops.pointwise import pointwise_logic as logic
from flambeau.ops.pointwise.pointwise import Pointwise
from flambeau.tape.mode import mode
from flambeau.tensor.arguments import public
from flambeau.tensor.arguments.arg_aliases import OURS
from flambeau.tensor.arguments.arg_errors import Number
from flambeau.tensor.arguments.extents import require_data
from flambeau.tensor.arguments.public import (
    alias,
    both,
    function,
    method,
    method_and_function,
    plain_function,
    plain_method,
)
from flambeau.tensor.arguments.torch_function import again
from flambeau.tensor.autograd.autograd_meta import requires_grad
from flambeau.tensor.call import binary_into, call, call_into, signature, unary, with_scalar
from flambeau.tensor.signatures import accepts, signatures
from flambeau.tensor.tensor import Tensor

SCALARS: tuple[Any, ...] = (bool, int, float, complex)
_OPERANDS = (Tensor, *SCALARS, np.number, np.bool_)


# -- arguments ------------------------------------------------------------------------------------------


def tensor_operand(x: Any, name: str, argument: str, position: int) -> Tensor:
    if not isinstance(x, Tensor):
        raise _no_operand(x, name, argument, position)
    return x


def operand(x: Any, name: str, argument: str, position: int) -> Any:
    """Return a tensor or a Python scalar; NumPy's scalars become Python's, as in PyTorch."""
    if isinstance(x, Tensor) or x.__class__ in SCALARS:
        return x
    if isinstance(x, np.number):
        return x.item()
    if isinstance(x, np.bool_):
        return float(x)  # as PyTorch accepts it
    for kind in SCALARS:  # a subclass: an enumeration's member
        if isinstance(x, kind):
            return kind(x)
    raise _no_operand(x, name, argument, position)


def _no_operand(x: Any, name: str, argument: str, position: int) -> TypeError:
    if x is ...:  # the default of a missing operand
        return TypeError(f'{name}() missing 1 required positional arguments: "{argument}"')
    return TypeError(argument_type(name, argument, position, "Tensor", x))


def is_operand(x: Any, *also: type) -> bool:
    """Return True if operators accept the value: a tensor, or a Python or NumPy scalar."""
    return isinstance(x, (*_OPERANDS, *also))


def _are_tensors(a: Any, b: Any, out: Any) -> bool:
    return isinstance(out, Tensor) and isinstance(a, Tensor) and isinstance(b, Tensor)


def run(op: Pointwise, args: tuple[Any, ...], out: Any = None, params: tuple[Any, ...] = ()) -> Any:
    """Run an operator, with the result in `out` if it is not None. A call on scalars only returns a 0-dim CPU
    tensor.
    """
    if out is None:
        return call(op, args, params)
    tensor_operand(out, op.name, "out", len(args) + 1)
    return call_into(op, (out,), args, params, resize=True)


def into(op: Pointwise, args: tuple[Any, ...], params: tuple[Any, ...] = ()) -> Any:
    """Run an operator in place, into its first operand."""
    return call_into(op, (args[0],), args, params)


# -- bound from the table -------------------------------------------------------------------------------

_PLACES = {
    theirs: ("input", "other").index(ours) for theirs, ours in OURS.items() if ours in ("input", "other")
}


def _bind_operands(name: str, named: dict[str, Any], *given: Any) -> list[Any]:
    """Return the operands, including those passed by NumPy's names. Raises TypeError for other names or too many."""
    operands = list(given)
    for key, value in named.items():
        at = _PLACES.get(key, len(operands))
        if at >= len(operands) or operands[at] is not ...:
            raise TypeError(f"{name}() got an unexpected keyword argument '{key}'")
        operands[at] = value
    return operands


def publish(define: Callable[..., Any], name: str, summary: str, bind: Callable[[Any], Any]) -> None:
    define.__name__ = name
    define.__qualname__ = f"Tensor.{name}" if bind in (method, plain_method, method_and_function) else name
    define.__doc__ = summary
    bind(define)


def publish_in_place(define: Callable[..., Any], op: Pointwise, bind: Callable[[Any], Any] = method) -> None:
    """Bind the in-place forms that the operator definition names."""
    if op.forms.in_place:
        publish(define, f"{op.name}_", f"`{op.name}` in place.", bind)
    if op.forms.torch_in_place:
        function(define)


def bind_unary(op: Pointwise) -> None:
    """Bind a unary operator: torch.exp(input, *, out=None), Tensor.exp(), and Tensor.exp_() if the dtype is kept."""
    name = op.name

    def of_tensor(input: Any = ..., *, out: Any = None, **named: Any) -> Any:
        if named:
            return of_tensor(*_bind_operands(name, named, input), out=out)
        if out is None and isinstance(input, Tensor):
            return unary(op, input)
        try:
            return run(op, (tensor_operand(input, name, "input", 1),), out)
        except TypeError:
            return again(of_tensor, input, out=out)

    def of_self(self: Tensor) -> Any:
        return unary(op, self)

    def in_place(self: Tensor) -> Any:
        return into(op, (self,))

    publish(of_tensor, name, op.summary, plain_function)
    publish(of_self, name, op.summary, method)
    publish_in_place(in_place, op)


def bind_binary(op: Pointwise, second: str = "other", numbers: bool = False) -> None:
    """Bind a binary operator: torch.atan2(input, other, *, out=None), Tensor.atan2(other), Tensor.atan2_(other).

    `numbers` is True if the function accepts two numbers.
    """
    name = op.name
    first = operand if 0 in op.scalars else tensor_operand
    other_of = operand if 1 in op.scalars else tensor_operand

    def of_both(input: Any = ..., other: Any = ..., *, out: Any = None, **named: Any) -> Any:
        if named:
            return of_both(*_bind_operands(name, named, input, other), out=out)
        if _are_tensors(input, other, out):
            return binary_into(op, out, input, other, True)
        try:
            if not (numbers or isinstance(input, Tensor) or isinstance(other, Tensor)):
                input = tensor_operand(input, name, "input", 1)
            return run(op, (first(input, name, "input", 1), other_of(other, name, second, 2)), out)
        except TypeError:
            return again(of_both, input, other, out=out)

    def of_self(self: Tensor, other: Any = ..., **named: Any) -> Any:
        if named:
            return of_self(*_bind_operands(name, named, self, other))
        try:
            return call(op, (self, other_of(other, name, second, 1)))
        except TypeError:
            return again(of_self, self, other)

    def in_place(self: Tensor, other: Any = ..., **named: Any) -> Any:
        if named:
            return in_place(*_bind_operands(f"{name}_", named, self, other))
        if isinstance(other, Tensor):
            return binary_into(op, self, self, other, False)
        try:
            return into(op, (self, other_of(other, f"{name}_", second, 1)))
        except TypeError:
            return again(in_place, self, other)

    publish(of_both, name, op.summary, plain_function)
    publish(of_self, name, op.summary, plain_method)
    publish_in_place(in_place, op, plain_method)


def _public_operators() -> Iterator[Pointwise]:
    for module in (arithmetic, functions, logic):
        for op in vars(module).values():
            if isinstance(op, Pointwise) and "." not in op.name and not op.name.endswith("_backward"):
                yield op


def _bind_table() -> None:
    for op in _public_operators():
        if op.forms.bound:
            _note_names(op)
            (bind_unary if op.arity == 1 else bind_binary)(op)


def _note_names(op: Pointwise) -> None:
    """Register PyTorch's name of the second argument, if it is not `other`."""
    name, second = op.name, op.forms.second
    if second:
        for form, out in (name, ", *, out: Tensor | None=None"), (f"{name}_", ""):
            signatures(shown=f"{form}(input: Tensor, {second}: Tensor{out})")
            accepts(form, **{second: "other"})


_bind_table()


def _abs_(self: Tensor) -> Any:
    if self.meta.dtype.is_complex:
        raise RuntimeError("In-place abs is not supported for complex tensors.")
    return into(arithmetic.abs_, (self,))


publish(_abs_, "abs_", "`abs` in place.", method_and_function)


@both
def conj_physical(input: Tensor, *, out: Any = None) -> Any:
    """Return the complex conjugate, computed; a real tensor itself."""
    x = tensor_operand(input, "conj_physical", "input", 1)
    return run(functions.conj_physical, (x,), out) if x.dtype.is_complex or out is not None else x


def _conj_physical_(self: Tensor) -> Any:
    if not (
        self.meta.dtype.is_complex or (mode.recording and self.requires_grad)
    ):  # neither writes nor reads memory
        self.counter.version += 1
        return self
    return into(functions.conj_physical, (self,))


publish_in_place(_conj_physical_, functions.conj_physical)


# -- sums, products, quotients --------------------------------------------------------------------------


def _with_alpha(
    plain: Pointwise, scaled: Pointwise, input: Any, other: Any, alpha: Any
) -> tuple[Pointwise, tuple[Any, ...]]:
    if alpha.__class__ is int and alpha == 1:
        return plain, (input, other)
    if isinstance(alpha, Tensor) and alpha.meta.ndim:
        raise TypeError(f"{plain.name}(): argument 'alpha' must be Number, not {type_name(alpha)}")
    if isinstance(alpha, Tensor) and alpha.meta.dtype.category == BOOL:
        alpha = alpha.item()  # which only bool results take
    return scaled, (input, other, operand(alpha, plain.name, "alpha", 3))


def _bind_scaled(plain: Pointwise, scaled: Pointwise) -> None:
    """Bind torch.add(input, other, *, alpha=1, out=None) and its forms."""
    name = plain.name

    def of_both(
        input: Any = ..., other: Any = ..., *late: Any, alpha: Any = 1, out: Any = None, **named: Any
    ) -> Any:
        if named:
            return of_both(*_bind_operands(name, named, input, other), alpha=alpha, out=out)
        if late:
            alpha, other = _accept_old_order(name, "input", (other, *late), "alpha", "other")
        if _are_tensors(input, other, out) and alpha.__class__ is int and alpha == 1:
            return binary_into(plain, out, input, other, True)
        try:
            pair = operand(input, name, "input", 1), operand(other, name, "other", 2)
            return run(*_with_alpha(plain, scaled, *pair, alpha), out)
        except TypeError:
            return again(of_both, input, other, alpha=alpha, out=out)

    def of_self(self: Tensor, other: Any = ..., *late: Any, alpha: Any = 1, **named: Any) -> Any:
        if named:
            return of_self(*_bind_operands(name, named, self, other), alpha=alpha)
        if late:
            alpha, other = _accept_old_order(name, "", (other, *late), "alpha", "other")
        try:
            return call(*_with_alpha(plain, scaled, self, operand(other, name, "other", 1), alpha))
        except TypeError:
            return again(of_self, self, other, alpha=alpha)

    def in_place(self: Tensor, other: Any = ..., *late: Any, alpha: Any = 1, **named: Any) -> Any:
        if named:
            return in_place(*_bind_operands(f"{name}_", named, self, other), alpha=alpha)
        if late:
            alpha, other = _accept_old_order(f"{name}_", "", (other, *late), "alpha", "other")
        if isinstance(other, Tensor) and alpha.__class__ is int and alpha == 1:
            return binary_into(plain, self, self, other, False)
        try:
            return into(*_with_alpha(plain, scaled, self, operand(other, f"{name}_", "other", 1), alpha))
        except TypeError:
            return again(in_place, self, other, alpha=alpha)

    publish(of_both, name, plain.summary, plain_function)
    publish(of_self, name, plain.summary, plain_method)
    publish(in_place, f"{name}_", f"`{name}` in place.", plain_method)


_bind_scaled(arithmetic.add, arithmetic.add_alpha)
_bind_scaled(arithmetic.sub, arithmetic.sub_alpha)
signatures("""
subtract(input: Tensor | Number, other: Number, alpha: Number=)
subtract(input: Tensor | Number, other: Tensor, *, alpha: Number=)
""")
bind_binary(arithmetic.mul, numbers=True)
bind_binary(arithmetic.floor_divide, numbers=True)


@function
@signatures("""
rsub(input: Tensor, other: Number, alpha: Number=)
rsub(input: Tensor, other: Tensor, *, alpha: Number=)
""")
def rsub(input: Any, other: Any, alpha: Any = 1) -> Any:
    """Return other - alpha * input."""
    pair = operand(other, "rsub", "other", 2), tensor_operand(input, "rsub", "input", 1)
    return call(*_with_alpha(arithmetic.sub, arithmetic.sub_alpha, *pair, alpha))


def _quotient(rounding_mode: Any) -> Pointwise:
    if rounding_mode is None:
        return arithmetic.div
    if rounding_mode == "floor":
        return arithmetic.div_floor
    if rounding_mode == "trunc":
        return arithmetic.div_trunc
    if not isinstance(rounding_mode, str):
        raise TypeError(f"div(): argument 'rounding_mode' must be str, not {type_name(rounding_mode)}")
    raise RuntimeError(
        f"div expected rounding_mode to be one of None, 'trunc', or 'floor' but found '{rounding_mode}'"
    )


@function
@signatures(
    """
div(input: Tensor | Number, other: Tensor | Number, *, rounding_mode: str | None=)
divide(input: Tensor | Number, other: Tensor | Number)
divide(input: Tensor | Number, other: Tensor | Number, *, rounding_mode: str | None)
true_divide(input: Tensor | Number, other: Tensor | Number)
""",
    shown="true_divide(input: Tensor, other: Tensor | Number, *, out: Tensor | None=None)",
)
def div(input: Any, other: Any, *, rounding_mode: Any = None, out: Any = None) -> Any:
    """Return the quotient of input and other, rounded if `rounding_mode` is "trunc" or "floor".

    Raises:
        RuntimeError: For an integer division by zero on the CPU.
    """
    pair = operand(input, "div", "input", 1), operand(other, "div", "other", 2)
    return run(_quotient(rounding_mode), pair, out)


def _div(self: Tensor, other: Any = ..., *, rounding_mode: Any = None, **named: Any) -> Any:
    if named:
        return _div(*_bind_operands("div", named, self, other), rounding_mode=rounding_mode)
    try:
        return call(_quotient(rounding_mode), (self, operand(other, "div", "other", 1)))
    except TypeError:
        return again(_div, self, other, rounding_mode=rounding_mode)


@signatures("""
Tensor.div_(other: Tensor | Number, *, rounding_mode: str | None=)
Tensor.divide_(other: Tensor | Number)
Tensor.divide_(other: Tensor | Number, *, rounding_mode: str | None)
Tensor.true_divide_(other: Tensor | Number)
""")
def _div_(self: Tensor, other: Any = ..., *, rounding_mode: Any = None, **named: Any) -> Any:
    if named:
        return _div_(*_bind_operands("div_", named, self, other), rounding_mode=rounding_mode)
    try:
        return into(_quotient(rounding_mode), (self, operand(other, "div_", "other", 1)))
    except TypeError:
        return again(_div_, self, other, rounding_mode=rounding_mode)


publish(_div, "div", arithmetic.div.summary, plain_method)
publish(_div_, "div_", "`div` in place.", plain_method)


# -- powers ---------------------------------------------------------------------------------------------


def powers(base: Any, exponent: Any, name: str) -> tuple[Any, Any]:
    base, exponent = operand(base, name, "input", 1), operand(exponent, name, "exponent", 2)
    if not (isinstance(base, Tensor) or isinstance(exponent, Tensor)):
        raise TypeError(argument_type(name, "input", 1, "Tensor", base))
    if name == "pow" and exponent.__class__ is int and exponent < 0 and base.dtype.category <= INTEGRAL:
        raise RuntimeError("Integers to negative integer powers are not allowed.")
    return base, exponent


def _bind_power(op: Pointwise) -> None:
    name = op.name

    def of_both(input: Any, exponent: Any, *, out: Any = None) -> Any:
        return run(op, powers(input, exponent, name), out)

    def of_self(self: Tensor, exponent: Any) -> Any:
        if exponent.__class__ is float or (exponent.__class__ is int and exponent >= 0):
            return with_scalar(op, self, exponent)
        return call(op, powers(self, exponent, name))

    def in_place(self: Tensor, exponent: Any) -> Any:
        if op is arithmetic.float_power:
            _require_double(self, exponent)
        return into(op, powers(self, exponent, name))

    publish(of_both, name, op.summary, function)
    publish(of_self, name, op.summary, method)
    publish_in_place(in_place, op)


def _require_double(base: Tensor, exponent: Any) -> None:
    if (
        not isinstance(exponent, Tensor)
        and not hasattr(exponent, "__complex__")
        and not hasattr(exponent, "__float__")
    ):
        raise TypeError(argument_type("float_power_", "exponent", 1, "Number", exponent))
    of_complex = base.dtype.is_complex or getattr(exponent, "dtype", None) in (complex64, complex128)
    kind = complex128 if of_complex or isinstance(exponent, complex) else float64
    if base.dtype is not kind:
        raise RuntimeError(
            f"the base given to float_power_ has dtype {base.dtype.torch_name} but the operation's result requires "
            f"dtype {kind.torch_name}"
        )


_bind_power(arithmetic.pow_)
_bind_power(arithmetic.float_power)


@function
def square(input: Tensor, *, out: Any = None) -> Any:
    """Return the square of each element."""
    return run(arithmetic.pow_, (tensor_operand(input, "square", "input", 1), 2), out)


def _square(self: Tensor) -> Any:
    return call(arithmetic.pow_, (self, 2))


publish(_square, "square", "The square of each element.", method)


@method_and_function
def square_(self: Tensor) -> Any:
    """Square the elements in place."""
    return into(arithmetic.pow_, (self, 2))


@both
def positive(input: Tensor) -> Any:
    """Return the tensor itself. Raises RuntimeError for a bool tensor."""
    if tensor_operand(input, "positive", "input", 1).dtype.category == BOOL:
        raise RuntimeError("The `+` operator, on a bool tensor is not supported.")
    return input


# -- bounds and rounding --------------------------------------------------------------------------------


def _is_number(x: Any) -> bool:
    """Return True for a 0-dim tensor that PyTorch's parser accepts as a number."""
    return isinstance(x, Tensor) and not x.meta.ndim and not requires_grad(x)


def _bounds(x: Tensor, low: Any, high: Any) -> tuple[Pointwise, tuple[Any, ...]]:
    if low.__class__ in SCALARS and high.__class__ in SCALARS:
        return arithmetic.clamp, (x, low, high)
    if low is None and high is None:
        raise RuntimeError("torch.clamp: At least one of 'min' or 'max' must not be None")
    if isinstance(low, Tensor) != isinstance(high, Tensor) and low is not None and high is not None:
        low, high = (x.item() if _is_number(x) else x for x in (low, high))
        if isinstance(low, Tensor) or isinstance(high, Tensor):
            raise TypeError(
                "clamp() received an invalid combination of arguments: 'min' and 'max' must both be Tensor or both "
                "Number"
            )
    if high is None:
        return arithmetic.clamp_min, (x, operand(low, "clamp", "min", 2))
    if low is None:
        return arithmetic.clamp_max, (x, operand(high, "clamp", "max", 3))
    return arithmetic.clamp, (x, operand(low, "clamp", "min", 2), operand(high, "clamp", "max", 3))


@function
def clamp(input: Any, min: Any = None, max: Any = None, *, out: Any = None) -> Any:
    """Return each element clamped to [min, max]. The bounds are numbers or tensors, and one may be None."""
    return run(*_bounds(tensor_operand(input, "clamp", "input", 1), min, max), out)


def _clamp(self: Tensor, min: Any = None, max: Any = None) -> Any:
    return call(*_bounds(self, min, max))


def _clamp_(self: Tensor, min: Any = None, max: Any = None) -> Any:
    return into(*_bounds(self, min, max))


publish(_clamp, "clamp", "Each element, held to [min, max].", method)
publish_in_place(_clamp_, arithmetic.clamp)


def _bind_bound(op: Pointwise, bound: str) -> None:
    name = op.name
    ends = (lambda x: (x, None)) if bound == "min" else (lambda x: (None, x))

    def end_of(args: tuple[Any, ...], given: dict[str, Any]) -> Any:
        found = (*args, *given.values())
        if len(found) != 1:
            raise TypeError(f"{name}() takes one bound, {bound}, but {len(found)} were given")
        return ends(found[0])

    def of_tensor(input: Any, *args: Any, out: Any = None, **given: Any) -> Any:
        return run(*_bounds(tensor_operand(input, name, "input", 1), *end_of(args, given)), out)

    def of_self(self: Tensor, *args: Any, **given: Any) -> Any:
        return call(*_bounds(self, *end_of(args, given)))

    def in_place(self: Tensor, *args: Any, **given: Any) -> Any:
        return into(*_bounds(self, *end_of(args, given)))

    of_function, of_method = (
        f"{form}(input: Tensor, {bound}: Tensor | Number" for form in (name, f"{name}_")
    )
    signatures(
        f"{of_function})\n{of_method})", shown=f"{of_function}, *, out: Tensor | None=None)\n{of_method})"
    )
    publish(of_tensor, name, op.summary, function)
    publish(of_self, name, op.summary, method)
    publish_in_place(in_place, op)


_bind_bound(arithmetic.clamp_min, "min")
_bind_bound(arithmetic.clamp_max, "max")


def _rounding(decimals: int) -> tuple[Pointwise, tuple[Any, ...]]:
    return (functions.round_, ()) if decimals == 0 else (functions.round_decimals, (decimals,))


@function
@signatures("""
round(input: Tensor)
round(input: Tensor, *, decimals: int)
""")
def round(input: Tensor, *, decimals: int = 0, out: Any = None) -> Any:
    """Return each element rounded to the nearest number of `decimals`, halves to the even neighbour."""
    op, params = _rounding(decimals)
    return run(op, (tensor_operand(input, "round", "input", 1),), out, params)


def _round(self: Tensor, *, decimals: int = 0) -> Any:
    op, params = _rounding(decimals)
    return call(op, (self,), params)


@signatures("""
round_(input: Tensor)
round_(input: Tensor, *, decimals: int)
""")
def _round_(self: Tensor, *, decimals: int = 0) -> Any:
    op, params = _rounding(decimals)
    return into(op, (self,), params)


publish(_round, "round", functions.round_.summary, method)
publish_in_place(_round_, functions.round_)


# -- functions with other signatures --------------------------------------------------------------------


@function
def logit(input: Tensor, eps: float | None = None, *, out: Any = None) -> Any:
    """Return log(x / (1 - x)); with `eps`, x is first limited to [eps, 1 - eps]."""
    return run(
        functions.logit, (tensor_operand(input, "logit", "input", 1),), out, (_real(eps, "logit", "eps"),)
    )


def _logit(self: Tensor, eps: float | None = None) -> Any:
    return call(functions.logit, (self,), (_real(eps, "logit", "eps"),))


def _logit_(self: Tensor, eps: float | None = None) -> Any:
    return into(functions.logit, (self,), (_real(eps, "logit_", "eps"),))


publish(_logit, "logit", functions.logit.summary, method)
publish_in_place(_logit_, functions.logit)


def _real(x: Any, function: str, name: str) -> float | None:
    """Return a float, or an object that acts as one; None for None."""
    if x is None or x.__class__ is float:
        return x
    value = x.item() if isinstance(x, Tensor) and not x.meta.ndim else x
    if not isinstance(value, Real | np.bool_):
        raise TypeError(argument_type(function, name, 2, "float", x))
    return float(value)


def _replacements(x: Tensor, nan: Any, posinf: Any, neginf: Any) -> tuple[Any, ...]:
    kind = x.dtype.to_real()
    if not kind.is_floating_point:
        return (0.0, 0.0, 0.0)
    largest = float(finfo(kind).max)
    return (
        _real(0.0 if nan is None else nan, "nan_to_num", "nan"),
        _real(largest if posinf is None else posinf, "nan_to_num", "posinf"),
        _real(-largest if neginf is None else neginf, "nan_to_num", "neginf"),
    )


@function
def nan_to_num(
    input: Tensor,
    nan: float | None = None,
    posinf: float | None = None,
    neginf: float | None = None,
    *,
    out: Any = None,
) -> Any:
    """Return the tensor with NaN and infinities replaced: by default by 0 and the dtype's limits."""
    x = tensor_operand(input, "nan_to_num", "input", 1)
    return run(functions.nan_to_num, (x,), out, _replacements(x, nan, posinf, neginf))


def _nan_to_num(
    self: Tensor, nan: float | None = None, posinf: float | None = None, neginf: float | None = None
) -> Any:
    return call(functions.nan_to_num, (self,), _replacements(self, nan, posinf, neginf))


def _nan_to_num_(
    self: Tensor, nan: float | None = None, posinf: float | None = None, neginf: float | None = None
) -> Any:
    if self.meta.dtype.category <= INTEGRAL:
        self.counter.version += 1
        return self
    return into(functions.nan_to_num, (self,), _replacements(self, nan, posinf, neginf))


publish(_nan_to_num, "nan_to_num", functions.nan_to_num.summary, method)
publish_in_place(_nan_to_num_, functions.nan_to_num)


def _of_parts(real: Tensor, imag: Tensor, *, out: Any = None) -> Any:
    real, imag = tensor_operand(real, "complex", "real", 1), tensor_operand(imag, "complex", "imag", 2)
    return _run_complex(functions.complex_, real, imag, out)


def _run_complex(op: Pointwise, first: Tensor, second: Tensor, out: Any) -> Any:
    if isinstance(out, Tensor) and out.dtype is not first.dtype.to_complex():
        raise RuntimeError(
            f"Expected object of scalar type {first.dtype.to_complex().torch_name} but got scalar type "
            f"{out.dtype.torch_name} for argument 'out'"
        )
    return run(op, (first, second), out)


publish(
    _of_parts, "complex", "A complex tensor of its real and imaginary parts, of one floating dtype.", function
)


@function
def polar(abs: Tensor, angle: Tensor, *, out: Any = None) -> Any:
    """Return the complex tensor with these absolute values and angles, which have one floating dtype."""
    abs, angle = tensor_operand(abs, "polar", "abs", 1), tensor_operand(angle, "polar", "angle", 2)
    return _run_complex(functions.polar, abs, angle, out)


@function
def lerp(input: Any, end: Any, weight: Any, *, out: Any = None) -> Any:
    """Return the linear interpolation between `input` and `end` at `weight`, a number or a tensor."""
    ends = tensor_operand(input, "lerp", "input", 1), tensor_operand(end, "lerp", "end", 2)
    return run(arithmetic.lerp, (*ends, _weight(weight, ends[0], "lerp", 3)), out)


def _weight(weight: Any, start: Tensor, function: str, position: int) -> Any:
    """Return the weight of `lerp`. A weight without dimensions is a number, which has the dtype of the tensors."""
    x = operand(weight, function, "weight", position)
    if isinstance(x, Tensor) and not x.meta.ndim and not (x.is_complex() and not start.is_complex()):
        return x.to(start.dtype)
    return x


def _lerp(self: Tensor, end: Any, weight: Any) -> Any:
    return lerp(self, end, weight)


def _lerp_(self: Tensor, end: Any, weight: Any) -> Any:
    return into(
        arithmetic.lerp, (self, tensor_operand(end, "lerp_", "end", 1), _weight(weight, self, "lerp_", 2))
    )


publish(_lerp, "lerp", arithmetic.lerp.summary, method)
publish(_lerp_, "lerp_", "`lerp` in place.", method)


def _bind_combination(op: Pointwise) -> None:
    """Bind torch.addcmul(input, tensor1, tensor2, *, value=1, out=None) and its forms."""
    name = op.name

    def operands(x: Any, tensor1: Any, tensor2: Any, value: Any) -> tuple[Any, ...]:
        pair = tensor_operand(tensor1, name, "tensor1", 2), tensor_operand(tensor2, name, "tensor2", 3)
        return (tensor_operand(x, name, "input", 1), *pair, operand(value, name, "value", 4))

    def of_all(input: Any, tensor1: Any, tensor2: Any, *late: Any, value: Number = 1, out: Any = None) -> Any:
        if late:
            given = (tensor1, tensor2, *late)
            value, tensor1, tensor2 = _accept_old_order(name, "input", given, "value", "tensor1", "tensor2")
        return run(op, operands(input, tensor1, tensor2, value), out)

    def of_self(self: Tensor, tensor1: Any, tensor2: Any, *late: Any, value: Number = 1) -> Any:
        if late:
            given = (tensor1, tensor2, *late)
            value, tensor1, tensor2 = _accept_old_order(name, "", given, "value", "tensor1", "tensor2")
        return call(op, operands(self, tensor1, tensor2, value))

    def in_place(self: Tensor, tensor1: Any, tensor2: Any, *late: Any, value: Number = 1) -> Any:
        if late:
            given = (tensor1, tensor2, *late)
            value, tensor1, tensor2 = _accept_old_order(f"{name}_", "", given, "value", "tensor1", "tensor2")
        return into(op, operands(self, tensor1, tensor2, value))

    publish(of_all, name, op.summary, function)
    publish(of_self, name, op.summary, method)
    publish_in_place(in_place, op)


_bind_combination(arithmetic.addcmul)
_bind_combination(arithmetic.addcdiv)


_BYTE_CONDITION = (
    "where received a uint8 condition tensor. This behavior is deprecated and will be removed in a future version of "
    "PyTorch. Use a boolean condition instead."
)


@function
def where(condition: Any, input: Any = ..., other: Any = ..., *, out: Any = None) -> Any:
    """Return input where the condition is True, else other. With only a condition, return the indices where it is
    True.
    """
    condition = tensor_operand(condition, "where", "condition", 1)
    if input is ... and other is ...:
        return condition.nonzero(as_tuple=True)
    if condition.dtype is uint8:
        warn_program(_BYTE_CONDITION, UserWarning)
        condition = condition.bool()
    args = condition, operand(input, "where", "input", 2), operand(other, "where", "other", 3)
    if isinstance(out, Tensor):
        kind = signature(logic.where, args, ()).outputs[0].dtype
        if kind is not out.dtype:
            raise RuntimeError(f"Expected out type to be {kind.torch_name} but got {out.dtype.torch_name}")
    return run(logic.where, args, out)


def _where(self: Tensor, condition: Any, other: Any) -> Any:
    return where(condition, self, other)


publish(_where, "where", logic.where.summary, method)


# -- composites -----------------------------------------------------------------------------------------


@both
def isclose(
    input: Tensor, other: Tensor, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False
) -> Any:
    """Return True where |input - other| <= atol + rtol * |other|, elementwise. Raises RuntimeError for different
    dtypes.
    """
    if not rtol >= 0:  # also NaN
        raise RuntimeError(f"rtol must be greater than or equal to zero, but got {rtol:g}")
    if not atol >= 0:
        raise RuntimeError(f"atol must be greater than or equal to zero, but got {atol:g}")
    pair = tensor_operand(input, "isclose", "input", 1), tensor_operand(other, "isclose", "other", 2)
    return call(logic.isclose, pair, (rtol, atol, equal_nan))


@both
def allclose(
    input: Tensor, other: Tensor, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False
) -> bool:
    """Return True if `isclose` is True for all elements."""
    return bool(isclose(input, other, float(rtol), float(atol), equal_nan).all().item())


@both
def equal(input: Tensor, other: Tensor) -> bool:
    """Return True if two tensors have the same shape and elements."""
    a, b = tensor_operand(input, "equal", "input", 1), tensor_operand(other, "equal", "other", 2)
    if a.meta.shape != b.meta.shape:
        return False
    require_data(a, "equal")
    return bool(call(logic.eq, (a, b)).all().item())


# -- other names ----------------------------------------------------------------------------------------


def _bind_aliases() -> None:
    for op in _public_operators():
        for name in op.forms.aliases:
            alias(name, public.functions[op.name], as_method=False)
            alias(name, Tensor.__dict__[op.name], as_function=False)
            in_place = Tensor.__dict__.get(f"{op.name}_")
            if in_place is not None:
                alias(f"{name}_", in_place, as_function=op.forms.torch_in_place)


_bind_aliases()


# -- arguments in the order of PyTorch's first versions: `p.add_(-lr, grad)` -----------------------------


def _accept_old_order(
    function: str, first: str, given: tuple[Any, ...], factor: str, *tensors: str
) -> tuple[Any, ...]:
    """Return `given`, a number and the tensors after it, in today's order, with a warning.

    Raises TypeError for any other arguments. `first` names the operand before them, for a function; a method has
    none.
    """
    number, *others = given
    kinds = Tensor if len(tensors) > 1 else (Tensor, int, float, complex)
    right = len(others) == len(tensors) and all(isinstance(x, kinds) for x in others)
    if not right or (isinstance(number, Tensor) and number.meta.ndim):
        most = len(tensors) + bool(first)
        plural = "s" if most > 1 else ""
        raise TypeError(
            f"{function}() takes {most} positional argument{plural} but {len(given) + bool(first)} were given"
        )
    before = [f"Tensor {first}"] if first else []
    out = ", Tensor out = None" if first else ""
    named = [f"Tensor {name}" for name in tensors]
    late = ", ".join([*before, f"Number {factor}", *named]) + (", *" + out if out else "")
    now = ", ".join([*before, *named, "*", f"Number {factor} = 1"]) + out
    warn_program(
        f"This overload of {function} is deprecated:\n\t{function}({late})\n"
        f"Consider using one of the following signatures instead:\n\t{function}({now})",
        UserWarning,
    )
    return given
